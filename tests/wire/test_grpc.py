"""Real gRPC over loopback: restarts, wrong credentials, wrong names, certificates, sizes, silence."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
import trustme

from catchment.errors import ConfigError, WireError
from catchment.keys.tls import Tls, TlsFiles, TlsSource
from catchment.keys.tokens import TokenCheck
from catchment.wire.frames.codec import encode_segment
from catchment.wire.frames.limits import WireLimits
from catchment.wire.messages import Segment
from catchment.wire.receiving import grpc_server
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending import grpc_uplink
from catchment.wire.sending import sender as sender_module
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.uplink import Introduction, LinkError, RefusedError
from tests.worlds.waiting import PATIENCE_S
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import landed_segments

HOST = "127.0.0.1"
TOKENS = {"eu": "eu-secret", "us": "us-secret"}

Serve = Callable[..., InboxServer]
Call = Callable[..., GrpcUplink]


def frame(sequence: int, origin: str = "eu") -> bytes:
    return encode_segment(Segment(origin, "life", sequence, tuple(some_messages(sequence)))).data


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "in", WireLimits(frame_bytes=100_000))


@pytest.fixture
def serve(inbox: Inbox) -> Iterator[Serve]:
    servers: list[InboxServer] = []

    def start(
        port: int = 0,
        tls: TlsSource | None = None,
        tokens: dict[str, str] | TokenCheck | None = None,
        client_certificates: bool | None = None,
        host: str = HOST,
    ) -> InboxServer:
        servers.append(InboxServer(inbox, host, port, tls, tokens, client_certificates=client_certificates))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def call() -> Iterator[Call]:
    uplinks: list[GrpcUplink] = []

    def open_uplink(server: InboxServer, token: str | None = None, tls: Tls | None = None) -> GrpcUplink:
        uplinks.append(GrpcUplink(f"{HOST}:{server.port}", token, tls))
        return uplinks[-1]

    yield open_uplink
    for uplink in uplinks:
        uplink.close()


def refusal(act: Callable[[], object]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        act()
    return caught.value


def test_segments_land_and_the_answer_is_their_number(inbox: Inbox, serve: Serve, call: Call) -> None:
    uplink = call(serve())
    assert uplink.connect(Introduction("eu", "life")).expected == 0
    assert [uplink.send(frame(n)) for n in (0, 2, 0)] == [0, 2, 0]
    assert uplink.connect(Introduction("eu", "life")).expected == 1
    assert [s.sequence for s in landed_segments(inbox)] == [0, 2]


def test_a_refusal_arrives_with_its_reason_message_and_hint(inbox: Inbox, serve: Serve, call: Call) -> None:
    uplink = call(serve())
    uplink.send(frame(0))
    other = encode_segment(Segment("eu", "another", 1, ())).data
    error = refusal(lambda: uplink.send(other))
    assert (error.reason, error.retryable) == ("wrong_epoch", False)
    assert "replaced" in error.message
    assert "life" not in str(error), "whoever learns the epoch can go on with the numbers of the site"
    assert "catchment sites replace eu" in str(error.hint)
    assert refusal(lambda: uplink.send(b"junk")).reason == "corrupt"
    assert uplink.send(frame(1)) == 1


def test_an_oversized_segment_is_stopped_on_either_side(inbox: Inbox, serve: Serve, call: Call) -> None:
    server = serve()
    big = b"x" * 100_001
    assert refusal(lambda: call(server).send(big)).reason == "oversized"
    careful = GrpcUplink(f"{HOST}:{server.port}", limits=WireLimits(frame_bytes=100_000))
    assert refusal(lambda: careful.send(big)).reason == "oversized"
    careful.close()
    assert inbox.refused == {"oversized": 1}


def test_a_sender_survives_restarts_of_the_server_in_the_middle(tmp_path: Path, inbox: Inbox, serve: Serve) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    server = serve()
    port = server.port
    sender = Sender(outbox, lambda: GrpcUplink(f"{HOST}:{port}"))
    sender.start()
    for number in range(60):
        outbox.append(number, some_messages(number))
        sender.notify()
        if number % 20 == 10:
            server.close()
            server = serve(port)
    assert sender.wait_until_empty(PATIENCE_S)
    sender.stop()
    sender.raise_failure()
    assert sorted(s.sequence for s in landed_segments(inbox)) == list(range(60))


def test_nobody_there_is_a_link_error(serve: Serve, call: Call) -> None:
    server = serve()
    uplink = call(server)
    server.close()
    with pytest.raises(LinkError):
        uplink.connect(Introduction("eu", "life"))


def test_a_far_side_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_uplink, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        uplink = GrpcUplink(f"{HOST}:{silent.getsockname()[1]}")
        with pytest.raises(LinkError):
            uplink.connect(Introduction("eu", "life"))
        uplink.close()


def test_an_answer_that_makes_no_sense_is_a_link_error() -> None:
    class Strange(grpc.GenericRpcHandler):
        def service(self, details: object) -> object:
            return grpc.unary_unary_rpc_method_handler(
                lambda data, context: b'{"refused": "bad mood", "message": "", "hint": null}'
            )

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Strange(),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    uplink = GrpcUplink(f"{HOST}:{port}")
    with pytest.raises(LinkError, match="cannot be read"):
        uplink.connect(Introduction("eu", "life"))
    uplink.close()
    server.stop(None).wait()


def test_requests_that_are_not_known_are_refused_and_counted(inbox: Inbox, serve: Serve) -> None:
    with grpc.insecure_channel(f"{HOST}:{serve().port}") as channel:
        for body in (b"{", b"[1]" * 5000):
            assert b"corrupt" in channel.unary_unary(grpc_server.CONNECT)(body)
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            channel.unary_unary("/another/Call")(b"")
    assert inbox.refused == {"corrupt": 3}


def test_several_threads_may_send_at_once(inbox: Inbox, serve: Serve, call: Call) -> None:
    server = serve()

    def send(first: int) -> None:
        uplink = call(server)
        for number in range(first, 40, 4):
            assert uplink.send(frame(number)) == number

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inbox.lowest_missing("eu") == 40


# ---- who may write


def test_a_token_names_the_site_and_gives_no_other_name(inbox: Inbox, serve: Serve, call: Call) -> None:
    server = serve(tokens=TOKENS)
    eu = call(server, "eu-secret")
    assert eu.connect(Introduction("eu", "life")).expected == 0
    assert eu.send(frame(0)) == 0
    assert refusal(lambda: eu.send(frame(0, origin="us"))).reason == "wrong_site"
    assert refusal(lambda: eu.connect(Introduction("us", "life"))).reason == "wrong_site"
    assert call(server, "us-secret").send(frame(0, origin="us")) == 0


@pytest.mark.parametrize("token", [None, "eu-secret2", "eu-secre", "", "Bearer eu-secret"])
def test_a_wrong_token_is_refused_and_counted(inbox: Inbox, serve: Serve, call: Call, token: str | None) -> None:
    error = refusal(lambda: call(serve(tokens=TOKENS), token).send(frame(0)))
    assert (error.reason, error.retryable) == ("unauthenticated", False)
    assert inbox.refused == {"unauthenticated": 1}
    assert inbox.last_position == -1


class Certificates:
    """A certificate authority, and what it signs."""

    def __init__(self) -> None:
        self.ca = trustme.CA()
        self.authority = self.ca.cert_pem.bytes()

    def issue(self, *names: str) -> Tls:
        made = self.ca.issue_cert(*names)
        chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
        return Tls(chain, made.private_key_pem.bytes(), self.authority)


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return Certificates()


def test_with_mutual_tls_the_certificate_names_the_site(
    inbox: Inbox, serve: Serve, call: Call, certificates: Certificates
) -> None:
    server = serve(tls=certificates.issue(HOST))
    eu = call(server, tls=certificates.issue("eu"))
    assert eu.connect(Introduction("eu", "life")).expected == 0
    assert eu.send(frame(0)) == 0
    assert refusal(lambda: eu.send(frame(0, origin="us"))).reason == "wrong_site"


def test_without_a_certificate_of_the_right_authority_there_is_no_connection(
    inbox: Inbox, serve: Serve, call: Call, certificates: Certificates
) -> None:
    server = serve(tls=certificates.issue(HOST))
    stranger = Certificates().issue("eu")
    for tls in (
        None,
        Tls(authority=certificates.authority),
        Tls(stranger.certificate, stranger.key, certificates.authority),
    ):
        with pytest.raises(LinkError):
            call(server, tls=tls).send(frame(0))
    assert inbox.last_position == -1


def test_a_site_does_not_talk_to_a_server_of_another_authority(
    serve: Serve, call: Call, certificates: Certificates
) -> None:
    server = serve(tls=certificates.issue(HOST))
    eu = certificates.issue("eu")
    with pytest.raises(LinkError):
        call(server, tls=Tls(eu.certificate, eu.key, Certificates().authority)).connect(Introduction("eu", "life"))


def test_with_tls_and_tokens_both_must_name_the_same_site(
    inbox: Inbox, serve: Serve, call: Call, certificates: Certificates
) -> None:
    server = serve(tls=certificates.issue(HOST), tokens=TOKENS, client_certificates=True)
    eu = certificates.issue("eu")
    assert call(server, "eu-secret", eu).send(frame(0)) == 0
    assert refusal(lambda: call(server, "us-secret", eu).send(frame(0, "us"))).reason == "wrong_site"
    assert refusal(lambda: call(server, None, eu).send(frame(1))).reason == "unauthenticated"


def test_tls_with_tokens_needs_no_client_certificate(serve: Serve, call: Call, certificates: Certificates) -> None:
    """A relay has an authority, to check the server it sends to, and tokens, to check those that send to it."""
    server = serve(tls=certificates.issue(HOST), tokens=TOKENS)
    assert call(server, "eu-secret", Tls(authority=certificates.authority)).send(frame(0)) == 0


def test_a_token_that_is_unknown_is_refused_before_the_content_is_received(
    inbox: Inbox, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[object] = []
    monkeypatch.setattr(inbox, "accept", lambda data, peer: received.append(peer))
    with grpc.insecure_channel(f"{HOST}:{serve(tokens=TOKENS).port}") as channel:
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            channel.unary_unary(grpc_server.SEGMENT)(b"x" * 3_000_000)  # thirty times what is taken of anyone
        with pytest.raises(grpc.RpcError, match="larger than max"):
            channel.unary_unary(grpc_server.SEGMENT)(
                b"x" * 3_000_000, metadata=((grpc_server.TOKEN_HEADER, "Bearer eu-secret"),)
            )
    assert received == []


def test_a_segment_beyond_what_the_far_side_receives_is_a_refusal(serve: Serve, call: Call) -> None:
    assert refusal(lambda: call(serve(tokens=TOKENS), "eu-secret").send(b"x" * 3_000_000)).reason == "oversized"


def test_a_peer_that_sends_too_much_is_refused_for_the_time_being(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = WireLimits(peer_calls_per_s=1)
    server = InboxServer(Inbox(tmp_path / "few", limits), HOST, 0, None, TOKENS)
    server.start()
    try:
        eu, us = call(server, "eu-secret"), call(server, "us-secret")
        assert [eu.send(frame(n)) for n in range(4)] == [0, 1, 2, 3]
        error = refusal(lambda: [eu.send(frame(n)) for n in range(4, 40)])
        assert (error.reason, error.retryable) == ("too_fast", True)
        assert us.send(frame(0, origin="us")) == 0
    finally:
        server.close()


def write_files(folder: Path, tls: Tls) -> TlsFiles:
    for name, content in (("c", tls.certificate), ("k", tls.key), ("a", tls.authority)):
        (folder / name).write_bytes(content or b"")
        (folder / name).chmod(0o600)
    return TlsFiles(folder / "c", folder / "k", folder / "a")


def test_certificates_are_read_from_files(tmp_path: Path, certificates: Certificates) -> None:
    tls = certificates.issue("eu")
    assert write_files(tmp_path, tls).read() == tls
    assert b"KEY" in (tls.key or b"")
    assert "KEY" not in repr(tls)
    with pytest.raises(ConfigError, match="cannot read"):
        TlsFiles(tmp_path / "absent").read()
    with pytest.raises(ConfigError, match="needs its key"):
        Tls(certificate=b"x")
    (tmp_path / "k").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by other users"):
        TlsFiles(tmp_path / "c", tmp_path / "k").read()


def test_a_replaced_certificate_is_used_by_the_next_connection_without_a_restart(
    tmp_path: Path, serve: Serve, call: Call, certificates: Certificates
) -> None:
    files = write_files(tmp_path, certificates.issue(HOST))
    server = serve(tls=files, tokens=TOKENS)
    trust_old = Tls(authority=certificates.authority)
    assert call(server, "eu-secret", trust_old).connect(Introduction("eu", "life")).expected == 0

    renewed = Certificates()
    half = renewed.issue(HOST)
    (tmp_path / "c").write_bytes(half.certificate or b"")  # the key has not been copied yet
    assert call(server, "eu-secret", trust_old).connect(Introduction("eu", "life")).expected == 0
    write_files(tmp_path, half)
    assert call(server, "eu-secret", Tls(authority=renewed.authority)).connect(Introduction("eu", "life")).expected == 0
    with pytest.raises(LinkError, match="CERTIFICATE_VERIFY_FAILED"):
        call(server, "eu-secret", trust_old).connect(Introduction("eu", "life"))


def test_ipv6_loopback_is_served(serve: Serve) -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    uplink = GrpcUplink(f"[::1]:{serve(host='::1', tokens=TOKENS).port}", "eu-secret")
    assert uplink.connect(Introduction("eu", "life")).expected == 0
    uplink.close()


# ---- safe by default


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_without_tls_only_loopback_is_served(inbox: Inbox, host: str) -> None:
    with pytest.raises(WireError, match="without TLS"):
        InboxServer(inbox, host, 0, None, TOKENS)


def test_settings_that_authenticate_nobody_are_refused(inbox: Inbox, certificates: Certificates) -> None:
    own = certificates.issue(HOST)
    with pytest.raises(WireError, match="which site"):
        InboxServer(inbox, HOST, 0, Tls(own.certificate, own.key))
    with pytest.raises(WireError, match="certificate"):
        InboxServer(inbox, HOST, 0, Tls(authority=certificates.authority))
    for tokens in ({}, {"eu": ""}, {"eu": "same", "us": "same"}):
        with pytest.raises(ConfigError, match="token"):
            InboxServer(inbox, HOST, 0, None, tokens)


def test_a_port_in_use_is_a_clear_error(inbox: Inbox, serve: Serve) -> None:
    with socket.create_server((HOST, 0)) as taken, pytest.raises(WireError, match="cannot listen"):
        InboxServer(inbox, HOST, taken.getsockname()[1]).start()
    with pytest.raises(WireError, match="cannot listen"):
        InboxServer(inbox, HOST, serve().port).start()


def test_stopping_closes_connections_that_a_far_side_accepts_and_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "STOP_GRACE_S", 0.1)
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    outbox.append(0, some_messages(0))
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(PATIENCE_S)
        uplinks: list[GrpcUplink] = []

        def connect() -> GrpcUplink:
            uplinks.append(GrpcUplink(f"{HOST}:{silent.getsockname()[1]}"))
            return uplinks[-1]

        sender = Sender(outbox, connect, lanes=1)
        sender.start()
        accepted, _ = silent.accept()
        with accepted:
            sender.stop()
        (uplink,) = uplinks
        with pytest.raises(LinkError, match="closed"):
            uplink.connect(Introduction("eu", "life"))
    assert not outbox.is_empty
