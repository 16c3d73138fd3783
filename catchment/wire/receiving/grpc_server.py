"""The server of an inbox: every segment is one gRPC call with opaque bytes, answered by its number or a refusal.

Plain gRPC, not Arrow Flight: a segment is many small tables and facts under one checksum, it is stored as it came, and
its acknowledgement means that it is on disk. Flight's streams of record batches would be parsed and encoded again on
the way, and its server in Python bounds no message and cannot change its certificate.

Deny by default: a call without a valid token is ended before its content is received; what is received is bounded
before memory is allocated for it; without TLS the server listens on loopback only; with TLS a site must show a
certificate or a token; and a site may write only under the name that it showed. Certificates and tokens are read again
when their files are replaced: tokens with the next call, certificates with the next connection.

A site that forwards for others (`wire.ways.forwarder`) is called in the same way, and proves who it is to the next
site as its own sender does.

Other services can stand beside the inbox, at the same address and with the same proofs (`CallService`). They are given
who calls and with which role; only sites reach the inbox.
"""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import grpc

from catchment.errors import CatchmentError, WireError
from catchment.keys.tls import Tls, TlsSource
from catchment.keys.tokens import SITE, Caller, TokenCheck, TokenTable
from catchment.project.option_kinds import join_address
from catchment.wire.frames.limits import WireLimits
from catchment.wire.receiving.peer_quota import PeerQuotas
from catchment.wire.receiving.recent_tables import RecentTables
from catchment.wire.sending.uplink import Greeting, Introduction, RefusedError

CONNECT = "/catchment.Inbox/Connect"  # the call that introduces a sender
SEGMENT = "/catchment.Inbox/Segment"  # the call that carries one segment
FORWARD = "/catchment.Inbox/Forward"  # the call that carries either of them over forwarders
RECORDS_CONNECT = "/catchment.Records/Connect"  # likewise, of a light site that sends records
RECORDS_SEGMENT = "/catchment.Records/Segment"
FOR_SINK = "@"  # stands between a call of an inbox and the sink that it is for, if that is not the center
TOKEN_HEADER = "authorization"
BEARER = "Bearer "
MAX_REQUEST_BYTES = 8192  # largest introduction of a sender
MAX_ENVELOPE_BYTES = 32 * 1024  # what may be around a segment that is forwarded: its way, a certificate, a seal
WORKERS = 16  # calls that are answered at once
MAX_CALLS = 64  # calls that are under way at once; further ones fail and are sent again
MAX_SERVICE_CALLS = 8  # of the workers, those that calls of other services may take; further ones fail
STOP_GRACE_S = 10.0  # how long calls under way are waited for at the end
MIN_PING_MS = 5_000  # senders that ask more often whether the link still holds are cut off

_SAID = {field.name for field in fields(Introduction)}  # what is known of an introduction; a later release may say more


class Receiver(Protocol):
    """What takes segments and counts what it refuses: an inbox, or a site that has none (`NoInbox`)."""

    limits: WireLimits

    def greet(self, introduction: Introduction, *, peer: str | None = None) -> Greeting: ...

    def accept(self, data: bytes, *, peer: str | None = None) -> int: ...

    def refuse(self, reason: str, message: str, hint: str | None = None, origin: str | None = None) -> RefusedError: ...


NO_INBOXES: Mapping[str, Receiver] = MappingProxyType({})


class EnvelopeAnswerer(Protocol):
    """What answers envelopes: it hands them on, or opens those that are for this site."""

    def answer(self, data: bytes, peer: str | None, take: TakeEnvelope) -> bytes: ...


TakeEnvelope = Callable[[str, bytes, str], dict[str, Any]]  # what a call with a body of an origin is answered


class CallService(Protocol):
    """A service beside the inbox: it answers every call whose name begins with its prefix.

    Calls in `streams` are answered by several messages. An error that it raises ends the call with its text.
    """

    prefix: str
    streams: frozenset[str]

    def answer(self, call: str, data: bytes, caller: Caller) -> bytes | Iterator[bytes]: ...


