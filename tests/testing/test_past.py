"""Views that begin in the past, in whole simulated deployments: equal to views that were there from the beginning.

Catches: a batch that is taken in twice or not at all where the past meets what is live, a window that claims to be
exact while its past is missing. Cannot catch: what Spark reads of history; the Spark tests do that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.deploy.deployment import Deployment
from catchment.deploy.submit import submit_text
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.generate import BEGIN_US, draw_features
from catchment.testing.simulated import site as simulated_site
from catchment.testing.simulated.world import WorldOptions
from catchment.timeline import SECOND_US
from tests.worlds.tiers import seeds

HOUR_US = 3_600 * SECOND_US
SITES = ("a", "b", "c")
TOML = """\
[project]
name = "past"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[sites.c]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
[[links]]
from = "c"
to = "center"
[defaults]
sharing = "full"
"""
STREAM = "CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT) WITH (event_time = 'ts', path = 'data/{site}');"
SELECT = """SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes, max(bytes) AS most FROM hits
  GROUP BY window(ts, '5 minutes'), page"""


def hits(seed: int) -> tuple[pa.Table, Any]:
    """Seventy minutes of records, some of them late by up to four minutes."""
    numbers = np.random.default_rng(seed)
    count = 240
    times_us = np.sort(BEGIN_US + numbers.integers(0, 70 * 60 * SECOND_US, count))
    late_us = (numbers.random(count) < 0.1) * numbers.integers(0, 240 * SECOND_US, count)
    table = pa.table(
        {
            "ts": pa.array(times_us).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array([f"p{n}" for n in numbers.integers(0, 5, count)]),
            "bytes": pa.array(numbers.integers(0, 1000, count)),
        }
    )
    return table, times_us + late_us


def make_simulation(folder: Path, tick_s: int = 60) -> DeploymentSimulation:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    view = f"CREATE MATERIALIZED VIEW early_bird AS {SELECT};"
    (folder / "queries" / "all.sql").write_text(f"{STREAM}\n{view}\n")
    deployment = Deployment.load(folder)
    stream = deployment.catalog.streams["hits"]
    workload = {("hits", s): ArrivingRecords.of(stream, s, *hits(seed)) for seed, s in enumerate(SITES)}
    return DeploymentSimulation(deployment, workload, 1, options=WorldOptions(tick_us=tick_s * SECOND_US))


def at(simulation: DeploymentSimulation, after_us: int, act: Callable[[], object]) -> None:
    def carry_out() -> None:
        act()

    simulation.world.scheduler.at(BEGIN_US + after_us, carry_out)


def submit_later(simulation: DeploymentSimulation, start: str) -> None:
    sql = f"CREATE MATERIALIZED VIEW latecomer WITH (start = '{start}') AS {SELECT};"
    at(simulation, HOUR_US, lambda: submit_text(simulation.world.project, sql))


def rows_of(simulation: DeploymentSimulation, view: str) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    rows = simulation.world.store.results(view)
    assert rows is not None
    columns = ("n", "bytes", "most", "status")
    return {(r["start"], r["page"]): tuple(r[c] for c in columns) for r in rows.to_pylist()}


def statuses(simulation: DeploymentSimulation, view: str) -> dict[Any, list[str]]:
    log = simulation.world.store.windows(view)
    assert log is not None
    found: dict[Any, list[str]] = {}
    for row in log.to_pylist():
        found.setdefault(row["window_start"], []).append(row["status"])
    return found


def test_a_view_submitted_after_an_hour_equals_one_that_was_always_there_though_every_site_is_killed(
    tmp_path: Path,
) -> None:
    simulation = make_simulation(tmp_path / "project", tick_s=25)
    submit_later(simulation, "all")
    world = simulation.world
    for number, role in enumerate(world.sites()):
        for after_s in (60, 130, 200):
            at(simulation, HOUR_US + (after_s + 17 * number) * SECOND_US, lambda role=role: world.kill(role))  # type: ignore[misc]
    simulation.run().assert_right()
    assert sum(c.past_chunks for c in world.counts.values()) > 3 * len(SITES), "there was something to be killed in"
    expected = rows_of(simulation, "early_bird")
    assert len(expected) > 50
    assert rows_of(simulation, "latecomer") == expected
    assert {status for *_, status in expected.values()} == {FINAL}


def test_while_the_past_is_read_its_windows_do_not_claim_to_be_exact_and_live_ones_do(tmp_path: Path) -> None:
    simulation = make_simulation(tmp_path / "project", tick_s=25)
    submit_later(simulation, "all")
    world = simulation.world
    role = world.sites()[0]
    at(simulation, HOUR_US + 60 * SECOND_US, lambda: world.kill(role, back_after_us=260 * SECOND_US))
    seen: dict[str, set[str]] = {}

    def look() -> None:
        log = world.store.windows("latecomer")
        for row in [] if log is None else log.to_pylist():
            seen.setdefault(row["status"], set()).add(row["window_start"].isoformat())

    at(simulation, HOUR_US + 280 * SECOND_US, look)
    simulation.run().assert_right()
    assert len(seen[ON_TIME]) >= 11, "of every past window something is published"
    assert not seen.get(EXACT), "one site still reads its past"
    assert rows_of(simulation, "latecomer") == rows_of(simulation, "early_bird")
    past = [found for start, found in statuses(simulation, "latecomer").items() if len(found) > 1]
    assert all(found.index(FINAL) == len(found) - 1 for found in past)


@pytest.mark.parametrize("start", ["20 minutes", "2026-01-01 00:41:00"])
def test_a_start_in_the_past_is_the_first_whole_window_after_it(tmp_path: Path, start: str) -> None:
    simulation = make_simulation(tmp_path / "project")
    submit_later(simulation, start)
    simulation.run().assert_right()
    expected = rows_of(simulation, "early_bird")
    found = rows_of(simulation, "latecomer")
    first = min(start for start, _ in found)
    assert first.isoformat()[11:16] in ("00:40", "00:45")
    assert found == {place: values for place, values in expected.items() if place[0] >= first}


def test_windows_of_which_history_lacks_something_are_never_exact_and_name_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = simulated_site._past_batch

    def forget(log: simulated_site.SourceLog, number: int) -> object:
        return None if log.arrivals.site == "b" and number < 3 else find(log, number)

    monkeypatch.setattr(simulated_site, "_past_batch", forget)
    simulation = make_simulation(tmp_path / "project")
    submit_later(simulation, "all")
    simulation.run()
    log = simulation.world.store.windows("latecomer")
    assert log is not None
    hour = [r for r in log.to_pylist() if r["window_start"].isoformat()[11:16] < "00:55"]
    assert hour
    assert EXACT not in {r["status"] for r in hour}
    assert all("b" in r["missing_sites"] for r in hour)
    live = [r for r in log.to_pylist() if r["window_start"].isoformat()[11:16] > "01:00"]
    assert {tuple(r["missing_sites"]) for r in live} == {()}


@pytest.mark.parametrize("seed", seeds(8))
def test_under_any_faults_views_that_begin_in_the_past_become_those_of_the_oracle(seed: int) -> None:
    features = draw_features(random.Random(seed)) | {Feature.PAST}
    run_seed(seed, Draw(only=features)).assert_right()
