"""What is said between a center and those who control or follow it: two calls, each of one MessagePack document.

`Command` is what a person asks: a name and plain arguments in, a plain answer out. `Follow` is what a site asks every
few seconds: what it has installed and how it is in, what is deployed out if that is newer. No code travels: a document
holds plain values, and a deployment in the codec of everything durable, which runs nothing.

Every request states the version of the protocol that its sender speaks. A center answers the versions from
`OLDEST_PROTOCOL` to its own, in the sender's; a sender that is newer than the center, or older than that, is refused by
name. So the center is upgraded first, and the sites one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from catchment import errors
from catchment.errors import CatchmentError, WireError
from catchment.version import VERSION

PREFIX = "/catchment.Control/"
COMMAND = f"{PREFIX}Command"
FOLLOW = f"{PREFIX}Follow"
PROTOCOL = 1
OLDEST_PROTOCOL = 1
MAX_REQUEST_BYTES = 4 * 2**20  # a file of views, or the status of a site
MAX_ANSWER_BYTES = 64 * 2**20  # rows that a person asked for, or what is deployed

_ERRORS = {e.__name__: e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, CatchmentError)}
_encoder = msgspec.msgpack.Encoder(enc_hook=lambda value: dict(value) if isinstance(value, Mapping) else str(value))


def write_request(**fields: Any) -> bytes:
    """Return a request of this catchment."""
    return _encoder.encode({"protocol": PROTOCOL, "software": VERSION, **fields})


def read_request(data: bytes, protocol: int = PROTOCOL) -> dict[str, Any]:
    """Return a request that a center which speaks up to a version of the protocol can answer."""
    if len(data) > MAX_REQUEST_BYTES:
        raise WireError(f"a request of {len(data)} bytes is refused", hint=f"at most {MAX_REQUEST_BYTES} are taken")
    request = _read_document(data)
    spoken = request.get("protocol")
    if not isinstance(spoken, int) or not OLDEST_PROTOCOL <= spoken <= protocol:
        raise WireError(
            f"catchment {request.get('software')!s:.40} speaks version {spoken!s:.20} of the control protocol, "
            f"this center (catchment {VERSION}) versions {OLDEST_PROTOCOL} to {protocol}",
            hint="upgrade the center first, then the sites one by one, each by one release at most",
        )
    return request


def write_answer(answer: Mapping[str, Any]) -> bytes:
    """Return an answer; one that is too large is an error that says so."""
    data = _encoder.encode({"answer": answer})
    if len(data) > MAX_ANSWER_BYTES:
        return write_error(
            WireError(
                f"the answer has {len(data)} bytes, and at most {MAX_ANSWER_BYTES} are sent",
                hint="ask for less: aggregate, filter, or add a LIMIT",
            )
        )
    return data


def write_error(error: CatchmentError) -> bytes:
    """Return an error of the far side as the answer."""
    told = {"kind": type(error).__name__, "message": error.message, "where": error.where, "hint": error.hint}
    return _encoder.encode({"error": told})


def read_answer(data: bytes, address: str) -> Mapping[str, Any]:
    """Return an answer; raise the error that stands in its place."""
    document = _read_document(data)
    error = document.get("error")
    if isinstance(error, dict):
        kind = _ERRORS.get(str(error.get("kind")), CatchmentError)
        raise kind(str(error.get("message")), where=_text(error.get("where")), hint=_text(error.get("hint")))
    answer = document.get("answer")
    if not isinstance(answer, dict):
        raise WireError("the answer cannot be read", where=address, hint="is a catchment center listening there?")
    return answer


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _read_document(data: bytes) -> dict[str, Any]:
    try:
        document = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"a document that cannot be read: {error!s:.100}") from error
    if not isinstance(document, dict):
        raise WireError("a document that is not a map")
    return document
