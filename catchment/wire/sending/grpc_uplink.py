"""The uplink to the inbox of another process, over gRPC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import grpc

from catchment.keys.tls import TlsSource
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.receiving.grpc_server import (
    BEARER,
    CONNECT,
    FOR_SINK,
    FORWARD,
    RECORDS_CONNECT,
    RECORDS_SEGMENT,
    SEGMENT,
    TOKEN_HEADER,
)
from catchment.wire.sending.uplink import REASONS, Greeting, Introduction, LinkError, RefusedError

MAX_ANSWER_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 15.0  # added to the time that the segment takes on the slowest supported link
SLOWEST_BYTES_PER_S = 16 * 1024
MAX_RECONNECT_MS = 2_000  # longest pause between two attempts of gRPC to connect
PING_MS = 10_000  # while a call waits, the far side is asked this often whether it is still there ...
PING_TIMEOUT_MS = 30_000  # ... and given up after this long; a slow link may have much to send before the question

# No sharing of a failed connection's back-off with a fresh uplink; bounds on both directions.
_CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.enable_http_proxy", 0),
]


class GrpcUplink:
    """An uplink to an `InboxServer`, at "host:port"; that of a light site `carries_records`.

    What it carries is for a sink, and for the center if none is named.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        tls: TlsSource | None = None,
        limits: WireLimits = DEFAULT_LIMITS,
        *,
        carries_records: bool = False,
        sink: str = "",
    ) -> None:
        self._address = address
        self._limits = limits
        self._metadata = ((TOKEN_HEADER, BEARER + token),) if token else ()
        self._channel = _open_channel(address, tls)
        to = f"{FOR_SINK}{sink}" if sink else ""
        connect = RECORDS_CONNECT if carries_records else CONNECT + to
        segment = RECORDS_SEGMENT if carries_records else SEGMENT + to
        called = {CONNECT: connect, SEGMENT: segment, FORWARD: FORWARD}
        self._calls = {kind: self._channel.unary_unary(call) for kind, call in called.items()}

    def connect(self, introduction: Introduction) -> Greeting:
        said = {name: value for name, value in asdict(introduction).items() if value}
        answer = self._call(CONNECT, json.dumps(said).encode(), CONNECT_TIMEOUT_S)
        return to_greeting(answer)

    def send(self, data: bytes) -> int:
        if len(data) > self._limits.frame_bytes:
            raise RefusedError(
                "oversized",
                f"a segment of {len(data)} bytes is not sent: at most {self._limits.frame_bytes} are taken",
                where=self._address,
            )
        answer = self._call(SEGMENT, data, _timeout_s(data))
        number: int = answer["number"]
        return number

    def forward(self, data: bytes) -> bytes:
        """Hand an envelope to the next site on its way; return what comes back."""
        return self._ask(FORWARD, data, _timeout_s(data))

    def close(self) -> None:
        self._channel.close()

    def _call(self, kind: str, data: bytes, timeout_s: float) -> dict[str, Any]:
        return read_answer(self._ask(kind, data, timeout_s), self._address)

    def _ask(self, kind: str, data: bytes, timeout_s: float) -> bytes:
        try:
            answer: bytes = self._calls[kind](data, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explain(error) from error
        except ValueError as error:  # the channel was closed meanwhile
            raise LinkError(f"no answer: {error}", where=self._address) from error
        return answer

    def _explain(self, error: Any) -> LinkError | RefusedError:
        code = error.code()
        details = error.details()
        if code == grpc.StatusCode.UNAUTHENTICATED:
            return RefusedError(
                "unauthenticated",
                f"the far side does not know this site: {details}",
                where=self._address,
                hint="compare the site's token or certificate",
            )
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return RefusedError("oversized", f"the far side takes no segment of this size: {details}")
        return LinkError(f"no answer: {details}", where=self._address)


def _open_channel(address: str, tls: TlsSource | None) -> Any:
    if tls is None:
        return grpc.insecure_channel(address, options=_CHANNEL)
    found = tls.read()
    credentials = grpc.ssl_channel_credentials(found.authority, found.key, found.certificate)
    return grpc.secure_channel(address, credentials, options=_CHANNEL)


def _timeout_s(data: bytes) -> float:
    return SEND_TIMEOUT_S + len(data) / SLOWEST_BYTES_PER_S


def to_greeting(answer: Mapping[str, Any]) -> Greeting:
    """Return the greeting that an answer holds."""
    versions = answer.get("versions")
    if versions is None:
        return Greeting(answer["number"], answer.get("chain"))
    return Greeting(answer["number"], answer.get("chain"), tuple(versions), answer.get("brief") is True)


def read_answer(text: bytes, address: str) -> dict[str, Any]:
    """Return an answer that has a number, and maybe the text of a chain and a list of versions; raise a refusal."""
    try:
        answer: dict[str, Any] = json.loads(text)
        if "refused" in answer and answer["refused"] in REASONS:
            raise RefusedError(answer["refused"], answer["message"], where=address, hint=answer["hint"])
        chain = answer.get("chain")
        if not isinstance(answer["number"], int) or not isinstance(chain, str | None):
            raise TypeError("no number, or a chain that is no text")
        if not all(isinstance(version, int) for version in answer.get("versions", [])):
            raise TypeError("a version that is no number")
        return answer
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LinkError(f"an answer that cannot be read: {text!r:.200}", where=address) from error
