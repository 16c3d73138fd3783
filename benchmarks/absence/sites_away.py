"""A simulated deployment in which sites are away for a while, dead or behind a cut link; what is seen of it.

The cores, boxes and loops are those of production (`catchment.testing`); the clock, the disks and the links are
simulated, so an hour of 34 sites takes minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.deploy.deployment import Deployment
from catchment.storage.codec import encode
from catchment.testing import ArrivingRecords, DeploymentSimulation
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.testing.simulated.site import SimulatedSite
from catchment.testing.simulated.world import SITE, Role, World, WorldOptions
from catchment.timeline import SECOND_US

WINDOW_S = 10
TICK_S = 5
FRESHNESS_S = 10
RECORD_EVERY_S = 2
# A record after the window, one trigger of its site, freshness, one trigger of the center; triggers vary by a fifth.
FRESH_S = 2 * RECORD_EVERY_S + 1.2 * TICK_S + FRESHNESS_S + 1.2 * TICK_S + 1
BANDWIDTH_BYTES_PER_S = 2_000
BEFORE_S = 60  # in which every site is there
SQL = """\
CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT) WITH (event_time = 'ts', path = 'data/{site}');
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes
  FROM hits GROUP BY window(ts, '10 seconds'), page;
"""


@dataclass
class Absence:
    """Some sites are away for a while, dead or behind a cut link; what is seen of it."""

    simulation: DeploymentSimulation
    away: tuple[str, ...]
    return_us: int
    held_bytes: list[tuple[int, int]] = field(default_factory=list)  # when, and what the center held for open windows
    state_bytes: list[int] = field(default_factory=list)  # all that its core remembers, every five minutes
    backlog_bytes: dict[str, int] = field(default_factory=dict)  # at the return
    backlog_ends: dict[str, int] = field(default_factory=dict)  # the newest segment of it
    drained_us: dict[str, int] = field(default_factory=dict)

    @property
    def world(self) -> World:
        return self.simulation.world

    def role(self, site: str) -> Role:
        """Return the process of a site."""
        return self.world.roles[SITE, site]

    def windows(self) -> dict[int, list[dict[str, Any]]]:
        """Every published revision by the end of its window, in seconds since the beginning."""
        log = self.world.store.windows("pages")
        assert log is not None
        found: dict[int, list[dict[str, Any]]] = {}
        for row in log.to_pylist():
            found.setdefault(int(row["window_end"].timestamp()) - BEGIN_US // SECOND_US, []).append(row)
        return found

    def delays_s(self) -> dict[int, float]:
        """How long after its end each window was first answered; the last ones wait for the end of the streams."""
        first = {
            end: (log[0]["published_at"] - log[0]["window_end"]).total_seconds() for end, log in self.windows().items()
        }
        return {end: first[end] for end in sorted(first)[:-2]}

    def counts(self, *, first: bool) -> dict[int, int]:
        """The records in the first, or in the last, answer of each window."""
        rows = self.world.store.rows("results", "pages")
        assert rows is not None
        found: dict[int, dict[str, tuple[int, int]]] = {}
        for row in rows.to_pylist():
            end = int(row["window_end"].timestamp()) - BEGIN_US // SECOND_US
            if not first or row["revision"] == 1:
                found.setdefault(end, {})[row["page"]] = row["revision"], row["n"]
        return {end: sum(n for _, n in pages.values()) for end, pages in found.items()}

    def watch(self) -> None:
        """Look at the center and at the backlogs every few seconds."""
        center = self.world.center
        now_us = self.world.scheduler.now_us
        if center is not None:
            self.held_bytes.append((now_us, center.pipeline.open_state.size_bytes))
            if len(self.held_bytes) % 60 == 0:
                self.state_bytes.append(len(encode(center.pipeline.core.snapshot())))
        for site in self.backlog_ends.keys() - self.drained_us.keys():
            if self._is_drained(site):
                self.drained_us[site] = now_us
        self.world.scheduler.after(TICK_S * SECOND_US, self.watch)

    def _is_drained(self, site: str) -> bool:
        running = self.role(site).running
        assert isinstance(running, SimulatedSite)
        return all(segment.sequence > self.backlog_ends[site] for segment in running.outbox.pending())

    def note_backlog(self) -> None:
        """Note what waits at the sites that are away."""
        for site in self.away:
            running = self.role(site).running
            assert isinstance(running, SimulatedSite)
            pending = running.outbox.pending()
            self.backlog_bytes[site] = sum(segment.size_bytes for segment in pending)
            self.backlog_ends[site] = max(segment.sequence for segment in pending)


def make_absence(folder: Path, sites: int, away: int, away_s: int, after_s: int, outbox_max: str = "1 GB") -> Absence:
    """Return a deployment whose first sites will be away, with records every two seconds at each site."""
    names = [f"s{number}" for number in range(sites)]
    links = "".join(
        f'[sites.{n}]\n[[links]]\nfrom = "{n}"\nto = "center"\nbandwidth = "{BANDWIDTH_BYTES_PER_S} B/s"\n'
        f'outbox_max = "{outbox_max}"\n'
        for n in names
    )
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(
        f'[project]\nname = "away"\ncenter = "center"\n[sites.center]\n{links}'
        f'[defaults]\nslack = "0 s"\nfreshness = "{FRESHNESS_S} s"\nrepair_horizon = "3 h"\n'
    )
    (folder / "queries" / "all.sql").write_text(SQL)
    deployment = Deployment.load(folder)
    stream = deployment.catalog.streams["hits"]
    span_s = BEFORE_S + away_s + after_s
    workload = {
        ("hits", site): ArrivingRecords.of(stream, site, draw_hits(number, span_s)) for number, site in enumerate(names)
    }
    options = WorldOptions(tick_us=TICK_S * SECOND_US, checkpoint_chance=0.003)
    simulation = DeploymentSimulation(deployment, workload, 1, options=options)
    absence = Absence(simulation, tuple(names[:away]), BEGIN_US + (BEFORE_S + away_s) * SECOND_US)
    absence.watch()
    return absence


def draw_hits(seed: int, span_s: int) -> pa.Table:
    """Return one record per two seconds of five pages, at drawn instants."""
    numbers = np.random.default_rng(seed)
    count = span_s // RECORD_EVERY_S
    regular_us = BEGIN_US + np.arange(count) * RECORD_EVERY_S * SECOND_US
    times_us = regular_us + numbers.integers(0, RECORD_EVERY_S * SECOND_US, count)
    return pa.table(
        {
            "ts": pa.array(times_us).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array([f"p{n}" for n in numbers.integers(0, 5, count)]),
            "bytes": pa.array(numbers.integers(0, 1000, count)),
        }
    )


def let_sites_die(absence: Absence) -> None:
    """End the process of each site that is away, and start it again at the return."""
    begin_us = BEGIN_US + BEFORE_S * SECOND_US

    def kill() -> None:
        for site in absence.away:
            absence.world.kill(absence.role(site), back_after_us=absence.return_us - begin_us)

    absence.world.scheduler.at(begin_us, kill)


def cut_links(absence: Absence) -> None:
    """Cut the links of the sites that are away, which go on reading, and heal all of them at once."""

    def carry(carries: bool) -> None:
        for site in absence.away:
            absence.world.link(site, "center").weather.carries_requests = carries

    scheduler = absence.world.scheduler
    scheduler.at(BEGIN_US + BEFORE_S * SECOND_US, lambda: carry(False))
    scheduler.at(absence.return_us, absence.note_backlog)
    scheduler.at(absence.return_us, lambda: carry(True))
