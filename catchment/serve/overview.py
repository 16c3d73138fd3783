"""What a deployment is doing, read from its state folder: sites, links, views and their newest windows.

Everything here is read from files that the running processes write, so that looking disturbs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from catchment.deploy.reports.role_files import STATUS_FILE, STOPPED, read_status
from catchment.deploy.store import DeploymentStore
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.sections import Link
from catchment.query.catalog import load_catalog
from catchment.serve.window_log import WindowLog
from catchment.site.meter import RecentRate
from catchment.timeline import END_OF_TIME_US, SECOND_US

SILENT_AFTER_S = 5.0  # a role that writes its status four times per second and has not for this long is silent


class OverviewReader:
    """Reads the overview of one project, again and again, at the cost of what has changed."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._state = project.state_folder
        self._declared = Routes.declared(project)
        self._routes = self._declared
        self._windows: dict[str, WindowLog] = {}
        self._names: list[str] = []
        self._names_version = -1
        self._rates: dict[str, RecentRate] = {}  # by site: records by the clock

    def read(self) -> dict[str, Any]:
        """Return the overview as it is now, in plain data."""
        self._follow_deployed()
        center = self._role(self._state / "center")
        sites = {name: self._site(name, center) for name in self.project.sites}
        return {
            "project": self.project.name,
            "center": self.project.center,
            "center_age_s": center["age_s"],
            "is_center_silent": center["is_silent"],
            "sites": list(sites.values()),
            "links": [self._link(link, sites) for link in self._used_links(sites)],
            "views": [self._view(name, center["status"], sites) for name in self._view_names(center["status"])],
            "deployment_version": self._names_version,
            "wan": self._wan(sites),
            "refused": center["status"].get("refused", {}),
            "deferral": self._deferral(center["status"]),
        }

    def _deferral(self, center: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return how the center and each relay keep up with merging, and what is deferred there."""
        relays = {name: self._role(self.project.relay_folder(name))["status"] for name in self._routes.relays}
        found = {self.project.center: center, **relays}
        return {name: status["deferral"] for name, status in found.items() if "deferral" in status}

    def windows(self, view: str) -> Sequence[Mapping[str, Any]]:
        """Return the newest windows of a view, oldest first."""
        if view not in self._windows:
            self._windows[view] = WindowLog(self._state, view)
        return self._windows[view].poll()

    def _view_names(self, center: Mapping[str, Any]) -> list[str]:
        """Return the views that run, those of the project's folder before the first run."""
        return sorted({*self._names, *center.get("composed", {})})

    def _follow_deployed(self) -> None:
        """Read what is deployed, when it has changed: the views, and the routes of sites that were moved."""
        store = DeploymentStore(self._state)
        version = store.version
        if version != self._names_version or version == 0:
            deployed = store.read()
            self._names = sorted(deployed.views if deployed is not None else load_catalog(self.project).views)
            self._routes = self._declared.moved({} if deployed is None else deployed.hops)
            self._names_version = version

    def _site(self, name: str, center: Mapping[str, Any]) -> dict[str, Any]:
        is_center = name == self.project.center
        source = self._role(self.project.site_folder(name))
        relay = self._role(self.project.relay_folder(name))
        role = source if source["status"] else relay if relay["status"] else center if is_center else source
        status = role["status"]
        return {
            "name": name,
            "is_center": is_center,
            "is_relay": name in self._routes.relays,
            "state": _state_of(center if is_center else role, has_link=not is_center),
            "age_s": center["age_s"] if is_center else role["age_s"],
            "rows": status.get("rows", 0),
            "read_bytes": status.get("read_bytes"),
            "rows_per_s": self._rows_per_s(name, status.get("rows", 0), role["written_s"]),
            "newest_event_us": status.get("newest_event_us"),
            "pending_rows": status.get("pending_rows", 0),
            "quarantined": status.get("quarantined", 0),
            "implausible_times": status.get("implausible_times", 0),
            "late_after_stated": sum(s["late_records"] for s in status.get("stated", {}).values()),
            "bytes_sent": status.get("bytes_sent", 0),
            "sent_bytes_per_s": status.get("sent_bytes_per_s") or 0.0,
            "queued_bytes": status.get("queued_bytes", 0),
            "round_trip_s": status.get("round_trip_s"),
            "connected": status.get("connected", False),
            "next": self._routes.hops.get(name),
            "first_next": self._declared.hops.get(name),
            "exits": list(((relay["status"] or source["status"]).get("exits") or {}).values()),
            "ways": _ways_of(relay["status"] or source["status"]),
            "forwarded": (relay["status"] or source["status"]).get("forwarded", {}),
            "last_error": status.get("last_error"),
            "shedding": {s: d for s, d in status.get("shedding", {}).items() if d["shedding"] or d["owed_batches"]},
            "contracts": status.get("contracts", {}),
            "caches": [_cache(fragment, told) for fragment, told in status.get("fragments", {}).items()],
        }

    def _rows_per_s(self, site: str, rows: int, written_s: float | None) -> float:
        """Return how many records per second a site has read lately, by the clock; 0 until it was seen to read."""
        rate = self._rates.setdefault(site, RecentRate())
        if rows < rate.total:  # it has started again
            rate = self._rates[site] = RecentRate()
        if written_s is not None:
            rate.note(rows, round(written_s * SECOND_US))
        return rate.per_s or 0.0

    def _wan(self, sites: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
        """Return the bytes that crossed all links, and those that shipping every file as it is would have taken.

        Both count a site that sends through relays once for each link on its way. None: not every source tells.
        """
        births = [site for name, site in sites.items() if site["rows"] and name in self._routes.hops]
        read = [(site["read_bytes"], len(self._routes.route(site["name"]))) for site in births]
        known = [count * links for count, links in read if count is not None]
        return {
            "sent_bytes": sum(_bytes_over(link, sites[link.origin]) for link in self._used_links(sites)),
            "records_bytes": sum(known) if known and len(known) == len(read) else None,
        }

    def _used_links(self, sites: Mapping[str, Mapping[str, Any]]) -> list[Link]:
        """Return the links of the routes, and those of ways around them that carried something."""
        hops = {*self._routes.hops.items(), *self._declared.hops.items()}
        return [
            link
            for link in self.project.links.values()
            if (link.origin, link.destination) in hops or _bytes_around(link, sites[link.origin])
        ]

    @staticmethod
    def _link(link: Link, sites: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        sender = sites[link.origin]
        return {
            "from": link.origin,
            "to": link.destination,
            "capacity_bytes_per_s": link.bandwidth_bytes_per_s,
            "bytes_per_s": sender["sent_bytes_per_s"],
            "bytes_sent": _bytes_over(link, sender),
            "forwarded_bytes": sender["forwarded"].get(link.destination, {}).get("bytes_sent", 0),
            "queued_bytes": sender["queued_bytes"],
            "state": "up" if sender["connected"] and sender["state"] == "running" else sender["state"],
        }

    def _view(self, name: str, center: Mapping[str, Any], sites: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        told = center.get("queries", {}).get(name, {})
        windows = self.windows(name)
        newest = windows[-1] if windows else None
        marks = told.get("marks_us", {})
        return {
            "name": name,
            "newest": newest and {key: value for key, value in newest.items() if key != "history"},
            "closed_us": told.get("closed_us"),
            "open_slices": told.get("open_slices", 0),
            "late_records": told.get("late_records", 0),
            "waits_for": min(marks, key=lambda site: marks[site] or 0) if marks else None,
            "sites": [_standing(name, site, mark_us, marks, sites.get(site, {})) for site, mark_us in marks.items()],
            "suspended": list(_suspensions(told, self.project.center)),
            "windows": self._windows[name].strip,
        }

    def _role(self, folder: Path) -> dict[str, Any]:
        """Return what a role last wrote, and how old that is."""
        status = read_status(folder)
        try:
            written_s = (folder / STATUS_FILE).stat().st_mtime
        except FileNotFoundError:  # never written, or removed with a site that was replaced
            status = None
        if status is None:
            return {"status": {}, "age_s": None, "written_s": None, "is_silent": True}
        age_s = max(0.0, time.time() - written_s)
        return {"status": status, "age_s": round(age_s, 1), "written_s": written_s, "is_silent": age_s > SILENT_AFTER_S}


def _cache(fragment: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the cache of a fragment holds, what it has sent, and why."""
    return {
        "fragment": fragment,
        "policy": told.get("policy"),
        "pending": told.get("pending", 0),
        "updates": told.get("updates", 0),
        "reasons": told.get("reasons", {}),
    }


def _standing(
    view: str, site: str, mark_us: int | None, marks: Mapping[str, int | None], told: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how far a site has come for a view, how far it is behind the first one, and how long it waits."""
    going_us = [m for m in marks.values() if m is not None and m < END_OF_TIME_US]  # others have ended
    behind_s = None if mark_us is None else max(0.0, (max(going_us, default=mark_us) - mark_us) / 1e6)
    contract = told.get("contracts", {}).get(view, {})
    slack_us = contract.get("slack_us")
    return {
        "site": site,
        "mark_us": mark_us,
        "behind_s": behind_s,
        "slack_s": None if slack_us is None else slack_us / 1e6,
        "contract_kept": contract.get("contract_kept"),
    }


def _suspensions(told: Mapping[str, Any], center: str) -> Iterator[dict[str, Any]]:
    """Yield where a view is suspended, and why."""
    for site, fact in told.get("suspended", {}).items():
        yield {"site": site, "reason": fact["reason"], "expression": fact["expression"]}
    unfinished = told.get("unfinished") or {}
    if unfinished.get("reason"):
        yield {"site": center, "reason": unfinished["reason"], "expression": None}


def _state_of(role: Mapping[str, Any], *, has_link: bool) -> str:
    """Return the state of a role in a word or two."""
    status = role["status"]
    if not status:
        return "never started"
    if status.get("finished"):
        return "finished"
    if status.get(STOPPED):
        return "stopped"
    if role["is_silent"]:
        return "silent"
    return "running" if not has_link or status.get("connected") else "link down"


def _ways_of(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return which way a role uses, if it has several; nothing else is worth telling."""
    ways: Mapping[str, Any] = status.get("ways") or {}
    return ways if len(ways.get("known", ())) > 1 else {}


def _bytes_over(link: Link, sender: Mapping[str, Any]) -> int:
    """Return the bytes that a link carried: those of its site, over whichever way, and those forwarded for others."""
    if not sender["ways"] and not sender["forwarded"] and not sender["exits"]:
        return int(sender["bytes_sent"]) if link.destination == sender["first_next"] else 0
    own = 0 if sender["ways"] or link.destination != sender["first_next"] else int(sender["bytes_sent"])
    return own + _bytes_around(link, sender)


def _bytes_around(link: Link, sender: Mapping[str, Any]) -> int:
    own = sum(w["bytes_sent"] for w in sender["ways"].get("known", ()) if w["way"][1] == link.destination)
    own += sum(e["bytes_sent"] for e in sender["exits"] if e["to"] == link.destination)
    forwarded = sender["forwarded"].get(link.destination, {}).get("bytes_sent", 0)
    return int(own) + int(forwarded)
