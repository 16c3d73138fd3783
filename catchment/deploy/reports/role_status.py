"""What every role last wrote of itself, and how it is judged: running, silent, stopped, finished, or never started.

A role writes its status at every tick, with the time. A process that was killed wrote nothing more, so its status grows
old: it is silent, and is never shown as up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catchment.deploy.reports.role_files import REPORTED_AT, STOPPED, read_status
from catchment.project.config import SINKS_FOLDER, Project
from catchment.timeline import SECOND_US

SILENT_AFTER_US = 10 * SECOND_US  # a role writes its status several times a second

RUNNING, SILENT, STOPPED_STATE, FINISHED, NEVER_STARTED = "running", "silent", "stopped", "finished", "never started"


@dataclass(frozen=True)
class RoleStatus:
    """The last words of one role; `told` has everything that it wrote, and is empty if it never started."""

    name: str
    told: Mapping[str, Any] = field(default_factory=dict)
    reported_at_us: int | None = None
    stopped: bool = False
    heard_at_us: int | None = None  # of a site: when something of it last landed at the center

    @classmethod
    def of(cls, name: str, told: Mapping[str, Any] | None, heard_at_us: int | None = None) -> RoleStatus:
        """Return the status of a role as it wrote it; None if it wrote none."""
        if told is None:
            return cls(name, heard_at_us=heard_at_us)
        values = {key: value for key, value in told.items() if key not in (REPORTED_AT, STOPPED)}
        return cls(name, values, told.get(REPORTED_AT), bool(told.get(STOPPED)), heard_at_us)

    def state(self, now_us: int) -> str:
        """Return what the role does, as far as its last words say."""
        if not self.told:
            return NEVER_STARTED
        if self.told.get("finished"):
            return FINISHED
        if self.stopped:
            return STOPPED_STATE
        age_us = self.age_us(now_us)
        return SILENT if age_us is None or age_us > SILENT_AFTER_US else RUNNING

    def age_us(self, now_us: int) -> int | None:
        """Return how long ago it wrote its last words; None if they do not say when."""
        return None if self.reported_at_us is None else max(0, now_us - self.reported_at_us)

    @property
    def link_down_since_us(self) -> int | None:
        since: int | None = self.told.get("link_down_since_us")
        return since

    @property
    def queued_since_us(self) -> int | None:
        since: int | None = self.told.get("queued_since_us")
        return since

    def to_json(self, now_us: int) -> dict[str, Any]:
        """Return everything that it wrote, and how it is judged."""
        return {
            **self.told,
            "state": self.state(now_us),
            REPORTED_AT: self.reported_at_us,
            "heard_at_us": self.heard_at_us,
        }


@dataclass(frozen=True)
class ProjectStatus:
    """The last words of every role of a project, of declared sites that never started too."""

    sites: Mapping[str, RoleStatus]
    relays: Mapping[str, RoleStatus]
    center: RoleStatus
    sinks: Mapping[str, ProjectStatus] = field(default_factory=dict)  # what runs for other sinks than the center

    @property
    def has_run(self) -> bool:
        """Whether any role has run here."""
        roles = (*self.sites.values(), *self.relays.values(), self.center)
        return any(role.told for role in roles) or any(part.has_run for part in self.sinks.values())

    def to_json(self, now_us: int) -> dict[str, Any]:
        """Return it for `show status`."""
        return {
            "sites": {name: role.to_json(now_us) for name, role in self.sites.items()},
            "relays": {name: role.to_json(now_us) for name, role in self.relays.items()},
            "center": self.center.to_json(now_us) if self.center.told else None,
            "sinks": {name: part.to_json(now_us) for name, part in self.sinks.items()},
        }


def read_project_status(project: Project) -> ProjectStatus:
    """Read the status of every role in the state folder of a project."""
    state = project.state_folder
    center = RoleStatus.of("center", read_status(state / "center"))
    heard = {name: site.get("heard_at_us") for name, site in center.told.get("sites", {}).items()}
    ran = (path.parent.name for path in sorted(state.glob("sites/*/status.json")))
    names = dict.fromkeys((*(s for s in project.sites if s in heard or s in project.edge_sites), *ran))
    sites = {n: RoleStatus.of(n, read_status(project.site_folder(n)), heard.get(n)) for n in names}
    relays = _read_relays(state)
    kept = sorted(path.name for path in (state / SINKS_FOLDER).glob("*"))
    sinks = {name: _read_sink_status(project.at_sink(name, {})) for name in kept if name in project.sites}
    return ProjectStatus(sites, relays, center, sinks)


def _read_sink_status(part: Project) -> ProjectStatus:
    """Read the status of what runs for a sink beside the center; sites say theirs once, for the whole."""
    center = RoleStatus.of(part.sink, read_status(part.state_folder / "center"))
    return ProjectStatus({}, _read_relays(part.state_folder), center)


def _read_relays(state: Path) -> dict[str, RoleStatus]:
    return {
        path.parent.name: RoleStatus.of(path.parent.name, read_status(path.parent))
        for path in sorted(state.glob("relays/*/status.json"))
    }