class InboxServer:
    """Listen for the senders of other sites and give what they send to an inbox.

    With TLS, callers are asked for a certificate if `client_certificates` is set; if it is not given, they are if there
    is an authority and there are no tokens. Each light site whose records are evaluated here has an inbox of its own,
    in `record_inboxes`, which may change meanwhile; and so have the sinks beside the center for which something lands
    here, in `sink_inboxes`.
    """

    def __init__(
        self,
        inbox: Receiver,
        host: str,
        port: int,
        tls: TlsSource | None = None,
        tokens: TokenCheck | Mapping[str, str] | None = None,
        *,
        client_certificates: bool | None = None,
        services: Sequence[CallService] = (),
        forwarder: EnvelopeAnswerer | None = None,
        record_inboxes: Mapping[str, Receiver] = NO_INBOXES,
        sink_inboxes: Mapping[str, Receiver] = NO_INBOXES,
    ) -> None:
        self._sink_inboxes = sink_inboxes
        self._forwarder = forwarder
        self._services = tuple(services)
        self._record_inboxes = record_inboxes
        self._tokens = TokenTable.of(tokens) if isinstance(tokens, Mapping) else tokens
        found = None if tls is None else tls.read()
        has_authority = found is not None and found.authority is not None
        asked = has_authority and self._tokens is None if client_certificates is None else client_certificates
        _check_safety(host, found, asked, self._tokens)
        self._inbox = inbox
        self._host = host
        self._port = port
        self._tls = tls
        self._client_certificates = asked
        self._server: Any = None

    @property
    def port(self) -> int:
        """The port it listens on; the one that the system chose if 0 was asked for."""
        return self._port

    def start(self) -> None:
        assert self._server is None, "started twice"
        calls = _Calls(
            self._inbox,
            self._tokens,
            self._client_certificates,
            self._services,
            self._forwarder,
            self._record_inboxes,
            self._sink_inboxes,
        )
        server = grpc.server(
            futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="inbox"),
            handlers=(calls,),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._inbox.limits.frame_bytes + MAX_ENVELOPE_BYTES),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_MS),
            ],
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        address = join_address(self._host, self._port)
        try:
            if self._tls is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, _make_credentials(self._tls, self._client_certificates))
            server.start()
        except RuntimeError as error:
            raise WireError(
                f"cannot listen: {error}",
                where=address,
                hint="choose another port, or end the process that uses it",
            ) from error
        self._server = server

    def close(self) -> None:
        """Stop listening, after the calls under way have been answered."""
        if self._server is not None:
            self._server.stop(STOP_GRACE_S).wait()
            self._server = None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _make_credentials(tls: TlsSource, client_certificates: bool) -> Any:
    """Return credentials that are looked up anew for every connection."""
    used: list[Tls] = [tls.read()]

    def configure(found: Tls) -> Any:
        authority = found.authority if client_certificates else None
        return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], authority)

    def fetch() -> Any:
        found = tls.read()
        if found == used[0]:
            return None
        used[0] = found
        return configure(found)

    return grpc.dynamic_ssl_server_credentials(configure(used[0]), fetch, client_certificates)


