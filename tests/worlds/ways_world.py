"""Three sites that speak over real sockets, each as a process of its own would: a sends to the center, b forwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.deploy.processes.connections import Connections, reached_at
from catchment.deploy.processes.forwarding import ForwardServers
from catchment.keys.key_folder import KeyFolder
from catchment.project.config import Project
from catchment.testing.simulated.throttled_link import ThrottledLink
from catchment.timeline import SystemClock
from catchment.wire.messages import Message, Progress, Updates
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.ways.way_chooser import WayRules
from tests.worlds.waiting import free_port

SEGMENT_BYTES = 20_000
DIRECT = ["a", "center"]
AROUND = ["a", "b", "center"]
SITES = ("a", "b", "c", "center")
EAGER = WayRules(
    down_after_s=0.1, congested_s=0.5, patience_s=0.2, stay_s=0.2, longest_stay_s=1.0, probe_s=0.1, longest_probe_s=0.5
)
KEYS = '[security]\nkeys = "keys"\n'
CERTIFICATES = (
    '[security]\ntls_cert = "keys/{site}/cert.pem"\ntls_key = "keys/{site}/key.pem"\ntls_ca = "keys/{site}/ca.pem"\n'
)
TOKENS = '[security]\ntoken = "keys/{site}/token"\ntokens = "keys/tokens.toml"\n'


def make_project(folder: Path, security: str = "", bandwidth: str = "") -> Project:
    """Write and load a project in which a has a link of its own to the center, and one over b; c has links as a."""
    folder.mkdir(exist_ok=True)
    listening = "".join(f'[sites.{site}]\nlisten = "127.0.0.1:{free_port()}"\n' for site in ("b", "center"))
    shaped = f'bandwidth = "{bandwidth}"\n' if bandwidth else ""
    pairs = [("a", "center"), ("a", "b"), ("b", "center"), ("c", "b"), ("c", "center")]
    links = "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\n{shaped}' for a, b in pairs)
    head = f'[project]\nname = "p"\ncenter = "center"\n[sites.a]\n[sites.c]\n{listening}'
    (folder / "catchment.toml").write_text(head + links + security)
    if security:
        keys = KeyFolder(folder / "keys")
        keys.create("p")
        for site in SITES:
            keys.issue(site, hosts=["127.0.0.1"])
    return Project.load(folder)


class WaysWorld:
    """The servers of the center and of b, the link from a to the center, and what a sends."""

    def __init__(self, project: Project, closing: ExitStack) -> None:
        self.project = project
        self.inbox = Inbox(project.folder / "in")
        center = self.connections()
        server = center.make_server("center", self.inbox)
        server.start()
        closing.callback(server.close)
        self.center_address = reached_at(project, "center", server)
        self.forwarding = ForwardServers(self.connections())
        self.forwarding.start(["b"])
        closing.callback(self.forwarding.close)
        self.link = ThrottledLink(self.center_address)
        closing.callback(self.link.close)
        self.outbox = Outbox(project.folder / "out", "a", "center", 10**9)

    def connections(self) -> Connections:
        return Connections(self.project, SystemClock(), way_rules=EAGER)

    def make_sender(self, connections: Connections | None = None) -> Sender:
        """Return the sender of a, whose direct link can be throttled and cut."""
        made = connections or self.connections()
        return made.make_sender(self.project.link("a", "center"), "a", self.link.address, self.outbox)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            number = self.outbox.next_sequence
            self.outbox.append(number, large_messages(number))

    def keep_busy(self, sender: Sender) -> None:
        """Append as much as lets a few segments wait at any time."""
        while self.outbox.size_bytes < 3 * SEGMENT_BYTES:
            self.append()
        sender.notify()


def large_messages(number: int) -> list[Message]:
    """Return the messages of a segment of about `SEGMENT_BYTES`, different for every number."""
    values = np.random.default_rng(number).integers(0, 2**62, SEGMENT_BYTES // 8)
    table = pa.table({"slice_us": pa.array(np.zeros(len(values), np.int64)), "n": pa.array(values)})
    return [Updates("visits", table, ((0, 1),)), Progress("visits", 60_000_000, number)]


@contextmanager
def ways_world(folder: Path, security: str = "", bandwidth: str = "") -> Iterator[WaysWorld]:
    with ExitStack() as closing:
        yield WaysWorld(make_project(folder, security, bandwidth), closing)
