"""Segments over Arrow Flight: an inbox that listens, and the uplink to it.

Flight is used as an authenticated remote call: every segment is one `do_action` with opaque bytes, answered by its
number or by a refusal with its reason. Not `DoPut`: a segment is many small tables and facts under one checksum, it is
stored as it came, and its acknowledgement means that it is on disk; a stream of record batches would be parsed and
re-encoded on the way and has no unit to acknowledge. What Flight gives is gRPC: TLS, certificates, deadlines, one kept
connection on which the calls of several lanes overlap, and notice of a half-open link.

Deny by default: a call is authenticated before its content is read; without TLS the server listens on loopback only;
with TLS a site must show a certificate or a token; and a site may write only under the name that it showed.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from catchment.errors import WireError
from catchment.wire.inbox import Inbox
from catchment.wire.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.uplink import REASONS, LinkError, RefusedError

CONNECT = "catchment.connect"  # the action that introduces a sender
SEGMENT = "catchment.segment"  # the action that carries one segment
MAX_REQUEST_BYTES = 4096  # largest introduction of a sender
MAX_ANSWER_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 15.0  # added to the time that the segment takes on the slowest supported link
SLOWEST_BYTES_PER_S = 16 * 1024
MAX_RECONNECT_MS = 2_000  # longest pause between two attempts of gRPC to connect

_TOKEN_HEADER = "authorization"
_MIDDLEWARE = "site"
# No sharing of a failed connection's back-off with a fresh uplink; bounds on both directions.
_CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
]


@dataclass(frozen=True, slots=True)
class Tls:
    """The PEM texts of one end of a link: its certificate and key, and the authority that signs the other end's.

    A server with an authority asks every site for a certificate (mutual TLS); the first alternative name of that
    certificate, or its common name if it has none, is the site's name. A client without an authority trusts the
    system's.
    """

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    authority: bytes | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise WireError("a certificate needs its key, and a key its certificate")

    @classmethod
    def from_files(cls, certificate: Path | None = None, key: Path | None = None, authority: Path | None = None) -> Tls:
        return cls(*(_read_pem(path) if path else None for path in (certificate, key, authority)))


def _read_pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WireError(f"cannot read the PEM file: {error.strerror}", where=str(path)) from error


class InboxServer:
    """Listen for the senders of other sites and give what they send to an inbox."""

    def __init__(
        self,
        inbox: Inbox,
        host: str,
        port: int,
        tls: Tls | None = None,
        tokens: Mapping[str, str] | None = None,
    ) -> None:
        _check_safety(host, tls, tokens)
        self._inbox = inbox
        self._host = host
        self._port = port
        self._tls = tls
        self._tokens = {site: token.encode() for site, token in (tokens or {}).items()}
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on; the one that the system chose if 0 was asked for."""
        return int(self._server.port) if self._server else self._port

    def start(self) -> None:
        assert self._server is None, "started twice"
        try:
            self._server = _Server(self._inbox, self._host, self._port, self._tls, self._tokens)
        except (pa.ArrowException, OSError) as error:
            raise WireError(
                f"cannot listen: {error}",
                where=f"{self._host}:{self._port}",
                hint="choose another port, or end the process that uses it",
            ) from error

    def close(self) -> None:
        """Stop listening, after the calls under way have been answered."""
        if self._server:
            self._port = self.port
            self._server.shutdown()
            self._server = None


