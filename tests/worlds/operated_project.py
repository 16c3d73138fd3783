"""A project that an operator changes while it runs: what is deployed, and a center core that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catchment.center.core import CenterCore
from catchment.center.deployed_changes import query_changes, roster_changes
from catchment.center.events import RosterChange
from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import refuse_redefined_views
from catchment.deploy.watcher import DeploymentWatcher
from tests.worlds.projects import write_project


class OperatedProject:
    """A project that ran once, the watcher of its center, and a core that follows what is deployed."""

    def __init__(self, folder: Path, sites: Sequence[str], queries: str) -> None:
        write_project(folder, sites, {site: [] for site in sites}, queries=queries)
        self.folder = folder
        self.core = CenterCore()
        self.restart()
        self.follow()

    @property
    def deployment(self) -> Deployment:
        return self.watcher.deployment

    def restart(self) -> None:
        self.watcher = DeploymentWatcher(Deployment.load(self.folder))
        self.watcher.begin()

    def follow(self) -> list[RosterChange]:
        """Let the core follow what is deployed now; return what that changes in the roster."""
        self.watcher.poll()
        refuse_redefined_views(self.folder / "state" / "center", self.deployment.plans)
        queries = self.deployment.center_queries
        changes = list(roster_changes(self.core, queries, self.deployment.deployed.orders))
        self.core.handle_all(changes, 0)
        self.core.handle_all(list(query_changes(self.core, queries, self.deployment.deployed.begun_after)), 0)
        return changes

    def sites(self) -> dict[str, tuple[str, ...]]:
        """Return the sites of each query."""
        return {name: tuple(sorted(running.sites)) for name, running in self.core.queries.items()}
