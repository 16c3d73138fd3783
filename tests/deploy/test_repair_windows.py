"""Windows that were final, computed again on request from histories: `catchment repair VIEW --window ...`.

A simulated deployment of two sites, one behind a relay. Records that came after the repair horizon are in history and
not in the answers; once their windows are computed again they are. The oracle counts all raw records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catchment.center.results.read import read_results
from catchment.center.results.restate import restate_windows
from catchment.center.statuses import FINAL
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.repair_windows import repair_windows
from catchment.deploy.reports.role_files import write_status
from catchment.deploy.store import DeploymentStore
from catchment.errors import CatchmentError
from catchment.query.window_repair import WindowRepair
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.timeline import SECOND_US
from tests.worlds.result_tables import answers, make_tables, publish

TOML = """\
[project]
name = "again"
center = "center"
[sites.center]
[sites.a]
[sites.b]
[sites.relay]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "relay"
[[links]]
from = "relay"
to = "center"
[defaults]
repair_horizon = "20 seconds"
"""
SQL = """\
CREATE STREAM hits (ts TIMESTAMP, page STRING, bytes BIGINT)
  WITH (event_time = 'ts', sites = 'a,b', path = 'data/{site}');
CREATE STREAM views (ts TIMESTAMP, page STRING, bytes BIGINT)
  WITH (event_time = 'ts', sites = 'a,b', path = 'views/{site}');
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '10 s'), page;
CREATE MATERIALIZED VIEW unseen AS
  SELECT window.start, a.page, count(*) AS n FROM hits a LEFT JOIN views b ON a.page = b.page AND a.bytes = b.bytes
  WHERE b.ts IS NULL GROUP BY window(a.ts, '10 s'), a.page;
CREATE MATERIALIZED VIEW half_minutes AS
  SELECT window.start, page, sum(n) AS n FROM pages GROUP BY window(start, '30 s'), page;
CREATE MATERIALIZED VIEW everything AS
  SELECT window.start, page, sum(n) AS n FROM half_minutes GROUP BY window(start, '60 s'), page;