class FlightUplink:
    """An uplink to an `InboxServer`, at "host:port"."""

    def __init__(
        self, address: str, token: str | None = None, tls: Tls | None = None, limits: WireLimits = DEFAULT_LIMITS
    ) -> None:
        self._address = address
        self._limits = limits
        self._headers = [(_TOKEN_HEADER.encode(), f"Bearer {token}".encode())] if token else []
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {"tls_root_certs": tls.authority, "cert_chain": tls.certificate, "private_key": tls.key}
        scheme = "grpc+tls" if tls else "grpc+tcp"
        self._client = flight.FlightClient(f"{scheme}://{address}", generic_options=_CHANNEL, **secured)

    def connect(self, origin: str, epoch: str) -> int:
        return self._call(CONNECT, json.dumps([origin, epoch]).encode(), CONNECT_TIMEOUT_S)

    def send(self, data: bytes) -> int:
        if len(data) > self._limits.frame_bytes:
            raise RefusedError(
                "oversized",
                f"a segment of {len(data)} bytes is not sent: at most {self._limits.frame_bytes} are taken",
                where=self._address,
            )
        return self._call(SEGMENT, data, SEND_TIMEOUT_S + len(data) / SLOWEST_BYTES_PER_S)

    def close(self) -> None:
        self._client.close()

    def _call(self, kind: str, data: bytes, timeout_s: float) -> int:
        options = flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)
        try:
            answers = [bytes(r.body) for r in self._client.do_action(flight.Action(kind, data), options)]
        except flight.FlightUnauthenticatedError as error:
            raise RefusedError(
                "unauthenticated",
                f"the far side does not know this site: {error}",
                where=self._address,
                hint="compare the site's token or certificate",
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise LinkError(f"no answer: {error}", where=self._address) from error
        return _read_answer(answers, self._address)


def _read_answer(answers: list[bytes], address: str) -> int:
    try:
        (text,) = answers
        answer = json.loads(text)
        if "refused" in answer and answer["refused"] in REASONS:
            raise RefusedError(answer["refused"], answer["message"], where=address, hint=answer["hint"])
        return int(answer["number"])
    except (ValueError, KeyError, TypeError) as error:
        raise LinkError(f"an answer that cannot be read: {answers!r:.200}", where=address) from error


class _Server(flight.FlightServerBase):
    """The Flight service: two actions, each answered by one JSON document."""

    def __init__(self, inbox: Inbox, host: str, port: int, tls: Tls | None, tokens: Mapping[str, bytes]) -> None:
        self._inbox = inbox
        self._tokens = tokens
        self._mutual = tls is not None and tls.authority is not None
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {
                "tls_certificates": [(tls.certificate, tls.key)],
                "verify_client": self._mutual,
                "root_certificates": tls.authority,
            }
        scheme = "grpc+tls" if tls else "grpc+tcp"
        super().__init__(f"{scheme}://{host}:{port}", middleware={_MIDDLEWARE: _TokenCheck(inbox, tokens)}, **secured)

    def do_action(self, context: Any, action: Any) -> list[Any]:
        try:
            answer: dict[str, Any] = {"number": self._answer(action, self._peer(context))}
        except RefusedError as error:
            answer = {"refused": error.reason, "message": error.message, "hint": error.hint}
        return [flight.Result(json.dumps(answer).encode())]

    def _answer(self, action: Any, peer: str | None) -> int:
        if action.type == SEGMENT:
            return self._inbox.accept(action.body.to_pybytes(), peer=peer)
        if action.type == CONNECT and action.body.size <= MAX_REQUEST_BYTES:
            return self._inbox.greet(*self._introduction(action.body.to_pybytes()), peer=peer)
        raise self._inbox.refuse("corrupt", f"no such request: {action.type!r:.80}, {action.body.size} bytes")

    def _introduction(self, text: bytes) -> tuple[str, str]:
        try:
            origin, epoch = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._inbox.refuse("corrupt", f"an introduction that cannot be read: {error}") from error
        return str(origin), str(epoch)

    def _peer(self, context: Any) -> str | None:
        """Return the name that the caller has proved; both proofs must agree where both are asked for."""
        proved = []
        if self._mutual:
            proved.append(context.peer_identity().decode())
        if self._tokens:
            proved.append(context.get_middleware(_MIDDLEWARE).site)
        if len(set(proved)) > 1:
            raise self._inbox.refuse("wrong_site", f"the certificate says {proved[0]!r}, the token {proved[1]!r}")
        return proved[0] if proved else None


class _Caller(flight.ServerMiddleware):
    def __init__(self, site: str | None) -> None:
        self.site = site


class _TokenCheck(flight.ServerMiddlewareFactory):
    """Refuse a call without a known token before its content is read."""

    def __init__(self, inbox: Inbox, tokens: Mapping[str, bytes]) -> None:
        self._inbox = inbox
        self._tokens = tokens

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Caller:
        if not self._tokens:
            return _Caller(None)
        given = (headers.get(_TOKEN_HEADER) or [""])[0].removeprefix("Bearer ").encode()
        # Every token is compared, each in constant time, so that the time taken tells nothing.
        matching = [site for site, token in self._tokens.items() if hmac.compare_digest(given, token)]
        if not matching:
            self._inbox.refuse("unauthenticated", "no known token")
            raise flight.FlightUnauthenticatedError("no token, or one that is not known here")
        return _Caller(matching[0])


def _check_safety(host: str, tls: Tls | None, tokens: Mapping[str, str] | None) -> None:
    if tokens is not None and (not tokens or len(set(tokens.values())) < len(tokens) or not all(tokens.values())):
        raise WireError("every site needs a token of its own, and none may be empty")
    if tls is None:
        if not _is_loopback(host):
            raise WireError(
                f"listening on {host!r} without TLS would let anyone read and write",
                hint="give a certificate and key, or listen on 127.0.0.1",
            )
        return
    if tls.certificate is None:
        raise WireError("a server with TLS needs a certificate and its key")
    if tls.authority is None and tokens is None:
        raise WireError(
            "TLS alone does not tell which site is calling",
            hint="give an authority for client certificates, or a token for each site",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
