"""Estimates of final windows are made exact in a second round, from the values that decide them.

Three sites, one behind a relay, simulated. The oracle sorts all raw records, late ones too. Row `p0` has far more
values than `max_distinct`, row `p2` few.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catchment.center.results.second_round import DONE, STAYS
from catchment.center.round_notes import RoundNotes
from catchment.center.statuses import FINAL
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.second_rounds import round_rules
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.timeline import SECOND_US

TOML = """\
[project]
name = "rounds"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[sites.c]
[sites.relay]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "relay"
[[links]]
from = "c"
to = "relay"
[[links]]
from = "relay"
to = "center"
[defaults]
repair_horizon = "20 seconds"
"""
STREAM = """\
CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE, client STRING)
  WITH (event_time = 'ts', sites = 'a,b,c', path = 'data/{site}', history = HISTORY);
"""
TUMBLING = """
CREATE MATERIALIZED VIEW sizes WITH (max_distinct = 20 OPTIONS) AS
  SELECT window.start, page, count(*) AS n, median(ms) AS middle, percentile(ms, array(0.1, 0.9)) AS ends,
         median(ms) FILTER (WHERE client > 'c5') AS some, count(DISTINCT client) AS clients
  FROM hits WHERE ms > -1 GROUP BY window(ts, '30 s'), page;
"""
SLIDING = """
CREATE MATERIALIZED VIEW sizes WITH (max_distinct = 20) AS
  SELECT window.start, count(*) AS n, median(ms) AS middle FROM hits GROUP BY window(ts, '30 s', '10 s');
"""
MEDIANS = """
CREATE MATERIALIZED VIEW sizes WITH (max_distinct = 20) AS
  SELECT window.start, page, count(*) AS n, median(ms) AS middle FROM hits GROUP BY window(ts, '30 s'), page;
"""
DISTINCT = """
CREATE MATERIALIZED VIEW sizes WITH (max_distinct = 20) AS
  SELECT window.start, page, COUNTScount(DISTINCT client) AS clients FROM hits GROUP BY window(ts, '30 s'), page;
"""
SPAN_S = 90
RECORDS = 300  # per site
Record = tuple[float, str | None, float, str]


class World:
    """Three sites, a minute and a half of records; some come late, but before the repair horizon."""

    def __init__(
        self,
        folder: Path,
        sql: str = TUMBLING,
        features: frozenset[Feature] = frozenset(),
        history: str = "true",
        options: str = "",
        seed: int = 1,
        too_late_s: int | None = None,
    ) -> None:
        (folder / "queries").mkdir(parents=True)
        (folder / "catchment.toml").write_text(TOML)
        written = (STREAM + sql).replace("HISTORY", history).replace("OPTIONS", options)
        (folder / "queries" / "all.sql").write_text(written)
        deployment = Deployment.load(folder)
        self.records: list[Record] = []
        self.too_late: list[Record] = []
        workload = {}
        for number, site in enumerate("abc"):
            table, arrives_us = draw_records(10 * seed + number, too_late_s)
            self.records += [
                ((row["ts"].timestamp() - BEGIN_US / 1e6), row["page"], row["ms"], row["client"])
                for row in table.to_pylist()
            ]
            if too_late_s is not None:
                came = arrives_us == BEGIN_US + too_late_s * SECOND_US
                self.too_late += [self.records[n - len(came)] for n in np.flatnonzero(came).tolist()]
            declared = deployment.catalog.streams["hits"]
            workload["hits", site] = ArrivingRecords.of(declared, site, table, arrives_us)
        self.simulation = DeploymentSimulation(deployment, workload, seed, features)

    def run(self) -> None:
        self.simulation.run()

    def rows(self, view: str = "sizes") -> list[dict[str, Any]]:
        found = self.simulation.world.store.results(view)
        assert found is not None
        return list(found.to_pylist())

    def log(self, view: str = "sizes") -> list[dict[str, Any]]:
        found = self.simulation.world.store.windows(view)
        assert found is not None
        return list(found.to_pylist())

    def of(self, row: dict[str, Any], size_s: int = 30) -> list[Record]:
        start_s = row["window_start"].timestamp() - BEGIN_US / 1e6
        mine = [r for r in self.records if start_s <= r[0] < start_s + size_s]
        return [r for r in mine if "page" not in row or r[1] == row["page"]]


def draw_records(seed: int, too_late_s: int | None) -> tuple[pa.Table, Any]:
    chance = np.random.default_rng(seed)
    times_us = np.sort(BEGIN_US + chance.integers(0, SPAN_S * SECOND_US, RECORDS))
    late_us = np.where(chance.random(RECORDS) < 0.1, chance.integers(5, 15, RECORDS), 1) * SECOND_US
    arrives_us = times_us + late_us
    if too_late_s is not None:  # some of the first window come after the repair horizon
        arrives_us[:30:3] = BEGIN_US + too_late_s * SECOND_US
    order = np.argsort(arrives_us, kind="stable")
    pages = [["p0", "p0", None, "it's \\ p1"][n] for n in chance.integers(0, 4, RECORDS)]
    values = np.where(
        chance.random(RECORDS) < 0.3, np.round(chance.normal(50, 9, RECORDS)), chance.normal(50, 9, RECORDS)
    )
    rare = chance.random(RECORDS) < 0.05
    table = pa.table(
        {
            "ts": pa.array(times_us[order]).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array(["p2" if rare[n] else pages[n] for n in order]),
            "ms": pa.array(np.where(rare, 7.0, values)[order]),
            "client": pa.array([f"c{n}" for n in chance.integers(0, 100, RECORDS)[order]]),
        }
    )
    return table, arrives_us[order]


def percentile(values: list[float], rank: float) -> float:
    """The interpolated percentile of a sorted list, as in Spark."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * rank
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low + (place - math.floor(place)) * (high - low)


