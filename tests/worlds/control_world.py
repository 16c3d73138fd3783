"""A center and its sites in folders of their own, which share nothing but a port of the loopback; without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from catchment.control.center_link import CenterLink, person_files
from catchment.control.follower import Follower
from catchment.control.service import ControlService
from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.connections import Connections
from catchment.deploy.watcher import DeploymentWatcher
from catchment.keys.key_folder import KeyFolder
from catchment.keys.tokens import OPERATOR, READER
from catchment.project.config import Project, security_of
from catchment.project.joined_site import JoinedSite
from catchment.project.sections import SecurityFiles, key_files
from catchment.timeline import SystemClock
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.projects import write_project
from tests.worlds.waiting import free_port

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT) WITH (event_time = 'ts', {connector});
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
"""
TABLE = "CREATE TABLE pages (page STRING, section STRING) WITH (connector = 'files', path = 'pages.csv');"


class ControlWorld:
    """The folder of a center, the keys of all, and what is needed to call it as somebody."""

    def __init__(
        self,
        root: Path,
        sites: Sequence[str] = ("a", "b"),
        queries: str = QUERIES,
        toml: str = "",
        host: str = "127.0.0.1",
    ) -> None:
        self.root = root
        self.host = host
        self.port = free_port()
        self.folder = write_project(
            root / "center",
            sites,
            {},
            queries=queries,
            toml=toml,
            listen=f'listen = "{host}:{self.port}"\n[security]\nkeys = "keys"',
        )
        self.keys = KeyFolder(self.folder / "keys")
        self.keys.create("test")
        for site in ("center", *sites):
            self.keys.issue(site, [host])
        self.keys.issue("alice", role=OPERATOR)
        self.keys.issue("bob", role=OPERATOR)
        self.keys.issue("rita", role=READER)
        self.service: ControlService | None = None
        self._server: InboxServer | None = None
        self._watcher: DeploymentWatcher | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self, protocol: int | None = None) -> None:
        """Let the center listen, as its process does."""
        project = Project.load(self.folder)
        self._watcher = DeploymentWatcher(Deployment.load(self.folder))
        self._watcher.begin()
        self.service = ControlService(project) if protocol is None else ControlService(project, protocol)
        self.service.publish(self._watcher.deployment)
        inbox = Inbox(project.state_folder / "center" / "inbox")
        connections = Connections(project, SystemClock(), services=(self.service,))
        self._server = connections.make_server("center", inbox)
        self._server.start()

    def tick(self) -> None:
        """Let the center follow what is deployed."""
        assert self._watcher is not None
        assert self.service is not None
        found = self._watcher.poll()
        if found is not None:
            self.service.publish(found)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def as_person(self, name: str) -> CenterLink:
        return CenterLink(self.address, person_files(self.folder / "keys" / name))

    def as_site(self, name: str) -> CenterLink:
        return CenterLink(self.address, self.files(name))

    def files(self, name: str) -> SecurityFiles:
        return key_files(self.folder / "keys", name)

    def make_site(self, name: str, sources: str = "") -> Path:
        """Make the folder of a site's machine: `site.toml` and its keys, nothing else."""
        home = self.root / f"machine-{name}"
        home.mkdir()
        shutil.copytree(self.folder / "keys" / name, home / "keys" / name)
        self.write_site_file(name, home, sources)
        return home

    def write_site_file(self, name: str, home: Path, sources: str = "") -> None:
        """Write the `site.toml` of a site's machine."""
        (home / "site.toml").write_text(
            f'[site]\nname = "{name}"\ncenter = "{self.address}"\n[security]\nkeys = "keys"\n{sources}'
        )

    def follower(self, home: Path) -> Follower:
        joined = JoinedSite.load(home)
        return Follower(joined, CenterLink(joined.center_address, security_of(joined)))


class ScriptedCenter:
    """A center that answers what a test wants."""

    def __init__(self, bundle: Mapping[str, Any] | None) -> None:
        self.bundle = bundle
        self.asked: list[Mapping[str, Any]] = []

    def follow(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(report)
        return {"bundle": self.bundle, "requests": {}}

    def close(self) -> None:
        """Nothing is open."""
