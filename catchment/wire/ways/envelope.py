"""Envelopes: what goes over forwarders, sealed by the end that says it, and the sealed answer of the other end.

An envelope names its way, the call that it carries and a number drawn at random; its seal covers all of it. The seal of
an answer covers the envelope that it answers. So a forwarder can hand both on, late, twice or not at all, as any
network may; it can neither make nor change one, nor give the answer of one call to another.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from catchment.errors import CatchmentError, WireError
from catchment.project.ways import Way
from catchment.wire.receiving.grpc_server import CONNECT, MAX_ENVELOPE_BYTES, SEGMENT
from catchment.wire.sending.grpc_uplink import read_answer, to_greeting
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, RefusedError

if TYPE_CHECKING:  # it loads cryptography, which senders of a light site do not need
    from catchment.keys.seals import Seal, SealCheck, Sealer

_REQUEST = "catchment: a request over forwarders"
_ANSWER = "catchment: an answer over forwarders"


@dataclass(frozen=True)
class Envelope:
    """A call of the first site of a way to its last."""

    way: Way
    call: str
    nonce: str
    body: bytes
    seal: Seal

    @classmethod
    def make(cls, way: Way, call: str, body: bytes, sealer: Sealer) -> Envelope:
        """Return the envelope of a call, sealed by its origin."""
        nonce = secrets.token_hex(16)
        return cls(way, call, nonce, body, sealer.seal(_sealed_text(way, call, nonce, body)))

    @property
    def sealed_text(self) -> bytes:
        """What the seal covers."""
        return _sealed_text(self.way, self.call, self.nonce, self.body)

    def encode(self) -> bytes:
        head = {"way": self.way, "call": self.call, "nonce": self.nonce, "seal": dict(self.seal)}
        return json.dumps(head).encode() + b"\n" + self.body

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        """Read an envelope; its seal is not checked here."""
        end = data.find(b"\n", 0, MAX_ENVELOPE_BYTES)
        if end < 0:
            raise WireError("this is no envelope: it has no head")
        try:
            head = json.loads(data[:end])
            way = tuple(_text(site) for site in head["way"])
            seal = {_text(name): _text(value) for name, value in head["seal"].items()}
            envelope = cls(way, _text(head["call"]), _text(head["nonce"]), data[end + 1 :], seal)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(f"this is no envelope: {error!r:.200}") from error
        if envelope.call not in (CONNECT, SEGMENT):
            raise WireError(f"an envelope carries no call {envelope.call!r:.80}")
        return envelope


def seal_answer(envelope: Envelope, document: dict[str, Any], sealer: Sealer) -> bytes:
    """Return the answer to an envelope, sealed by its last site."""
    answer = json.dumps(document)
    return json.dumps({"answer": answer, "seal": dict(sealer.seal(_answer_text(envelope, answer)))}).encode()


def open_answer(envelope: Envelope, data: bytes, check: SealCheck) -> dict[str, Any]:
    """Return what the last site of a way has answered; what it has not sealed is a failure on the way."""
    where = " -> ".join(envelope.way)
    try:
        given = json.loads(data)
        if "seal" not in given:
            raise LinkError(f"not forwarded: {given.get('message', data)!s:.300}", where=where)
        answer = _text(given["answer"])
        seal = {_text(name): _text(value) for name, value in given["seal"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LinkError(f"an answer that cannot be read: {data!r:.200}", where=where) from error
    try:
        check.check(envelope.way[-1], _answer_text(envelope, answer), seal)
    except CatchmentError as error:
        raise LinkError(f"the answer is not that of {envelope.way[-1]!r}: {error.message}", where=where) from error
    return read_answer(answer.encode(), where)


class HandOn(Protocol):
    """A connection to the first forwarder of a way."""

    def forward(self, data: bytes) -> bytes:
        """Hand an envelope over; return what comes back."""
        ...

    def close(self) -> None: ...


class AroundUplink:
    """An uplink to the last site of a way, over its forwarders; `first` leads to the first of them."""

    def __init__(self, way: Way, first: HandOn, sealer: Sealer, check: SealCheck) -> None:
        self._way = way
        self._first = first
        self._sealer = sealer
        self._check = check

    def connect(self, introduction: Introduction) -> Greeting:
        said = {name: value for name, value in asdict(introduction).items() if value}
        answer = self._ask(CONNECT, json.dumps(said).encode())
        return to_greeting(answer)

    def send(self, data: bytes) -> int:
        number: int = self._ask(SEGMENT, data)["number"]
        return number

    def close(self) -> None:
        self._first.close()

    def _ask(self, call: str, body: bytes) -> dict[str, Any]:
        envelope = Envelope.make(self._way, call, body, self._sealer)
        try:
            data = self._first.forward(envelope.encode())
        except RefusedError as error:  # of the forwarder, not of the end
            raise LinkError(f"{self._way[1]!r} does not forward: {error.message}", where=error.where) from error
        return open_answer(envelope, data, self._check)


def _sealed_text(way: Sequence[str], call: str, nonce: str, body: bytes) -> bytes:
    return json.dumps([_REQUEST, list(way), call, nonce, hashlib.sha256(body).hexdigest()]).encode()


def _answer_text(envelope: Envelope, answer: str) -> bytes:
    return json.dumps([_ANSWER, hashlib.sha256(envelope.sealed_text).hexdigest(), answer]).encode()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value