def check_exact(world: World) -> None:
    """Every row is that of the sorted lists, and says that it is exact."""
    rows = world.rows()
    assert len(rows) >= 12
    for row in rows:
        mine = world.of(row)
        values = [r[2] for r in mine]
        assert row["n"] == len(mine)
        assert row["middle"] == pytest.approx(median(values), abs=1e-12)
        assert row["ends"] == pytest.approx([percentile(values, 0.1), percentile(values, 0.9)], abs=1e-12)
        some = [r[2] for r in mine if r[3] > "c5"]
        assert row["some"] == pytest.approx(median(some), abs=1e-12) if some else row["some"] is None
        assert row["clients"] == len({r[3] for r in mine})
        assert row["status"] == FINAL
        assert row["bound"] == dict.fromkeys(row["bound"], 0.0)


def test_estimates_become_exact_at_three_sites_and_a_relay_with_late_records_in_between(tmp_path: Path) -> None:
    world = World(tmp_path / "p")
    world.run()
    check_exact(world)
    published = world.simulation.world.store.rows("results", "sizes")
    assert published is not None
    first = [row for row in published.to_pylist() if row["revision"] == 1 and row["bound"]["middle"]]
    assert first, "they were published as estimates before"
    for row in first:
        assert row["bound_kind"]["middle"] == "estimated rank"
    told = [row["reason"] for row in world.log() if DONE in row["reason"]]
    assert len(told) == 3, "once for each window"
    deployed = world.simulation.world.current().deployed
    assert not deployed.repairs
    assert set(deployed.views) == {"sizes"}, "what computed it has ended"
    assert not [name for _, name in world.simulation.world.store.tables if name != "sizes"], "and left nothing"


@pytest.mark.parametrize("seed", range(3))
def test_a_second_round_counts_every_record_once_whatever_crashes_and_is_lost(tmp_path: Path, seed: int) -> None:
    faults = frozenset({Feature.CRASH, Feature.RECOVERY_CRASH, Feature.LOSS, Feature.DOUBLED, Feature.POWER_CUT})
    world = World(tmp_path / "p", features=faults, seed=seed)
    world.run()
    check_exact(world)


