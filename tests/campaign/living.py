"""The deployment that a campaign harms: a center, a relay and three sites, each a process on a folder of its own.

    a ─┐
       ├─> hub ─> center        every arrow runs through a proxy for bytes and one for messages
    b ─┘           ^
    c ─────────────┘            c, hub and the center have small disks of their own where they can be mounted

Every machine has a project file of its own, in which the address of the next inbox is that of its proxy. The state
folder is one for all, as `catchment submit` and `show` expect it, and every role has its own part of it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from catchment.deploy.reports.role_status import ProjectStatus, read_project_status
from catchment.project.config import Project
from catchment.storage.files import write_durably
from tests.campaign.byte_proxy import ByteProxy
from tests.campaign.class_archive import quick_java_options
from tests.campaign.feed import Feed
from tests.campaign.machines import Machine, left_over
from tests.campaign.message_proxy import MessageProxy
from tests.campaign.namespace import NetworkNamespace
from tests.campaign.small_disks import SmallDisks
from tests.worlds.waiting import free_port, wait_until

CENTER, HUB = "center", "hub"
SITES = ("a", "b", "c")
ROLES = (CENTER, HUB, *SITES)
ALL = "all"  # the target of faults that strike every role
RECEIVERS = {"a": HUB, "b": HUB, "c": CENTER, HUB: CENTER}
SMALL_DISKS = (CENTER, HUB, "c")
FRESHNESS_S = 8
NOTES = "notes.json"  # what a resumed campaign must know beside the records

TOML = """\
[project]
name = "campaign"
center = "center"
state = "{state}"
[sites.center]
listen = "127.0.0.1:{center}"
[sites.hub]
listen = "127.0.0.1:{hub}"
{sites}{links}
[defaults]
trigger = "300 ms"
freshness = "{freshness_s} s"
relay_wait = "2 s"
repair_horizon = "{horizon}"
repair_after = "2 s"
max_jump = "1 h"
sharing = "none"
[limits]
free_disk = "8 MB"
{limits}
[spark]
master = "local[1]"
memory = "600m"
[spark.settings]
"spark.sql.shuffle.partitions" = "1"
"""
QUERIES = """\
CREATE STREAM events (ts TIMESTAMP, k STRING, v BIGINT, t STRING)
  WITH (event_time = 'ts', sites = '{sites}', path = '{data}/{{site}}');
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, k, count(*) AS n, sum(v) AS total FROM events GROUP BY window(ts, '10 seconds'), k;
CREATE MATERIALIZED VIEW casts AS
  SELECT window.start, count(*) AS n, sum(CAST(t AS INT)) AS total FROM events GROUP BY window(ts, '10 seconds');
