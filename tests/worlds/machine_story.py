"""Records that appear at machines which share nothing, and what the center must publish of them in the end."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import read_status
from catchment.project.joined_site import DEPLOYMENT_FILE
from tests.worlds.control_world import ControlWorld
from tests.worlds.projects import START, group, make_records
from tests.worlds.waiting import wait_until

Records = list[dict[str, Any]]
Counts = dict[tuple[datetime, Any], int]

ADDED = 10  # minutes after the start of time: from here on a further site counts
RETIRED = 20  # from here on one counts no more
ALONE = 30  # what comes from here on comes while the center is away
SLOWEST = """CREATE MATERIALIZED VIEW slowest AS
  SELECT window.start, max(ms) AS high FROM hits GROUP BY window(ts, '1 minute');"""


class MachineStory:
    """The machines of some sites, by name, all records so far, and the waiting for answers that equal a recount."""

    def __init__(self, world: ControlWorld) -> None:
        self.world = world
        self.homes: dict[str, Path] = {}
        self.records: dict[str, Records] = {}

    def add(self, site: str) -> Path:
        """Make the machine of a site, with a folder where its records will be."""
        self.homes[site] = self.world.make_site(site)
        (self.homes[site] / "data" / site).mkdir(parents=True)
        return self.homes[site]

    def put(self, name: str, minute: int, sites: str, spread_s: int = 300) -> datetime:
        """Let a file of records appear at each of some sites; return before which instant all windows will close."""
        ends = []
        for site in sites:
            records = _records_from(minute, ord(site) + minute, spread_s)
            draft = self.homes[site] / f"{name}.draft"
            draft.write_text("".join(json.dumps(record) + "\n" for record in records))
            draft.rename(self.homes[site] / "data" / site / f"{name}.json")
            self.records.setdefault(site, []).extend(records)
            ends.append(max(datetime.fromisoformat(record["ts"]) for record in records))
        return min(ends).replace(second=0, microsecond=0)

    def lose(self, site: str, since: datetime) -> None:
        """Expect nothing of a site from an instant on: it was retired before it had completed those windows."""
        self.records[site] = [r for r in self.records[site] if datetime.fromisoformat(r["ts"]) < since]

    def missing_sites(self, view: str, start: datetime) -> list[str]:
        """Return whom the newest answer of a window names as missing."""
        windows = newest_windows(read_windows(self.world.folder / "state", view)).to_pylist()
        return next((w["missing_sites"] for w in windows if w["window_start"] == start), [])

    def wait_for(self, view: str, key: str, until: datetime, since: datetime = START) -> None:
        """Wait until every window between two instants is published with the counts of all records."""
        everything = [record for mine in self.records.values() for record in mine]
        counted = group(everything, 60, 60, key)
        wanted = {place: len(rows) for place, rows in counted.items() if since <= place[0] < until}
        wait_until(
            lambda: self.published(view, key, since, until) == wanted,
            f"{view} to have every window before {until}",
            state=lambda: _difference(self.published(view, key, since, until), wanted),
            pause_s=0.5,
        )

    def published(self, view: str, key: str, since: datetime, until: datetime) -> Counts:
        """Return what the center has published of some windows; nothing if there is no table yet."""
        state = self.world.folder / "state"
        if not (state / "windows" / view / "_delta_log").is_dir():
            return {}
        rows = read_results(state, view).to_pylist()
        return {(r["start"], r[key]): r["n"] for r in rows if since <= r["start"] < until}

    def wait_until_followed(self, view: str, sites: str) -> None:
        """Wait until some sites run the fragment of a view, as their own status says."""
        wait_until(lambda: all(self._follows(site, view) for site in sites), f"{sites} to follow {view}", pause_s=0.3)

    def wait_until_retired(self, retired: str, site: str) -> None:
        """Wait until a site has heard that another one is retired."""
        wait_until(
            lambda: retired in Deployment.load(self.homes[site]).deployed.orders.retired,
            f"{site} to hear of it",
            pause_s=0.3,
        )

    def _follows(self, site: str, view: str) -> bool:
        if not (self.homes[site] / "state" / DEPLOYMENT_FILE).exists():
            return False  # it has not heard from the center yet
        deployed = Deployment.load(self.homes[site]).deployed
        if view not in deployed.views:
            return False
        status = read_status(self.homes[site] / "state" / "sites" / site) or {}
        return deployed.derivation(view).fragment in status.get("fragments", {})


def instant(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def instant_us(minute: int) -> int:
    return round(instant(minute).timestamp() * 1e6)


def _records_from(minute: int, seed: int, spread_s: int) -> Records:
    records = make_records(60, seed, spread_s)
    for record in records:
        later = datetime.fromisoformat(record["ts"]) + timedelta(minutes=minute)
        record["ts"] = later.isoformat().replace("+00:00", "Z")
    return records


def _difference(found: Counts, wanted: Counts) -> dict[tuple[datetime, Any], tuple[int | None, int | None]]:
    places = sorted({*found, *wanted}, key=str)
    return {p: (found.get(p), wanted.get(p)) for p in places if found.get(p) != wanted.get(p)}
