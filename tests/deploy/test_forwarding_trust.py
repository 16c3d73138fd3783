"""What a forwarder cannot do: make, change or answer what it hands on, or hand on what the project does not allow.

The forwarder b and the site c have keys of their own, as a machine that was taken over has, and call the center and b
with whatever envelopes they like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from catchment.deploy.processes.connections import Connections
from catchment.keys.authority import KeyPair, issue_certificate, make_authority
from catchment.keys.seals import BrokenSealError, Seal, SiteSealCheck, SiteSealer
from catchment.keys.tls import Tls, TlsFiles
from catchment.keys.tokens import read_token
from catchment.project.sections import key_files
from catchment.project.ways import Way
from catchment.wire.receiving.grpc_server import SEGMENT
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.uplink import Introduction, LinkError, RefusedError
from catchment.wire.ways.envelope import AroundUplink, Envelope, open_answer, seal_answer
from tests.worlds.ways_world import KEYS, WaysWorld, large_messages, ways_world
from tests.worlds.wire_support import landed_segments

WAY: Way = ("a", "b", "center")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WaysWorld]:
    with ways_world(tmp_path_factory.mktemp("trust"), KEYS) as made:
        made.append(2)
        yield made


def tls_of(world: WaysWorld, site: str) -> TlsFiles:
    files = key_files(world.project.folder / "keys", site)
    return TlsFiles(files.tls_cert, files.tls_key, files.tls_ca)


def token_of(world: WaysWorld, site: str) -> str:
    path = key_files(world.project.folder / "keys", site).token
    assert path is not None
    return read_token(path)


def sealer_of(world: WaysWorld, site: str) -> SiteSealer:
    return SiteSealer(tls_of(world, site), token_of(world, site))


def call(world: WaysWorld, caller: str, to: str, data: bytes) -> dict[str, str]:
    """Call a site as another one, with its keys; return what it answers."""
    address = world.center_address if to == "center" else world.forwarding.connections.addresses[to]
    uplink = GrpcUplink(address, token_of(world, caller), tls_of(world, caller))
    try:
        answer: dict[str, str] = json.loads(uplink.forward(data))
        return answer
    finally:
        uplink.close()


def segment(world: WaysWorld, number: int = 0) -> bytes:
    data = world.outbox.read(number)
    assert data is not None
    return data


def envelope(world: WaysWorld, sealed_by: str = "a", way: Way = WAY, number: int = 0) -> Envelope:
    return Envelope.make(way, SEGMENT, segment(world, number), sealer_of(world, sealed_by))


def test_a_forwarder_cannot_send_under_the_name_of_another(world: WaysWorld) -> None:
    answer = call(world, "b", "center", envelope(world, sealed_by="b").encode())
    assert answer["refused"] == "wrong_site"
    assert "not by 'a'" in answer["message"]
    assert world.inbox.lowest_missing("a") == 0


def test_a_forwarder_cannot_change_what_it_hands_on(world: WaysWorld) -> None:
    genuine = envelope(world)
    for changed in (
        replace(genuine, body=segment(world, 1)),
        replace(genuine, nonce="0" * 32),
        replace(genuine, seal={**genuine.seal, "code": "0" * 64}),
        replace(genuine, seal={"certificate": genuine.seal["certificate"], "signature": "00"}),
        replace(genuine, seal={}),
    ):
        assert call(world, "b", "center", changed.encode())["refused"] == "wrong_site"
    assert world.inbox.lowest_missing("a") == 0


def test_a_certificate_without_the_token_of_its_site_proves_nothing(world: WaysWorld) -> None:
    for sealer in (SiteSealer(tls_of(world, "a"), None), SiteSealer(tls_of(world, "a"), token_of(world, "b"))):
        data = Envelope.make(WAY, SEGMENT, segment(world), sealer).encode()
        assert "token of 'a'" in call(world, "b", "center", data)["message"]
    assert world.inbox.lowest_missing("a") == 0


def test_only_the_site_before_hands_an_envelope_on(world: WaysWorld) -> None:
    assert "'c' calls" in call(world, "c", "b", envelope(world).encode())["message"]
    assert "'c' calls" in call(world, "c", "center", envelope(world).encode())["message"]
    assert "'a' calls" in call(world, "a", "center", envelope(world).encode())["message"]


def test_only_ways_of_the_project_are_taken(world: WaysWorld) -> None:
    for way in (("a", "b", "c", "center"), ("b", "a", "center"), ("a", "b"), ("a", "center", "b"), ("a", "a", "b")):
        for to in ("b", "center"):
            answer = call(world, "a", to, envelope(world, way=way).encode())
            assert answer["refused"] == "wrong_site", (way, to)
    assert world.inbox.lowest_missing("a") == 0


def test_a_site_writes_under_its_own_name_also_over_forwarders(world: WaysWorld) -> None:
    """An envelope that c has sealed, with a segment of a in it, is refused by the inbox, and c hears why."""
    sealed = envelope(world, sealed_by="c", way=("c", "b", "center"))
    answer = call(world, "c", "b", sealed.encode())
    with pytest.raises(RefusedError, match="may write only its own name"):
        open_answer(sealed, json.dumps(answer).encode(), SiteSealCheck(tls_of(world, "c"), None))
    assert world.inbox.lowest_missing("a") == 0


def test_what_is_no_envelope_is_refused_by_name(world: WaysWorld) -> None:
    genuine = envelope(world).encode()
    head, _, body = genuine.partition(b"\n")
    told = json.loads(head)
    for data in (
        b"",
        b"\n",
        b"[]\n",
        b'{"way": 1}\n',
        body,
        json.dumps({**told, "call": "/catchment.Inbox/Else"}).encode() + b"\n" + body,
        json.dumps({**told, "seal": [1]}).encode() + b"\n" + body,
        b"x" * 100_000,
    ):
        assert call(world, "a", "b", data)["refused"] == "wrong_site"


class FalseForwarder:
    """A forwarder that answers what it likes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def forward(self, data: bytes) -> bytes:
        return self.answer

    def close(self) -> None:
        """Do nothing: nothing is held."""


