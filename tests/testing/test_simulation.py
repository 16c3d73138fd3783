"""Whole deployments under seeded faults: their answers are those of the oracle, and they become exact.

Catches: records lost or counted twice, statuses that claim too much, roles that never go on, in any combination of
features. Cannot catch: what Spark, sockets and real disks do; the other tests run those.
"""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.testing import ArrivingRecords, BrokenSimulationError, DeploymentSimulation, Feature
from catchment.testing.campaigns.campaign import (
    Coverage,
    matrix,
    replay_command,
    run_campaign,
    run_seed,
)
from catchment.testing.campaigns.combinations import draw_covering, refusals, triple_table, uncovered
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.generate import BEGIN_US, draw_features
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.disk import SimulatedDisk
from catchment.testing.simulated.tables import MemoryStore
from catchment.testing.simulation import RunReport
from catchment.testing.verdicts.checks import ViewCheck
from tests.worlds.tiers import seeds

SECOND_US = 1_000_000
TOML = """\
[project]
name = "counted"
center = "center"
[sites.a]
[sites.b]
[sites.center]
[[links]]
from = "a"
to = "center"
[[links]]
from = "b"
to = "center"
"""
SQL = """\
CREATE STREAM hits (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', path = 'data/{site}');
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n FROM hits
  GROUP BY window(ts, '10 seconds'), page HAVING count(*) > 1;
"""


@pytest.mark.parametrize("seed", seeds(20))
def test_under_any_faults_answers_are_those_of_the_oracle_and_become_exact(seed: int) -> None:
    run_seed(seed).assert_right()


@pytest.mark.soak
def test_a_long_campaign_enters_every_rare_state_and_every_pair_of_features() -> None:
    report = run_campaign(range(100_000, 101_000))
    assert not report.problems()


def test_one_seed_gives_one_run() -> None:
    first, second = run_seed(3), run_seed(3)
    assert first.trace
    assert (first.trace, first.seen, first.windows) == (second.trace, second.seen, second.windows)


def hits(times_s: list[int], page: str = "p") -> pa.Table:
    instants = pa.array([BEGIN_US + t * SECOND_US for t in times_s], pa.int64())
    return pa.table({"ts": instants.cast(pa.timestamp("us", tz="UTC")), "page": [page] * len(times_s)})


def counted_project(folder: Path) -> DeploymentSimulation:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(SQL)
    deployment = Deployment.load(folder)
    stream = deployment.catalog.streams["hits"]
    records = {"a": hits([1, 2, 11]), "b": hits([3, 14, 15, 29])}
    return DeploymentSimulation(
        deployment, {("hits", site): ArrivingRecords.of(stream, site, table) for site, table in records.items()}
    )


def test_the_answers_of_a_project_can_be_read_as_its_users_read_them(tmp_path: Path) -> None:
    simulation = counted_project(tmp_path / "project")
    simulation.run().assert_right()
    rows = simulation.world.store.results("pages")
    assert rows is not None
    assert {(r["page"], r["n"], r["status"]) for r in rows.to_pylist()} == {("p", 3, "final")}, "HAVING leaves one out"


def test_a_record_that_is_not_in_the_answers_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the checker."""
    answered = ViewCheck._answered
    monkeypatch.setattr(ViewCheck, "_answered", lambda self: {s: t.slice(1) for s, t in answered(self).items()})
    with pytest.raises(BrokenSimulationError, match=r"\('p',\) is None, expected \(3,\)"):
        counted_project(tmp_path / "project").run().assert_right()


def test_a_disk_that_syncs_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "fsync", lambda self, file: None)
    features = frozenset({Feature.POWER_CUT, Feature.CRASH, Feature.RECOVERY_CRASH})
    assert run_campaign(range(8), Draw(only=features)).failures


def test_results_that_are_not_synced_before_the_journal_forgets_them_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_all(self: MemoryStore, chance: object) -> int:
        for table in self.tables.values():
            del table.appended[:]
        return 1

    monkeypatch.setattr(MemoryStore, "cut_power", lose_all)
    features = frozenset({Feature.POWER_CUT})
    assert any(run_seed(seed, Draw(only=features)).problems for seed in range(60)), "about one seed in seven notices it"


def test_a_campaign_names_what_it_has_not_reached_and_how_to_run_a_seed_again() -> None:
    coverage = Coverage()
    coverage.add(RunReport(7, frozenset({Feature.CRASH, Feature.LOSS})))
    missing = list(coverage.missing())
    assert f"never: {RareState.SITE_DEAD.value}" in missing
    assert "never together: crash and loss" not in missing
    assert "never together: crash and away" in missing
    assert "| 16 crash |" in matrix(coverage)
    assert replay_command(7) == "python -m catchment.testing --seed 7"


def test_a_covering_campaign_lets_every_three_combined_features_meet() -> None:
    coverage = Coverage()
    for seed in range(100):
        chance = random.Random(seed)
        coverage.add(RunReport(seed, draw_covering(chance, draw_features(chance))))
    assert not list(uncovered(coverage.triples))
    assert list(uncovered(Coverage().triples))


def test_one_view_may_have_any_three_of_the_features_and_what_it_may_not_would_be_marked(tmp_path: Path) -> None:
    assert not refusals(tmp_path)
    refused = [frozenset({Feature.CONTRACT, Feature.JOIN})]
    assert "| contract, join | look-up 0 R," in triple_table(Coverage().triples, refused)
    assert "join | 0 R |" in matrix(Coverage(), refused)
