"""Every site shows its own certificate and token, also where all run in one process; strangers are told nothing.

Real servers and senders on loopback, made as the runner makes them, without Spark.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from catchment.deploy.processes.connections import Connections, reached_at
from catchment.deploy.processes.expiry import ExpiryWatch, days_left
from catchment.deploy.reports.role_files import open_state_folder
from catchment.errors import ConfigError
from catchment.keys.key_folder import DAY_US, KeyFolder
from catchment.keys.tokens import LOOPBACK_FILE, read_token
from catchment.project.config import Project
from catchment.project.sections import Link
from catchment.timeline import ManualClock, SystemClock
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.uplink import Introduction, LinkError, RefusedError
from tests.worlds.waiting import PATIENCE_S
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import landed_segments

LINKS = {"a": "relay", "relay": "center"}
CONFIG = """
[project]
name = "p"
center = "center"
[sites.a]
[sites.relay]
[sites.center]
[[links]]
from = "a"
to = "relay"
[[links]]
from = "relay"
to = "center"
"""


def make_project(folder: Path, security: str) -> Project:
    folder.mkdir(exist_ok=True)
    (folder / "catchment.toml").write_text(CONFIG + security)
    return Project.load(folder)


def make_keys(folder: Path) -> KeyFolder:
    keys = KeyFolder(folder / "keys")
    keys.create("p")
    for site in ("a", "relay", "center"):
        keys.issue(site)
    return keys


class Running:
    """The inboxes of the center and the relay, and their servers."""

    def __init__(self, project: Project, closing: ExitStack) -> None:
        self.project = project
        self.connections = Connections(project, SystemClock())
        self.inboxes = {site: Inbox(project.folder / f"in-{site}") for site in ("relay", "center")}
        self.addresses = {}
        for site, inbox in self.inboxes.items():
            server = self.connections.make_server(site, inbox)
            server.start()
            closing.callback(server.close)
            self.addresses[site] = reached_at(project, site, server)

    def send_one(self, site: str) -> None:
        outbox = Outbox(self.project.folder / f"out-{site}", site, LINKS[site], 10**9)
        to = LINKS[site]
        sender = self.connections.make_sender(Link(site, to), site, self.addresses[to], outbox)
        sender.start()
        try:
            outbox.append(outbox.next_sequence, some_messages(outbox.next_sequence))
            sender.notify()
            assert sender.wait_until_empty(PATIENCE_S), sender.snapshot()
        finally:
            sender.stop()


@contextmanager
def running(project: Project) -> Iterator[Running]:
    with ExitStack() as closing:
        yield Running(project, closing)


SECURED = {
    "certificates and tokens": '[security]\nkeys = "keys"\n',
    "tokens and a private authority": '[security]\nkeys = "keys"\nclient_certificates = false\n',
    "certificates alone": (
        '[security]\ntls_cert = "keys/{site}/cert.pem"\ntls_key = "keys/{site}/key.pem"\n'
        'tls_ca = "keys/{site}/ca.pem"\n'
    ),
    "tokens on loopback": '[security]\ntoken = "keys/{site}/token"\ntokens = "keys/tokens.toml"\n',
    "nothing configured": "",
}


@pytest.mark.parametrize("title", SECURED)
def test_every_site_shows_what_is_its_own_in_one_process(tmp_path: Path, title: str) -> None:
    make_keys(tmp_path)
    with running(make_project(tmp_path, SECURED[title])) as run:
        run.send_one("a")
        run.send_one("relay")
        landed = {site: [s.origin for s in landed_segments(inbox)] for site, inbox in run.inboxes.items()}
        assert landed == {"relay": ["a"], "center": ["relay"]}
        assert all(not inbox.refused for inbox in run.inboxes.values())


def test_a_machine_needs_the_keys_of_its_own_sites_only(tmp_path: Path) -> None:
    make_keys(tmp_path)
    project = make_project(tmp_path, SECURED["certificates and tokens"])
    with running(project) as run:
        other = tmp_path / "machine-of-a"
        shutil.copytree(tmp_path / "keys" / "a", other / "keys" / "a")
        far = make_project(other, SECURED["certificates and tokens"])
        Running.send_one(_at(run, far), "a")
        with pytest.raises(ConfigError, match="cannot read") as caught:
            Running.send_one(_at(run, far), "relay")
        assert "machine-of-a/keys/relay" in str(caught.value)


def _at(run: Running, project: Project) -> Running:
    elsewhere = object.__new__(Running)
    elsewhere.project, elsewhere.connections = project, Connections(project, SystemClock())
    elsewhere.inboxes, elsewhere.addresses = {}, run.addresses
    return elsewhere


def test_keys_are_replaced_while_servers_and_senders_run(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    with running(make_project(tmp_path, SECURED["certificates and tokens"])) as run:
        run.send_one("a")
        for site in ("a", "relay", "center"):
            keys.rotate(site, grace_days=0)
        run.send_one("a")
        run.send_one("relay")
        assert [s.sequence for s in landed_segments(run.inboxes["relay"])] == [0, 1]


def test_a_stranger_on_the_same_machine_is_refused_and_learns_nothing(tmp_path: Path) -> None:
    with running(make_project(tmp_path, "")) as run:
        run.send_one("a")
        outbox = Outbox(tmp_path / "out-a", "a", "relay", 10**9)
        for token in (None, "a:00", "a"):
            uplink = GrpcUplink(run.addresses["relay"], token)
            with pytest.raises(RefusedError) as caught:
                uplink.connect(Introduction("a", "guessed"))
            uplink.close()
            assert caught.value.reason == "unauthenticated"
            assert outbox.epoch not in str(caught.value)
        secret = tmp_path / "state" / LOOPBACK_FILE
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700


def test_a_site_with_the_right_token_and_another_name_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path)
    with running(make_project(tmp_path, SECURED["tokens on loopback"])) as run:
        uplink = GrpcUplink(run.addresses["center"], read_token(keys.folder / "a" / "token"))
        with pytest.raises(RefusedError) as caught:
            uplink.connect(Introduction("relay", "life"))
        uplink.close()
        assert caught.value.reason == "wrong_site"


def test_nothing_is_sent_to_another_machine_in_plain_text(tmp_path: Path) -> None:
    project = make_project(tmp_path, "")
    outbox = Outbox(tmp_path / "out", "a", "relay", 10**9)
    with pytest.raises(ConfigError, match="without TLS") as caught:
        Connections(project, SystemClock()).make_sender(Link("a", "relay"), "a", "192.0.2.1:9410", outbox)
    assert "catchment keys init" in str(caught.value.hint)


def test_an_uplink_says_why_a_certificate_is_not_taken(tmp_path: Path) -> None:
    make_keys(tmp_path)
    with running(make_project(tmp_path, SECURED["certificates alone"])) as run:
        other = KeyFolder(tmp_path / "machine" / "keys")
        other.create("p")
        other.issue("a")
        stranger = Connections(make_project(tmp_path / "machine", SECURED["certificates alone"]), SystemClock())
        outbox = Outbox(tmp_path / "out", "a", "relay", 10**9)
        sender = stranger.make_sender(Link("a", "relay"), "a", run.addresses["relay"], outbox)
        uplink = sender.ways.current.open()
        with pytest.raises(LinkError, match="CERTIFICATE_VERIFY_FAILED"):
            uplink.connect(Introduction("a", "life"))
        uplink.close()


def test_a_certificate_that_ends_soon_is_named_once_a_day_and_forgotten_when_it_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = make_keys(tmp_path)
    clock = ManualClock(SystemClock().now_us())
    watch = ExpiryWatch(Connections(make_project(tmp_path, SECURED["certificates and tokens"]), clock), clock)
    expires_us = watch.expiry_us("a")
    assert expires_us is not None
    assert days_left(expires_us, clock.now_us()) == 364
    assert not caplog.records
    clock.advance(340 * DAY_US)
    for _ in range(3):
        watch.expiry_us("a")
    assert [r.getMessage() for r in caplog.records] == [
        "the certificate of site a ends in 24 days: replace it with `catchment keys rotate a`"
    ]
    keys.rotate("a", days=500)
    clock.advance(2 * DAY_US)
    watch.expiry_us("a")
    assert len(caplog.records) == 1
    nothing = ExpiryWatch(Connections(make_project(tmp_path, ""), clock), clock)
    assert nothing.expiry_us("a") is None


def test_a_state_folder_is_made_private_and_one_that_is_not_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_state_folder(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert not caplog.records
    (tmp_path / "state").chmod(0o755)
    open_state_folder(tmp_path / "state")
    assert "chmod 700" in caplog.text
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o755, "who opened it may have a reason"
