"""Messages as bytes: one compact JSON array per message, checked on arrival before anything is built from it.

JSON keeps the wire readable with any MQTT client; nothing that arrives is ever unpickled or evaluated. A
message that is too long, of an unknown kind or of the wrong shape is refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from catchment.errors import FeedError, WireError
from catchment.feeds.forms.physical_view import PhysicalView, ViewRow, view_name
from catchment.feeds.forms.program import ProgramForm
from catchment.feeds.protocol.messages import (
    Admitted,
    Confirmed,
    FeedEvent,
    Hello,
    Install,
    Instruction,
    Instructions,
    Mark,
    Message,
    Notice,
    Program,
    RateReport,
    Refused,
    RelayedMessage,
    Reset,
    SetRoute,
    SetUpload,
    Uninstall,
)

MAX_MESSAGE_BYTES = 1_000_000  # longer messages are refused
MAX_TOKEN_CHARS = 4096  # of the secret in a hello

_Fields = list[Any]

_ENCODE: dict[type, tuple[str, Callable[[Any], _Fields]]] = {
    FeedEvent: ("e", lambda m: [m.feed, list(m.key), m.at_us, list(m.values)]),
    Notice: ("n", lambda m: [m.view, m.notified, list(m.key), m.at_us, list(m.values)]),
    Hello: ("h", lambda m: [m.boot, m.token, list(m.functions), m.version]),
    RateReport: ("r", lambda m: [[list(c) for c in m.counts], m.period_us]),
    Confirmed: ("c", lambda m: [list(m.tokens), m.since_us]),
    Admitted: ("a", lambda m: [m.boot]),
    Refused: ("d", lambda m: [m.boot, m.reason]),
    Reset: ("z", lambda m: []),
    Instructions: ("b", lambda m: [_fields(item) for item in m.items]),
    RelayedMessage: ("v", lambda m: [m.device, to_plain(m.message)]),
}
_ENCODE_ITEM: dict[type, tuple[str, Callable[[Any], _Fields]]] = {
    Program: ("p", lambda m: [m.form.as_json()]),
    SetUpload: ("u", lambda m: [m.feed, m.share, m.token]),
    Install: ("i", lambda m: [*_view_out(m.view), m.token]),
    Uninstall: ("x", lambda m: [m.view, m.token]),
    Mark: ("m", lambda m: [m.after_us, m.token]),
    SetRoute: ("t", lambda m: [m.feed, m.device, m.share, m.token]),
}
_DECODE: dict[str, Callable[..., Message]] = {
    "e": lambda feed, key, at, values: FeedEvent(_text(feed), _key(key), _int(at), _scalars(values)),
    "n": lambda view, who, key, at, values: Notice(_text(view), _text(who), _key(key), _int(at), _scalars(values)),
    # Version 1 said neither its functions nor its version.
    "h": lambda boot, token=None, functions=(), version=1: Hello(
        _int(boot), None if token is None else _token(token), _texts(functions), _int(version)
    ),
    "r": lambda counts, period: RateReport(tuple((_text(f), _int(n)) for f, n in counts), _int(period)),
    "c": lambda tokens, since: Confirmed(_key(tokens), _int(since)),
    "a": lambda boot: Admitted(_int(boot)),
    "d": lambda boot, reason: Refused(_int(boot), _text(reason)),
    "z": lambda: Reset(),
    "b": lambda *items: Instructions(tuple(_DECODE_ITEM[letter](*fields) for letter, *fields in items)),
    "v": lambda device, plain: RelayedMessage(_text(device), from_plain(plain)),
}
_DECODE_ITEM: dict[str, Callable[..., Instruction]] = {
    "p": lambda form: Program(ProgramForm.read(form)),
    "u": lambda feed, share, token: SetUpload(_text(feed), _number(share), _int(token)),
    "i": lambda template, inputs, rows, token: Install(_view_in(template, inputs, rows), _int(token)),
    "x": lambda view, token: Uninstall(_text(view), _int(token)),
    "m": lambda after, token: Mark(_int(after), _int(token)),
    "t": lambda feed, device, share, token: SetRoute(_text(feed), _text(device), _number(share), _int(token)),
}


def encode(number: int, message: Message) -> bytes:
    """Return the bytes of a message that is the number-th on its link."""
    return json.dumps([number, *to_plain(message)], separators=(",", ":"), allow_nan=False).encode()


def to_plain(message: Message) -> list[Any]:
    """Return a message as JSON values, without a number."""
    letter, fields = _ENCODE[type(message)]
    return [letter, *fields(message)]


def decode(data: bytes) -> tuple[int, Message]:
    """Return a message and its number on the link; refuse what is not one."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {len(data)} bytes is refused; at most {MAX_MESSAGE_BYTES} are read")
    try:
        number, *plain = json.loads(data)
        return _int(number), from_plain(plain)
    except (ValueError, TypeError, KeyError, RecursionError, FeedError) as error:
        raise WireError(f"a message is refused: {type(error).__name__}: {error}; it begins {data[:60]!r}") from error


def from_plain(plain: list[Any]) -> Message:
    """Return the message of JSON values, which are checked; what is wrong raises one of several errors."""
    letter, *fields = plain
    return _DECODE[letter](*fields)


def _fields(item: Instruction) -> _Fields:
    letter, fields = _ENCODE_ITEM[type(item)]
    return [letter, *fields(item)]


def _view_out(view: PhysicalView) -> _Fields:
    """Return a view without what its template and inputs say already: its name, and the inputs of each row."""
    rows = [
        [int(r.inputs != view.inputs), list(r.shares), list(r.devices), list(r.params), r.notified] for r in view.rows
    ]
    return [view.template, list(view.inputs), rows]


def _view_in(template: Any, inputs: Any, rows: Any) -> PhysicalView:
    template = _text(template)
    inputs = _texts(inputs)
    return PhysicalView(view_name(template, inputs), template, inputs, tuple(_row_in(inputs, *r) for r in rows))


def _row_in(inputs: tuple[str, ...], swapped: Any, shares: Any, devices: Any, params: Any, notified: Any) -> ViewRow:
    roles = inputs[::-1] if _int(swapped) else inputs
    numbers = tuple(_number(s) for s in shares)
    if len(numbers) != len(roles) or len(devices) != len(roles):
        raise TypeError(f"a row of a view with {len(roles)} inputs has {len(numbers)} shares")
    return ViewRow(roles, numbers, _scalars(devices), _scalars(params), _text(notified))


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, found {value!r}")
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected text, found {value!r}")
    return value


def _token(value: Any) -> str:
    if len(_text(value)) > MAX_TOKEN_CHARS:
        raise ValueError(f"a token of {len(value)} characters is refused; at most {MAX_TOKEN_CHARS} are read")
    return _text(value)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_text(v) for v in values)


def _key(values: Any) -> tuple[int, ...]:
    return tuple(_int(v) for v in values)


def _scalars(values: Any) -> tuple[Any, ...]:
    if type(values) is not list or any(type(v) in (list, dict) for v in values):
        raise TypeError(f"expected a flat list of values, found {values!r}")
    return tuple(values)