def test_a_forwarder_cannot_acknowledge_in_place_of_the_end(world: WaysWorld) -> None:
    """Whatever it answers, the origin keeps the segment: only the seal of the end to this very envelope counts."""
    acked = {"number": 0}
    earlier = seal_answer(envelope(world), acked, sealer_of(world, "center"))  # true, of another call
    own = seal_answer(envelope(world), acked, sealer_of(world, "b"))
    plain = json.dumps(acked).encode()
    for answer in (plain, own, earlier, b"", b"[]", b'{"seal": 1}', b'{"answer": 1, "seal": {}}'):
        check = SiteSealCheck(tls_of(world, "a"), None)
        uplink = AroundUplink(WAY, FalseForwarder(answer), sealer_of(world, "a"), check)
        with pytest.raises(LinkError):
            uplink.send(segment(world))
        with pytest.raises(LinkError):
            uplink.connect(Introduction("a", world.outbox.epoch))


def test_a_seal_holds_while_its_certificate_is_valid_and_of_the_authority_of_the_project() -> None:
    ours, others = make_authority("p", 10), make_authority("p", 10)
    years_ago = datetime.now(UTC) - timedelta(days=800)
    check = SiteSealCheck(Tls(authority=ours.certificate), None)

    def seal(pair: KeyPair) -> Seal:
        return SiteSealer(Tls(pair.certificate, pair.key), None).seal(b"text")

    genuine = issue_certificate(ours, "a", (), 10)
    check.check("a", b"text", seal(genuine))
    by_a_site = issue_certificate(genuine, "a", (), 10)
    for pair, reason in (
        (issue_certificate(others, "a", (), 10), "another authority"),
        (issue_certificate(ours, "a", (), 10, now=years_ago), "not valid now"),
        (issue_certificate(ours, "b", (), 10), "sealed by 'b'"),
        (by_a_site, "another authority"),
        (KeyPair(by_a_site.certificate + genuine.certificate, by_a_site.key), "issued by a site"),
    ):
        with pytest.raises(BrokenSealError, match=reason):
            check.check("a", b"text", seal(pair))


@pytest.mark.parametrize("kind", ["rsa", "ed25519"])
def test_certificates_of_an_authority_of_ones_own_may_have_other_keys(kind: str) -> None:
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, None if kind == "ed25519" else hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    seal = SiteSealer(Tls(made, pem), None).seal(b"text")
    SiteSealCheck(Tls(authority=made), None).check("a", b"text", seal)
    with pytest.raises(BrokenSealError):
        SiteSealCheck(Tls(authority=made), None).check("a", b"texts", seal)


def test_what_a_stranger_tries_is_counted_at_the_end(world: WaysWorld) -> None:
    before = world.inbox.refused.get("wrong_site", 0)
    call(world, "b", "center", envelope(world, sealed_by="b").encode())
    assert world.inbox.refused["wrong_site"] == before + 1


def test_a_genuine_envelope_is_taken_once_however_often_it_is_handed_on(world: WaysWorld) -> None:
    outbox = Outbox(world.project.folder / "out-c", "c", "center", 10**9)
    outbox.append(0, large_messages(0))
    data = outbox.read(0)
    assert data is not None
    sealed = Envelope.make(("c", "b", "center"), SEGMENT, data, sealer_of(world, "c"))
    check = SiteSealCheck(tls_of(world, "c"), None)
    for _ in range(3):
        answer = call(world, "c", "b", sealed.encode())
        assert open_answer(sealed, json.dumps(answer).encode(), check) == {"number": 0}
    assert [segment.origin for segment in landed_segments(world.inbox)] == ["c"]


def test_connections_without_ways_around_forward_nothing(world: WaysWorld) -> None:
    links = {name: link for name, link in world.project.links.items() if "b" not in name}
    assert Connections(replace(world.project, links=links), world.connections().clock).make_forward_server("b") is None