"""


@dataclass(frozen=True)
class Lack:
    """Windows of a view that begin in an interval of event time may lack a site, and must name it if they do."""

    view: str
    site: str
    from_s: int
    until_s: int


@dataclass
class Link:
    """One link: the byte proxy that a sender connects to, and the message proxy behind it."""

    sender: str
    bytes: ByteProxy
    messages: MessageProxy

    def heal(self) -> None:
        self.messages.heal()
        self.bytes.heal()


@dataclass
class Living:
    """The deployment, its links and its records."""

    folder: Path
    seed: int
    sites: Sequence[str] = SITES
    horizon: str = "1 h"
    limits: str = ""  # lines of `[limits]` beside the free disk
    with_namespace: bool = True
    with_small_disks: bool = True
    lacks: list[Lack] = field(default_factory=list)
    replaced_sites: set[str] = field(default_factory=set)  # their counters began anew
    machines: dict[str, Machine] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    namespace: NetworkNamespace | None = None
    seen_answers: dict[str, tuple[frozenset[str], Any]] = field(default_factory=dict)  # per view, as of which commits
    rest_s: dict[str, int] = field(default_factory=dict)  # per site, the event time before which all was read at rest

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.mark = f"{os.getpid()}-{self.folder}"
        self.chance = random.Random(f"feed {self.seed}")
        owners = [role for role in SMALL_DISKS if role in self.roles and self.with_small_disks]
        self._disks = SmallDisks([self.state_of(role) for role in owners])
        self.feed = Feed(self.folder / "data", self.folder / "fed.jsonl", self.chance)

    # --- life -------------------------------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[Living]:
        """Start everything, or go on with what lies in the folder; in the end no process is left, nor after SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        for site in self.sites:
            (self.folder / "data" / site).mkdir(parents=True, exist_ok=True)
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.feed.load()
        self._load_notes()
        self._disks.mount()
        try:
            self._make_links()
            self._make_machines()
            for machine in self.machines.values():
                machine.start()
            yield self
        finally:
            self._close()

    def _close(self) -> None:
        for machine in self.machines.values():
            machine.end()
        wait_until(
            lambda: not left_over(self.mark, ()), "processes to end", 60.0, state=lambda: left_over(self.mark, ())
        )
        for link in self.links.values():
            link.bytes.close()
            link.messages.close()
        if self.namespace is not None:
            self.namespace.close()
        self._disks.unmount()

    # --- what faults and verdicts ask for ------------------------------------------------------------------------

    def state_of(self, role: str) -> Path:
        if role == CENTER:
            return self.state / CENTER
        return self.state / ("relays" if role == HUB else "sites") / role

    @property
    def roles(self) -> Sequence[str]:
        return roles_of(self.sites)

    @property
    def has_small_disks(self) -> bool:
        return self._disks.are_mounted

    @property
    def center(self) -> Machine:
        return self.machines[CENTER]

    @property
    def live_sites(self) -> Sequence[str]:
        return [site for site in self.sites if self.machines[site].is_wanted]

    def status(self) -> ProjectStatus:
        """Return what `catchment show status` shows."""
        return read_project_status(Project.load(self.center.project))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of catchment, as an operator would."""
        program = [sys.executable, "-m", "catchment.cli", *arguments, "-p", str(self.center.project)]
        return subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)

    def wait_until_up(self) -> None:
        """Wait until every machine that is wanted runs."""
        for machine in self.machines.values():
            if machine.is_wanted:
                machine.wait_until_up()

    def left_over(self) -> list[str]:
        return left_over(self.mark, self.machines.values())

    def may_lack(self, view: str, window_s: int) -> set[str]:
        """Return the sites that a window may be published without for good."""
        return {x.site for x in self.lacks if x.view == view and x.from_s <= window_s < x.until_s}

    def note_lack(self, lack: Lack) -> None:
        """Let windows lack a site from now on, also after a resumption of the campaign."""
        self.lacks.append(lack)
        self._save_notes()

    def note_replaced(self, site: str) -> None:
        self.replaced_sites.add(site)
        self._save_notes()

    def _save_notes(self) -> None:
        told = {"lacks": [asdict(lack) for lack in self.lacks], "replaced_sites": sorted(self.replaced_sites)}
        write_durably(self.folder / NOTES, json.dumps(told).encode())

    def _load_notes(self) -> None:
        if (self.folder / NOTES).exists():
            told = json.loads((self.folder / NOTES).read_text())
            self.lacks = [Lack(**lack) for lack in told["lacks"]]
            self.replaced_sites = set(told["replaced_sites"])

    # --- the parts ----------------------------------------------------------------------------------------------

    def _make_links(self) -> None:
        self._ports = {role: free_port() for role in (CENTER, HUB)}
        if self.with_namespace and "c" in self.sites:
            self.namespace = NetworkNamespace.make(self.mark)
        for number, sender in enumerate(role for role in self.roles if role in RECEIVERS):
            messages = MessageProxy(self._ports[RECEIVERS[sender]], self.seed * 100 + number)
            messages.start()
            through = ByteProxy(messages.port, self.seed * 100 + 50 + number)
            through.start()
            self.links[sender] = Link(sender, through, messages)

    def _make_machines(self) -> None:
        java_options = quick_java_options(self.folder.parent / "java")
        for role in self.roles:
            project = self.folder / "machines" / role
            (project / "queries").mkdir(parents=True, exist_ok=True)
            (project / "queries" / "views.sql").write_text(
                QUERIES.format(data=self.folder / "data", sites=",".join(self.sites))
            )
            command = (CENTER,) if role == CENTER else ("site", role)
            machine = Machine(role, command, project, self.state_of(role), self.mark, java_options=java_options)
            ports = dict(self._ports)
            if role in RECEIVERS:
                ports[RECEIVERS[role]] = self._entrance(machine)
            sites = "".join(f"[sites.{site}]\n" for site in self.sites)
            links = "".join(f'[[links]]\nfrom = "{s}"\nto = "{RECEIVERS[s]}"\n' for s in self.links)
            text = TOML.format(
                state=self.state,
                sites=sites,
                links=links,
                freshness_s=FRESHNESS_S,
                horizon=self.horizon,
                limits=self.limits,
                **ports,
            )
            (project / "catchment.toml").write_text(text)
            self.machines[role] = machine

    def _entrance(self, machine: Machine) -> int:
        """Return the port at which a machine enters its link; the one in the namespace has a cable before it."""
        port = self.links[machine.name].bytes.port
        if self.namespace is None or machine.name != "c":
            return port
        machine.prefix = self.namespace.prefix
        return self.namespace.lead_to(port)


def roles_of(sites: Sequence[str]) -> Sequence[str]:
    """Return the center, the relay if a site sends through it, and the sites."""
    relays = [HUB] if any(RECEIVERS[site] == HUB for site in sites) else []
    return [CENTER, *relays, *sites]
