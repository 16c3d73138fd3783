"""Options that people write, in TOML or in SQL: what each may hold, and what is said when it does not.

An `OptionKind` reads one value and knows the sentence for what is possible; an `Option` is a named kind with a
default; `read_options` checks a whole table of them. Every reader of people's settings goes through here, so
that an unknown name, a wrong value and a missing one are answered the same way everywhere: where, what was
found, what is possible.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from catchment.errors import CatchmentError, ConfigError
from catchment.units import parse_bandwidth, parse_duration, parse_size

SITE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class OptionKind:
    """Reads a value, or raises; `expected` completes the sentence "it must be ..."."""

    expected: str
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Option:
    """One setting: its name, what it holds, and its value when it is absent."""

    name: str
    kind: OptionKind
    default: Any = None
    required: bool = False


def did_you_mean(word: str, possible: Iterable[str]) -> str:
    """Return a hint: the nearest possible word, if one is near, and all that are possible."""
    names = sorted(possible)
    lowered = {n.lower(): n for n in names}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    choice = f"possible: {', '.join(names)}" if names else "nothing is declared yet"
    return f"did you mean {lowered[near[0]]!r}? {choice}" if near else choice


def read_options(
    given: Mapping[str, Any],
    options: Iterable[Option],
    *,
    what: str,
    where: Callable[[str | None], str],
    error: type[CatchmentError] = ConfigError,
) -> dict[str, Any]:
    """Return the checked values of a table of options, defaults filled in; `where(name)` is the place to blame."""
    known = {o.name: o for o in options}
    for name in given:
        if name not in known:
            raise error(f"{what} has no option {name!r}", where=where(name), hint=did_you_mean(name, known))
    for option in known.values():
        if option.required and option.name not in given:
            raise error(
                f"{what} lacks the option {option.name!r}", where=where(None), hint=f"it must be {option.kind.expected}"
            )
    return {name: _read(o, given, what, where, error) for name, o in known.items()}


def _read(
    option: Option,
    given: Mapping[str, Any],
    what: str,
    where: Callable[[str | None], str],
    error: type[CatchmentError],
) -> Any:
    if option.name not in given:
        return option.default
    try:
        return option.kind.read(given[option.name])
    except (ValueError, TypeError, CatchmentError) as cause:
        raise error(
            f"{what}: {option.name} = {given[option.name]!r} cannot be used",
            where=where(option.name),
            hint=f"it must be {option.kind.expected}",
        ) from cause


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(value)
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"on": True, "true": True, "off": False, "false": False}[_text(value).lower()]


def flag() -> OptionKind:
    def read(value: Any) -> bool:
        try:
            return _flag(value)
        except KeyError:
            raise ValueError(value) from None

    return OptionKind("on or off (true or false)", read)


def _number(low: float, high: float, whole: bool, open_low: bool, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    number = int(str(value)) if whole else float(value)
    if not (low < number if open_low else low <= number) or not number <= high:
        raise ValueError(value)
    return number


def number(low: float = 0.0, high: float = float("inf"), *, open_low: bool = True) -> OptionKind:
    """Return a number in (low, high], or [low, high] where open_low is off."""
    top = "" if high == float("inf") else f" and at most {high:g}"
    return OptionKind(
        f"a number {'over' if open_low else 'of at least'} {low:g}{top}",
        partial(_number, low, high, False, open_low),
    )


def share() -> OptionKind:
    """Return a number strictly between 0 and 1."""

    def read(value: Any) -> float:
        found = _number(0.0, 1.0, False, True, value)
        if found == 1.0:
            raise ValueError(value)
        return found

    return OptionKind("a number between 0 and 1, both excluded", read)


def integer(low: int = 0, high: int = 2**63 - 1) -> OptionKind:
    return OptionKind(f"a whole number of at least {low}", partial(_number, low, high, True, False))


def text(expected: str = "a text in quotes") -> OptionKind:
    return OptionKind(expected, _text)


def choice(*names: str) -> OptionKind:
    def read(value: Any) -> str:
        if _text(value).lower() not in names:
            raise ValueError(value)
        return _text(value).lower()

    return OptionKind(f"one of {', '.join(names)}", read)


def matching(pattern: str, expected: str) -> OptionKind:
    def read(value: Any) -> str:
        if not re.fullmatch(pattern, _text(value)):
            raise ValueError(value)
        return str(value)

    return OptionKind(expected, read)


def site_name() -> OptionKind:
    return matching(SITE_NAME.pattern, "a name of letters, digits, _ and - that starts with a letter or _")


def duration(*, none: bool = False, positive: bool = False) -> OptionKind:
    """Return microseconds; with `none`, the words none and off give None."""

    def read(value: Any) -> int | None:
        if none and _text(value).lower() in ("none", "off"):
            return None
        found = parse_duration(_text(value))
        if positive and found <= 0:
            raise ValueError(value)
        return found

    also = ", or 'none'" if none else ""
    return OptionKind(f"a {'positive ' if positive else ''}duration such as '500 ms' or '1 hour'{also}", read)


def size() -> OptionKind:
    return OptionKind("a size such as '64 MB' or '1 GiB'", _positive_size)


def _positive_size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int) or parse_size(value) <= 0:
        raise ValueError(value)
    return parse_size(value)


def bandwidth() -> OptionKind:
    return OptionKind("a bandwidth such as '2 MB/s', '20 Mbit/s' or '128 kbit/s'", lambda v: parse_bandwidth(_text(v)))


def address() -> OptionKind:
    """host:port, kept as (host, port); port 0 asks for any free one."""

    def read(value: Any) -> tuple[str, int]:
        host, _, port = _text(value).rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(value)
        return host.strip("[]"), int(port)

    return OptionKind("an address host:port such as '127.0.0.1:9410' (port 0: any free one)", read)


def policy() -> OptionKind:
    expected = "the name of a policy such as 'spillway', 'batching' or 'hybrid:0.25+lfu'"
    return matching(r"[a-z][a-z-]*(:[0-9.]+)?(\+[a-z]+)?", expected)
