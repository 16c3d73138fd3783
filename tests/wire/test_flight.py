"""Real Flight over loopback: restarts, wrong credentials, wrong names, certificates, sizes, silence."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from pyarrow import flight

from catchment.errors import WireError
from catchment.wire import flight as wire_flight
from catchment.wire.codec import encode_segment
from catchment.wire.flight import FlightUplink, InboxServer, Tls
from catchment.wire.inbox import Inbox
from catchment.wire.limits import WireLimits
from catchment.wire.messages import Segment
from catchment.wire.outbox import Outbox
from catchment.wire.sender import Sender
from catchment.wire.uplink import LinkError, RefusedError
from tests.worlds.waiting import PATIENCE_S
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import landed_segments

HOST = "127.0.0.1"
TOKENS = {"eu": "eu-secret", "us": "us-secret"}

Serve = Callable[..., InboxServer]
Call = Callable[..., FlightUplink]


def frame(sequence: int, origin: str = "eu") -> bytes:
    return encode_segment(Segment(origin, "life", sequence, tuple(some_messages(sequence)))).data


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "in", WireLimits(frame_bytes=100_000))


@pytest.fixture
def serve(inbox: Inbox) -> Iterator[Serve]:
    servers: list[InboxServer] = []

    def start(port: int = 0, tls: Tls | None = None, tokens: dict[str, str] | None = None) -> InboxServer:
        servers.append(InboxServer(inbox, HOST, port, tls, tokens))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def call() -> Iterator[Call]:
    uplinks: list[FlightUplink] = []

    def open_uplink(server: InboxServer, token: str | None = None, tls: Tls | None = None) -> FlightUplink:
        uplinks.append(FlightUplink(f"{HOST}:{server.port}", token, tls))
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
    assert uplink.connect("eu", "life") == 0
    assert [uplink.send(frame(n)) for n in (0, 2, 0)] == [0, 2, 0]
    assert uplink.connect("eu", "life") == 1
    assert [s.sequence for s in landed_segments(inbox)] == [0, 2]


def test_a_refusal_arrives_with_its_reason_message_and_hint(inbox: Inbox, serve: Serve, call: Call) -> None:
    uplink = call(serve())
    uplink.send(frame(0))
    other = encode_segment(Segment("eu", "another life", 1, ())).data
    error = refusal(lambda: uplink.send(other))
    assert (error.reason, error.retryable) == ("wrong_epoch", False)
    assert "replaced" in error.message
    assert "new name" in str(error.hint)
    assert refusal(lambda: uplink.send(b"junk")).reason == "corrupt"
    assert uplink.send(frame(1)) == 1


def test_an_oversized_segment_is_stopped_on_either_side(inbox: Inbox, serve: Serve, call: Call) -> None:
    server = serve()
    big = b"x" * 100_001
    assert refusal(lambda: call(server).send(big)).reason == "oversized"
    careful = FlightUplink(f"{HOST}:{server.port}", limits=WireLimits(frame_bytes=100_000))
    assert refusal(lambda: careful.send(big)).reason == "oversized"
    careful.close()
    assert inbox.refused == {"oversized": 1}


def test_a_sender_survives_restarts_of_the_server_in_the_middle(tmp_path: Path, inbox: Inbox, serve: Serve) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    server = serve()
    port = server.port
    sender = Sender(outbox, lambda: FlightUplink(f"{HOST}:{port}"))
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
        uplink.connect("eu", "life")


def test_a_far_side_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_flight, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        uplink = FlightUplink(f"{HOST}:{silent.getsockname()[1]}")
        with pytest.raises(LinkError):
            uplink.connect("eu", "life")
        uplink.close()


def test_an_answer_that_makes_no_sense_is_a_link_error() -> None:
    class Strange(flight.FlightServerBase):
        def do_action(self, context: object, action: object) -> list[flight.Result]:
            return [flight.Result(b'{"refused": "bad mood", "message": "", "hint": null}')]

    server = Strange((HOST, 0))
    uplink = FlightUplink(f"{HOST}:{server.port}")
    with pytest.raises(LinkError, match="cannot be read"):
        uplink.connect("eu", "life")
    uplink.close()
    server.shutdown()


def test_requests_that_are_not_known_are_refused_and_counted(inbox: Inbox, serve: Serve) -> None:
    client = flight.FlightClient(f"grpc+tcp://{HOST}:{serve().port}")
    for kind, body in [("other", b""), (wire_flight.CONNECT, b"{"), (wire_flight.CONNECT, b"[1]" * 5000)]:
        (answer,) = client.do_action(flight.Action(kind, body))
        assert b"corrupt" in bytes(answer.body)
    client.close()
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
    assert eu.connect("eu", "life") == 0
    assert eu.send(frame(0)) == 0
    assert refusal(lambda: eu.send(frame(0, origin="us"))).reason == "wrong_site"
    assert refusal(lambda: eu.connect("us", "life")).reason == "wrong_site"
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
    assert eu.connect("eu", "life") == 0
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
        call(server, tls=Tls(eu.certificate, eu.key, Certificates().authority)).connect("eu", "life")


def test_with_tls_and_tokens_both_must_name_the_same_site(
    inbox: Inbox, serve: Serve, call: Call, certificates: Certificates
) -> None:
    server = serve(tls=certificates.issue(HOST), tokens=TOKENS)
    eu = certificates.issue("eu")
    assert call(server, "eu-secret", eu).send(frame(0)) == 0
    assert refusal(lambda: call(server, "us-secret", eu).send(frame(0, "us"))).reason == "wrong_site"
    assert refusal(lambda: call(server, None, eu).send(frame(1))).reason == "unauthenticated"


def test_tls_with_tokens_needs_no_client_certificate(serve: Serve, call: Call, certificates: Certificates) -> None:
    own = certificates.issue(HOST)
    server = serve(tls=Tls(own.certificate, own.key), tokens=TOKENS)
    assert call(server, "eu-secret", Tls(authority=certificates.authority)).send(frame(0)) == 0


def test_certificates_are_read_from_files(tmp_path: Path, certificates: Certificates) -> None:
    tls = certificates.issue("eu")
    for name, content in (("c", tls.certificate), ("k", tls.key), ("a", tls.authority)):
        (tmp_path / name).write_bytes(content or b"")
    assert Tls.from_files(tmp_path / "c", tmp_path / "k", tmp_path / "a") == tls
    assert b"KEY" in (tls.key or b"")
    assert "KEY" not in repr(tls)
    with pytest.raises(WireError, match="cannot read"):
        Tls.from_files(tmp_path / "absent")
    with pytest.raises(WireError, match="needs its key"):
        Tls(certificate=b"x")


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
        with pytest.raises(WireError, match="token"):
            InboxServer(inbox, HOST, 0, None, tokens)


def test_a_port_in_use_is_a_clear_error(inbox: Inbox, serve: Serve) -> None:
    with socket.create_server((HOST, 0)) as taken, pytest.raises(WireError, match="cannot listen"):
        InboxServer(inbox, HOST, taken.getsockname()[1]).start()
    with pytest.raises(WireError, match="cannot listen"):
        InboxServer(inbox, HOST, serve().port).start()