@pytest.mark.parametrize("too_late_s", [66, 72])
def test_records_that_come_too_late_are_in_history_and_never_in_an_answer_that_says_it_is_exact(
    tmp_path: Path, too_late_s: int
) -> None:
    world = World(tmp_path / "p", MEDIANS, too_late_s=too_late_s)
    assert len(world.too_late) == 30
    world.run()
    for row in world.rows():
        mine = [r for r in world.of(row) if r not in world.too_late]
        assert row["n"] == len(mine), "they are not in the answers"
        if row["bound"]["middle"] == 0.0:
            assert row["middle"] == pytest.approx(median([r[2] for r in mine]), abs=1e-12)
    first = [row["reason"] for row in world.log() if row["window_start"].timestamp() == BEGIN_US / 1e6]
    assert any("were merged" in reason or reason == DONE or "late records are out" in reason for reason in first)


@pytest.mark.parametrize(("too_late_s", "counts"), [(66, "count(*) AS n, "), (72, "")])
def test_a_distinct_count_that_says_it_is_exact_is_of_the_records_of_its_row(
    tmp_path: Path, too_late_s: int, counts: str
) -> None:
    """What came too late is in the histories, and in no other column of the row."""
    world = World(tmp_path / "p", DISTINCT.replace("COUNTS", counts), too_late_s=too_late_s)
    world.run()
    exact = [row for row in world.rows() if row["bound"]["clients"] == 0.0]
    for row in exact:
        mine = [r for r in world.of(row) if r not in world.too_late]
        assert row["clients"] == len({r[3] for r in mine})
        assert not counts or row["n"] == len(mine)
    assert any(row["clients"] > 20 for row in exact), "those that nothing was too late for are made exact"


def test_windows_that_overlap_are_made_exact_together(tmp_path: Path) -> None:
    world = World(tmp_path / "p", SLIDING)
    world.run()
    rows = world.rows()
    assert len(rows) == 11
    for row in rows:
        values = [r[2] for r in world.of(row)]
        assert row["middle"] == pytest.approx(median(values), abs=1e-12)
        assert row["bound"] == {"n": 0.0, "middle": 0.0}


@pytest.mark.parametrize(
    ("history", "options", "why"),
    [
        ("true", ", repair_max_bytes = '2 kB'", "clients would take .* that repair_max_bytes allows"),
        ("true", ", repair = 'never'", "repair is 'never'"),
        ("false", "", "the stream hits keeps no history"),
    ],
)
def test_where_it_would_cost_too_much_or_cannot_be_the_window_says_that_it_stays_an_estimate(
    tmp_path: Path, history: str, options: str, why: str
) -> None:
    world = World(tmp_path / "p", history=history, options=options)
    world.run()
    final = [row for row in world.log() if row["status"] == FINAL and not row["reason"].startswith(DONE)]
    assert final
    for row in final:
        assert STAYS in row["reason"]
        assert re.search(why, row["reason"])
    assert any(row["bound"]["clients"] for row in world.rows())


def test_a_window_whose_rows_all_were_exact_is_not_read_again_when_it_is_final(tmp_path: Path) -> None:
    notes = RoundNotes(tmp_path)
    notes.note_rows("q", 0, 1, False)
    notes.note_rows("q", 0, 2, False)
    assert notes.is_certainly_exact("q", 0)
    assert not notes.is_certainly_exact("q", 0), "only once: nothing is kept of it"
    notes.note_rows("q", 10, 1, False)
    notes.note_rows("q", 10, 2, True)
    assert not notes.is_certainly_exact("q", 10)
    notes.note_rows("q", 20, 2, False)
    assert not notes.is_certainly_exact("q", 20), "its first revision was published by another process"


def test_a_view_that_is_answered_at_another_site_says_that_its_estimates_stay(tmp_path: Path) -> None:
    deployment = World(tmp_path / "p", MEDIANS).simulation.world.current()
    assert round_rules(deployment)["sizes"].refusal is None
    elsewhere = replace(deployment, project=replace(deployment.project, sink="a"))
    assert "at the center only" in str(round_rules(elsewhere)["sizes"].refusal)