"""
SPAN_S = 90
LATE_US = BEGIN_US + 12 * SECOND_US  # of the event time of what comes far too late


class World:
    """Two sites, a minute and a half of records; some of the first windows come later than the repair horizon."""

    def __init__(self, folder: Path, features: frozenset[Feature] = frozenset()) -> None:
        self.folder = folder
        (folder / "queries").mkdir(parents=True)
        (folder / "catchment.toml").write_text(TOML)
        (folder / "queries" / "all.sql").write_text(SQL)
        deployment = Deployment.load(folder)
        self.records: dict[str, list[pa.Table]] = {"hits": [], "views": []}
        workload = {}
        for seed, (stream, site) in enumerate((s, site) for s in self.records for site in ("a", "b")):
            table, arrives_us = draw_records(seed)
            self.records[stream].append(table)
            declared = deployment.catalog.streams[stream]
            workload[stream, site] = ArrivingRecords.of(declared, site, table, arrives_us)
        self.simulation = DeploymentSimulation(deployment, workload, 1, features)

    def ask(self, view: str, *windows_s: float) -> None:
        """Ask for windows of a view to be computed again, once the center is there."""
        center = self.simulation.world.center
        if center is None:
            now_us = self.simulation.world.scheduler.now_us
            self.simulation.world.scheduler.at(now_us + SECOND_US, lambda: self.ask(view, *windows_s))
            return
        state = center.deployment.project.state_folder
        write_status(state / "center", {"queries": center.pipeline.status()["queries"]}, False)
        repair_windows(self.folder, view, *(BEGIN_US + round(s * SECOND_US) for s in windows_s))

    def log(self, view: str) -> list[dict[str, Any]]:
        rows = self.simulation.world.store.rows("windows", view)
        assert rows is not None
        return sorted(rows.to_pylist(), key=lambda row: (row["window_start"], row["entry"], row["step"]))

    def window(self, start_s: int) -> datetime:
        return datetime.fromtimestamp(BEGIN_US // SECOND_US + start_s, UTC)

    def counts(self, view: str) -> dict[tuple[int, str], int]:
        rows = self.simulation.world.store.results(view)
        assert rows is not None
        return {
            ((int(r["start"].timestamp() * 1e6) - BEGIN_US) // SECOND_US, r["page"]): r["n"] for r in rows.to_pylist()
        }

    def expected(self, stream: str = "hits") -> Counter[tuple[int, str, int]]:
        """How many records of a stream there are, by the start of their window, the page and the bytes."""
        found: Counter[tuple[int, str, int]] = Counter()
        for row in (row for table in self.records[stream] for row in table.to_pylist()):
            at_s = int(row["ts"].timestamp()) - BEGIN_US // SECOND_US
            found[at_s // 10 * 10, row["page"], row["bytes"]] += 1
        return found


def by_page(counts: Mapping[tuple[int, str, int], int], *starts_s: int) -> Counter[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for (start_s, page, _), n in counts.items():
        found[start_s, page] += n if start_s in starts_s else 0
    return +found


def draw_records(seed: int) -> tuple[pa.Table, Any]:
    chance = np.random.default_rng(seed)
    times_us = np.sort(BEGIN_US + chance.integers(0, SPAN_S * SECOND_US, 150))
    arrives_us = times_us + SECOND_US
    late = chance.random(150) < 0.05
    times_us = np.where(late, LATE_US, times_us)
    order = np.argsort(arrives_us, kind="stable")
    table = pa.table(
        {
            "ts": pa.array(times_us[order]).cast(pa.timestamp("us", tz="UTC")),
            "page": pa.array([f"p{n}" for n in chance.integers(0, 3, 150)]),
            "bytes": pa.array(chance.integers(0, 9, 150)),
        }
    )
    return table, arrives_us[order]


def in_windows(counts: Mapping[tuple[int, str], int], *starts_s: int) -> dict[tuple[int, str], int]:
    return {key: n for key, n in counts.items() if key[0] in starts_s}


def check_first_repair(world: World) -> None:
    """The second window of `pages` was computed again, and that alone."""
    assert in_windows(world.counts("pages"), 10) == by_page(world.expected(), 10)
    log = [row for row in world.log("pages") if row["window_start"] == world.window(10)]
    before = [row for row in log if "on request" not in row["reason"]]
    assert log[-1]["reason"] == "computed again on request, from the histories of the sites"
    assert (log[-1]["status"], log[-1]["missing_sites"]) == (FINAL, [])
    assert log[-1]["revision"] == before[-1]["revision"] + 1
    assert not any("on request" in row["reason"] for row in world.log("pages") if row not in log)


def test_final_windows_are_computed_again_with_what_came_too_late_and_others_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "p")
    refusals: list[CatchmentError] = []

    def refuse(view: str, *windows_s: float) -> None:
        with pytest.raises(CatchmentError) as caught:
            world.ask(view, *windows_s)
        assert caught.value.hint
        refusals.append(caught.value)

    def ask_all() -> None:
        refuse("page", 10)
        refuse("pages", SPAN_S - 5)
        refuse("pages", 11, 19)
        world.ask("pages", 10)
        refuse("pages", 20)
        world.ask("unseen", 0, 31)

    world.simulation.world.scheduler.at(BEGIN_US + (SPAN_S + 5) * SECOND_US, ask_all)
    world.simulation.run()
    said = (
        "there is no view 'page'",
        "those from .* on are not",
        "no window of 'pages' starts",
        "'pages_repair' already",
    )
    for found, expected in zip(refusals, said, strict=True):
        assert re.search(expected, found.message)
    check_first_repair(world)
    deployed = world.simulation.world.current().deployed
    assert "pages_repair" not in {*deployed.repairs, *deployed.views}, "it has ended"

    unseen = {key: n for key, n in world.expected().items() if key not in world.expected("views")}
    repaired = (0, 10, 20, 30)
    assert in_windows(world.counts("unseen"), *repaired) == by_page(unseen, *repaired)
    told = [row["window_start"] for row in world.log("unseen") if "on request" in row["reason"]]
    assert told == [world.window(start_s) for start_s in repaired]


def test_a_window_is_computed_again_once_whatever_crashes_and_is_lost_on_the_way(tmp_path: Path) -> None:
    faults = frozenset({Feature.CRASH, Feature.RECOVERY_CRASH, Feature.LOSS, Feature.DOUBLED})
    world = World(tmp_path / "p", faults)
    at_us = BEGIN_US + (SPAN_S + 5) * SECOND_US
    world.simulation.world.scheduler.at(at_us, lambda: world.ask("pages", 10))
    world.simulation.run()
    check_first_repair(world)


@pytest.mark.parametrize("faults", [frozenset(), frozenset({Feature.CRASH, Feature.POWER_CUT, Feature.DOUBLED})])
def test_views_that_read_a_view_follow_when_its_windows_are_computed_again(
    tmp_path: Path, faults: frozenset[Feature]
) -> None:
    world = World(tmp_path / "p", faults)
    at_us = BEGIN_US + (SPAN_S + 5) * SECOND_US
    world.simulation.world.scheduler.at(at_us, lambda: world.ask("half_minutes", 0))
    world.simulation.run()
    expected = world.expected()
    assert in_windows(world.counts("pages"), 0, 10, 20) == by_page(expected, 0, 10, 20)
    halves: Counter[tuple[int, str]] = Counter()
    for (_, page), n in by_page(expected, 0, 10, 20).items():
        halves[0, page] += n
    assert in_windows(world.counts("half_minutes"), 0) == halves
    later = by_page({key: n for key, n in expected.items() if key[0] in (30, 40, 50)}, 30, 40, 50)
    whole = Counter(halves)
    for (_, page), n in later.items():
        whole[0, page] += n
    assert in_windows(world.counts("everything"), 0) == whole
    reasons = [row["reason"] for row in world.log("half_minutes")]
    assert any("was computed again" in reason or "was revised" in reason for reason in reasons)


def test_a_view_that_is_dropped_ends_what_computes_its_windows_again(tmp_path: Path) -> None:
    project = World(tmp_path / "p").simulation.world.current().project
    (project.state_folder / "center").mkdir(parents=True)
    told = {"queries": {"pages": {"changeable_from_us": BEGIN_US + 60 * SECOND_US}}}
    write_status(project.state_folder / "center", told, False)
    repair_windows(project.folder, "pages", BEGIN_US)
    deployed = DeploymentStore(project.state_folder).read()
    assert deployed is not None
    assert set(deployed.views) == {"pages", "unseen", "pages_repair"}
    (bounded,) = deployed.leaving
    assert deployed.leaving[bounded] == BEGIN_US + 10 * SECOND_US
    gone = deployed.drop("pages")
    assert (gone.views, dict(gone.repairs)) == (("unseen",), {})
    assert bounded not in gone.retire(frozenset()).sharing.fragments


def test_where_records_are_lacking_the_former_answer_stands_and_the_log_says_why(tmp_path: Path) -> None:
    target, source = make_tables(tmp_path), replace(make_tables(tmp_path), query="q_repair")
    repairs = {"q_repair": WindowRepair("q", 0, 3 * 60 * SECOND_US, 4 * 60 * SECOND_US)}
    target.publish(1, [publish(target, 0, [("nl", 200, 5)], revision=3, status=FINAL)])
    again = [
        replace(publish(source, minute, [("de", 200, 7)], status=FINAL, missing_sites=missing), query="q_repair")
        for minute, missing in ((0, ("eu",)), (1, ("eu",)), (3, ()))
    ]
    source.publish(2, again)
    tables = {"q": target, "q_repair": source}
    restated = list(restate_windows("q", repairs, tables, again))
    assert list(restate_windows("other", repairs, tables, again)) == []
    stands, new = restated
    assert (stands.revision, stands.rows.num_rows, stands.missing_sites) == (3, 0, ())
    assert stands.reason.endswith("for lack of records of eu")
    assert (new.revision, new.rows.num_rows, new.missing_sites) == (1, 1, ("eu",)), "there was none before"
    target.publish(2, restated)
    assert answers(read_results(tmp_path, "q")) == {(0, "nl", 200): (1, 5), (1, "de", 200): (1, 7)}