class _Calls(grpc.GenericRpcHandler):
    """The two calls of an inbox, each answered by one JSON document, and those of the services beside it."""

    def __init__(
        self,
        inbox: Receiver,
        tokens: TokenCheck | None,
        client_certificates: bool,
        services: Sequence[CallService],
        forwarder: EnvelopeAnswerer | None,
        record_inboxes: Mapping[str, Receiver],
        sink_inboxes: Mapping[str, Receiver],
    ) -> None:
        self._sink_inboxes = sink_inboxes
        self._forwarder = forwarder
        self._inbox = inbox
        self._tokens = tokens
        self._client_certificates = client_certificates
        self._services = services
        self._record_inboxes = record_inboxes
        self._service_calls = threading.BoundedSemaphore(MAX_SERVICE_CALLS)
        self._quotas = PeerQuotas(inbox.limits)
        self._recent = RecentTables(may_take=partial(self._quotas.take, calls=0))

    def service(self, details: Any) -> Any:
        """Return what handles a call, before its content is received."""
        given = dict(details.invocation_metadata).get(TOKEN_HEADER, "")
        caller = self._tokens.find_caller(given.removeprefix(BEARER)) if self._tokens else None
        if self._tokens is not None and caller is None:
            self._inbox.refuse("unauthenticated", "no known token")
            return _end_call(grpc.StatusCode.UNAUTHENTICATED, "no token, or one that is not known here")
        for service in self._services:
            if details.method.startswith(service.prefix):
                return self._service_handler(service, details.method, caller)
        if caller is not None and caller.role != SITE:
            self._inbox.refuse("unauthenticated", f"{caller.name!r} is no site", origin=caller.name)
            return _end_call(grpc.StatusCode.UNAUTHENTICATED, f"{caller.name!r} has the role {caller.role}, not site")
        site = None if caller is None else caller.name
        call, _, sink = details.method.partition(FOR_SINK)
        if call == SEGMENT:
            return self._handler(site, partial(self._take, sink=sink))
        if call == CONNECT:
            return self._handler(site, partial(self._greet, sink=sink))
        if details.method == FORWARD and self._forwarder is not None:
            return self._handler(site, self._forward)
        if details.method == RECORDS_SEGMENT:
            return self._handler(site, self._take_records)
        if details.method == RECORDS_CONNECT:
            return self._handler(site, self._greet_records)
        self._inbox.refuse("corrupt", f"no such call: {details.method!r:.80}")
        return _end_call(grpc.StatusCode.UNIMPLEMENTED, "no such call")

    def _handler(self, site: str | None, answer: Callable[[bytes, str | None], dict[str, Any] | bytes]) -> Any:
        def handle(data: bytes, context: Any) -> bytes:
            try:
                peer = self._prove(site, context)
                self._check_quota(peer or context.peer(), len(data))
                document = answer(data, peer)
            except RefusedError as error:
                document = _describe_refusal(error)
            return document if isinstance(document, bytes) else json.dumps(document).encode()

        return grpc.unary_unary_rpc_method_handler(handle)

    def _service_handler(self, service: CallService, call: str, caller: Caller | None) -> Any:
        def ask(data: bytes, context: Any) -> Iterator[bytes]:
            if not self._service_calls.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once; ask again")
            try:
                peer = self._prove(None if caller is None else caller.name, context)
                self._check_quota(peer or context.peer(), len(data))
                answer = service.answer(call, data, caller or Caller(peer or ""))
                yield from [answer] if isinstance(answer, bytes) else answer
            except RefusedError as error:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, error.message)
            except CatchmentError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            finally:
                self._service_calls.release()

        if call in service.streams:
            return grpc.unary_stream_rpc_method_handler(ask)
        return grpc.unary_unary_rpc_method_handler(lambda data, context: b"".join(ask(data, context)))

    def _take(self, data: bytes, peer: str | None, sink: str = "") -> dict[str, Any]:
        return {"number": self._recent.accept(self._inbox_for(sink, peer), data, peer=peer)}

    def _inbox_for(self, sink: str, peer: str | None) -> Receiver:
        """Return the inbox for what goes to a sink; to the center, if none is named."""
        if sink and sink not in self._sink_inboxes:
            raise self._inbox.refuse(
                "unfit",
                f"nothing lands here for the sink {sink!r:.80}",
                hint="run every site from the same views; a sink that was just named is taken when this site follows",
                origin=peer,
            )
        return self._sink_inboxes.get(sink, self._inbox)

    def _take_records(self, data: bytes, peer: str | None) -> dict[str, Any]:
        return {"number": self._record_inbox(peer).accept(data, peer=peer)}

    def _record_inbox(self, peer: str | None) -> Receiver:
        """Return the inbox for the records of a light site."""
        if peer is None or peer not in self._record_inboxes:
            raise self._inbox.refuse(
                "wrong_site",
                f"the records of {peer!r} are not evaluated here",
                hint="run every site from the same catchment.toml: compute and evaluate_at say where they are",
                origin=peer,
            )
        return self._record_inboxes[peer]

    def _forward(self, data: bytes, peer: str | None) -> bytes:
        assert self._forwarder is not None
        try:
            return self._forwarder.answer(data, peer, self._take_forwarded)
        except RefusedError as error:
            if error.retryable:  # nothing that the caller has done
                raise
            raise self._inbox.refuse(error.reason, error.message, error.hint, peer) from error

    def _take_forwarded(self, call: str, body: bytes, origin: str) -> dict[str, Any]:
        """Answer a call of an origin that came over forwarders, as if the origin had called itself."""
        try:
            return self._greet(body, origin) if call == CONNECT else self._take(body, origin)
        except RefusedError as error:
            return _describe_refusal(error)

    def _greet(self, data: bytes, peer: str | None, sink: str = "") -> dict[str, Any]:
        return {**self._introduce(self._inbox_for(sink, peer), data, peer), "brief": True}

    def _greet_records(self, data: bytes, peer: str | None) -> dict[str, Any]:
        return self._introduce(self._record_inbox(peer), data, peer)

    def _introduce(self, inbox: Receiver, data: bytes, peer: str | None) -> dict[str, Any]:
        try:
            if len(data) > MAX_REQUEST_BYTES:
                raise ValueError(f"{len(data)} bytes")
            given = json.loads(data)
            introduction = Introduction(**{name: str(value) for name, value in given.items() if name in _SAID})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise inbox.refuse("corrupt", f"an introduction that cannot be read: {error}", origin=peer) from error
        greeting = inbox.greet(introduction, peer=peer)
        return {"number": greeting.expected, "chain": greeting.chain, "versions": greeting.versions}

    def _prove(self, token_site: str | None, context: Any) -> str | None:
        """Return the name that the caller has proved; both proofs must agree where both are asked for."""
        if not self._client_certificates:
            return token_site
        named = next(iter(context.peer_identities() or ()), b"").decode()
        if self._tokens is not None and named != token_site:
            raise self._inbox.refuse(
                "wrong_site", f"the certificate says {named!r}, the token {token_site!r}", origin=named
            )
        return named

    def _check_quota(self, peer: str, size_bytes: int) -> None:
        if not self._quotas.take(peer, size_bytes):
            raise self._inbox.refuse("too_fast", f"{peer!r} sends more than its share; send again later", origin=peer)


def _describe_refusal(error: RefusedError) -> dict[str, Any]:
    return {"refused": error.reason, "message": error.message, "hint": error.hint}


def _end_call(code: Any, message: str) -> Any:
    """Return a handler that ends a call at once; of a stream that nobody reads, nothing is received."""

    def end(requests: Any, context: Any) -> bytes:
        context.abort(code, message)
        return b""

    return grpc.stream_unary_rpc_method_handler(end)


def _check_safety(host: str, tls: Tls | None, client_certificates: bool, tokens: TokenCheck | None) -> None:
    if tls is None:
        if not is_loopback(host):
            raise WireError(
                f"listening on {host!r} without TLS would let anyone read and write",
                hint="make keys with `catchment keys init` and set keys in [security], or listen on 127.0.0.1",
            )
        return
    if tls.certificate is None:
        raise WireError("a server with TLS needs a certificate and its key")
    if client_certificates and tls.authority is None:
        raise WireError("client certificates need the authority that signs them", hint="set tls_ca")
    if not client_certificates and tokens is None:
        raise WireError(
            "TLS alone does not tell which site is calling",
            hint="give an authority for client certificates, or a token for each site",
        )
