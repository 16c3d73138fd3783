"""Relays over real sockets, without Spark: each finds the next one, and what is sent comes through the tree."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from catchment.center.query import CenterQuery
from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.relays import Relays
from catchment.deploy.reconcile import carried_by
from catchment.relay.pipeline import RelayPipeline
from catchment.timeline import END_OF_TIME_US, ManualClock, SystemClock, WindowSpec
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from tests.worlds.projects import write_project
from tests.worlds.relay_process import WINDOW
from tests.worlds.relay_world import Relay, Tree
from tests.worlds.waiting import PATIENCE_S, free_port, wait_until
from tests.worlds.world import Center, Site, assert_well_published, make_fragment, naive

KILLS = 5
HOPS = {"a": "far", "b": "far", "c": "near", "far": "near", "near": "center"}


def test_segments_pass_a_tree_of_real_servers_and_senders(tmp_path: Path) -> None:
    tree = Tree(tmp_path, HOPS, WindowSpec.tumbling(10))
    inboxes = {"center": tree.center.inbox, **{name: relay.inbox for name, relay in tree.relays.items()}}
    servers = {name: InboxServer(inbox, "127.0.0.1", 0) for name, inbox in inboxes.items()}
    for server in servers.values():
        server.start()

    def sender(name: str, outbox: Outbox) -> Sender:
        return Sender(outbox, lambda: GrpcUplink(f"127.0.0.1:{servers[HOPS[name]].port}"), clock=SystemClock())

    everyone: dict[str, Site | Relay] = {**tree.sites, **tree.relays}
    senders = [sender(name, role.outbox) for name, role in everyone.items()]
    chance, data = random.Random(5), []
    try:
        for each in senders:
            each.start()
        for _ in range(6):
            for site in tree.sites.values():
                mine = [(chance.randrange(60), chance.choice("xyz"), chance.randrange(9)) for _ in range(5)]
                data += mine
                site.batch(mine, max(ts for ts, _, _ in mine))
            tree.relays["far"].consume()
            tree.relays["near"].consume()
        for site in tree.sites.values():
            site.batch([], END_OF_TIME_US)
        wait_until(lambda: _drained(tree), "the tree to be drained", pause_s=0.02)
    finally:
        for each in senders:
            each.stop()
        for server in servers.values():
            server.close()
    tree.center.consume()
    assert tree.center.tables.answer() == naive(WindowSpec.tumbling(10), data)


def _drained(tree: Tree) -> bool:
    for relay in tree.relays.values():
        relay.consume()
    return all(relay.pipeline.finished for relay in tree.relays.values())


@pytest.mark.e2e
def test_a_relay_that_is_killed_again_and_again_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """The relay is a process of its own, killed with SIGKILL while segments come in and go out."""
    clock, port, chance = ManualClock(), free_port(), random.Random(11)
    fragment = make_fragment(WINDOW)
    center = Center(tmp_path / "center", CenterQuery("q", fragment, WINDOW, ("a", "b"), 10_000), clock)
    sites = {s: Site(tmp_path / s, s, fragment, "streaming", clock) for s in ("a", "b")}
    server = InboxServer(center.inbox, "127.0.0.1", 0)
    server.start()
    senders = [Sender(s.outbox, lambda: GrpcUplink(f"127.0.0.1:{port}"), clock=SystemClock()) for s in sites.values()]
    script = Path(__file__).parents[1] / "worlds" / "relay_process.py"
    command = [sys.executable, str(script), str(tmp_path), str(port), str(server.port)]
    relay, data, kills = subprocess.Popen(command), [], 0
    try:
        for each in senders:
            each.start()
        while kills < KILLS:
            for site in sites.values():
                mine = [(chance.randrange(60), chance.choice("xyz"), chance.randrange(9)) for _ in range(4)]
                data += mine
                site.batch(mine, max(ts for ts, _, _ in mine))
            time.sleep(chance.uniform(0.01, 0.1))
            if center.inbox.last_position >= 3 * kills and chance.random() < 0.2:
                relay.kill()
                relay.wait()
                relay, kills = subprocess.Popen(command), kills + 1
        for site in sites.values():
            site.batch([], END_OF_TIME_US)
        assert relay.wait(timeout=PATIENCE_S) == 0
    finally:
        relay.kill()
        for each in senders:
            each.stop()
        server.close()
    center.consume()
    assert center.tables.answer() == naive(WINDOW, data)
    assert_well_published(center)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    folder = write_project(tmp_path / "p", ("a", "b", "c"), {})
    text = (folder / "catchment.toml").read_text()
    text = text.replace('from = "a"\nto = "center"', 'from = "a"\nto = "far"')
    text = text.replace('from = "b"\nto = "center"', 'from = "b"\nto = "near"')
    text += "[sites.far]\n[sites.near]\n" + "".join(
        f'[[links]]\nfrom = "{a}"\nto = "{b}"\n' for a, b in (("far", "near"), ("near", "center"))
    )
    (folder / "catchment.toml").write_text(text)
    return Deployment.load(folder)


def test_a_relay_carries_the_fragments_of_the_sites_behind_it(deployment: Deployment) -> None:
    assert deployment.routes.relays == ("near", "far")
    near, far = ({c.fragment.name: c.origins for c in carried_by(deployment, r)} for r in ("near", "far"))
    assert near.keys() == far.keys() == deployment.deployed.sharing.fragments.keys()
    assert set(near.values()) == {(("a", "far"), ("b", "b"))}
    assert set(far.values()) == {(("a", "a"),)}


def test_relays_of_a_process_listen_follow_and_end(deployment: Deployment) -> None:
    made: list[str] = []

    def make_sender(name: str, outbox: Outbox) -> Sender:
        made.append(name)
        return Sender(outbox, lambda: GrpcUplink("127.0.0.1:1"), clock=SystemClock())

    relays = Relays(
        deployment,
        lambda site: True,
        SystemClock(),
        make_sender,
        lambda site, inbox: InboxServer(inbox, "127.0.0.1", 0),
    )
    relays.start()
    try:
        assert made == ["near", "far"]
        assert relays.address("near") != relays.address("far")
        assert relays.address("center") is None
        fewer = deployment.deployed.drop("sketches")
        relays.follow(deployment.at(fewer))
        relays.tick()
        running: RelayPipeline = relays.running["near"]
        assert set(running.core.origins) == set(fewer.sharing.fragments)
        assert not relays.is_finished(once=False)
        assert relays.is_finished(once=True)
        relays.write_status(relays.status())
        assert relays.status()["far"]["to"] == "near"
    finally:
        relays.close()
