"""The verdict over stated bounds: rates that are kept pass, others are refused, and every row is judged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates.shed_terms import terms_in
from catchment.deploy.deployment import Deployment
from catchment.errors import ConfigError
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream
from catchment.testing.campaigns.campaign import run_campaign, run_seed
from catchment.testing.campaigns.campaign_results import CampaignResults
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.features import Feature
from catchment.testing.campaigns.late_and_shed import ALWAYS
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.records import ArrivingRecords
from catchment.testing.simulation import DeploymentSimulation, RunReport
from catchment.testing.verdicts.oracle import ViewOracle
from catchment.testing.verdicts.stated_bounds import BoundTally, BoundVerdict, RunTally, Verdicts, tally_bounds
from tests.worlds.tiers import seeds

DELTA = 0.1
STATING = """CREATE STREAM told (ts TIMESTAMP, device STRING, done TIMESTAMP)
  WITH (event_time = 'ts', path = 'data', source = 'device', progress_column = 'done');"""
LATE_AND_SHED = Draw(late_and_shed=True)


def drawn_verdict(miss_share: float, number: int = 400) -> BoundVerdict:
    """Seeds whose rows are missed together: all rows of a third of the windows, or none."""
    chance = np.random.default_rng(1)
    tallies = []
    for _ in range(number):
        windows = chance.random(12) < miss_share
        tallies.append(BoundTally(12 * 5, int(windows.sum()) * 5, 12 * 5 * DELTA))
    return BoundVerdict.of(tallies)


def test_a_rate_that_is_kept_is_shown() -> None:
    verdict = drawn_verdict(0.05)
    assert verdict.is_shown
    assert not verdict.is_refuted
    assert verdict.missed_share == pytest.approx(0.05, abs=0.01)


def test_a_rate_that_is_just_kept_is_not_refuted_though_rows_are_missed_together() -> None:
    assert not drawn_verdict(DELTA).is_refuted


def test_a_rate_that_is_not_kept_is_refuted() -> None:
    verdict = drawn_verdict(0.15)
    assert verdict.is_refuted
    assert "may be" in verdict.describe()


def test_a_few_seeds_show_nothing() -> None:
    verdict = drawn_verdict(0.9, number=5)
    assert not verdict.is_refuted
    assert not verdict.is_shown
    assert BoundVerdict.of([BoundTally()]).describe() == "no bound was stated"


def test_many_claims_to_be_exact_that_hold_do_not_hide_bounds_that_are_missed() -> None:
    verdicts = Verdicts()
    for _ in range(100):
        verdicts.add(RunTally(BoundTally(10, 5, 10 * DELTA), BoundTally(1000, 0, 1000 * DELTA)))
    assert verdicts.is_refuted
    assert not verdicts.exact.is_refuted


def test_a_record_that_is_older_than_its_source_had_stated_breaks_its_word() -> None:
    (stream,) = parse_sql(STATING)
    assert isinstance(stream, Stream)
    in_order = [("a", 1, None), ("b", 1, None), ("a", 2, 2), ("b", 1, None), ("a", 3, None)]
    assert not _stating(stream, in_order).breaks_word
    assert _stating(stream, [("a", 1, 3), ("a", 2, None)]).breaks_word
    assert _stating(stream, [("a", 1, 3), ("b", 2, None)]).breaks_word, "all that were heard had stated more"
    assert _stating(stream, [("a", 1, None), (None, None, 3), ("a", 2, None)]).breaks_word, "it speaks for all"


def _stating(stream: Stream, rows: Sequence[tuple[str | None, int | None, int | None]]) -> ArrivingRecords:
    sources, times, stated = zip(*rows, strict=True)
    table = pa.table({"ts": _instants(times), "device": list(sources), "done": _instants(stated)})
    return ArrivingRecords.of(stream, "a", table, np.arange(len(rows)))


def _instants(seconds: tuple[int | None, ...]) -> pa.Array:
    return pa.array([None if s is None else s * 1_000_000 for s in seconds], pa.timestamp("us", tz="UTC"))


def test_late_and_shed_at_three_sites_and_a_relay_keeps_its_bounds_and_ends_exact() -> None:
    report = run_campaign(seeds(2), LATE_AND_SHED)
    assert not report.problems()
    bounds = report.coverage.bounds.bounds.total
    assert bounds.stated > 20
    assert bounds.missed < bounds.stated / 2
    assert all(report.coverage.features[feature] == report.coverage.seeds for feature in ALWAYS)


@pytest.mark.parametrize("view", ["parts", "kinds_of_pages"])
def test_samples_of_records_that_become_several_rows_are_stated_with_bounds(tmp_path: Path, view: str) -> None:
    chance = random.Random(0)
    features = LATE_AND_SHED.features(chance)
    deployment = Deployment.load(LATE_AND_SHED.project(tmp_path / "project", chance, features).folder)
    workload = LATE_AND_SHED.workload(deployment.catalog, chance, features)
    simulation = DeploymentSimulation(deployment, workload, 0, features)
    simulation.run().assert_right()
    rows = simulation.world.store.rows("results", view)
    assert rows is not None
    for column in ("n", "bytes", "mean"):
        sampled = [
            row["bound_kind"][column]
            for row in rows.to_pylist()
            if ((row["bound_terms"] or {}).get(column) or {}).get("sampled") is not None
        ]
        assert set(sampled) == {"estimated", "unknown"}, f"{column} was never sampled, or claims too much"


@pytest.mark.soak
def test_many_seeds_that_are_late_and_shed_keep_their_bounds_and_end_exact() -> None:
    report = run_campaign(range(100_000, 101_000), LATE_AND_SHED)
    assert not report.problems()
    assert report.coverage.bounds.is_shown


def test_bounds_that_do_not_hold_are_counted_as_missed(tmp_path: Path) -> None:
    """The check of the checker: the same rows against a truth that is a hundred times as great."""
    chance = random.Random(0)
    features = LATE_AND_SHED.features(chance)
    made = LATE_AND_SHED.project(tmp_path / "project", chance, features)
    deployment = Deployment.load(made.folder)
    workload = LATE_AND_SHED.workload(deployment.catalog, chance, features)
    simulation = DeploymentSimulation(deployment, workload, 0, features)
    simulation.run().assert_right()
    world = simulation.world
    oracle = ViewOracle(world.evaluator, workload, {key: log.accepted for key, log in world.logs.items()})
    (plan,) = (p for p in deployment.plans if p.name == "totals")
    names = [a.name for a in plan.fragment.aggregates if a not in terms_in(plan.fragment.aggregates)]
    truth = {start: {(): tuple(rows[n][0].as_py() for n in names)} for start, rows in oracle.values(plan).items()}
    judged = tally_bounds(world.store, plan, truth)
    assert 0 <= judged.bounds.missed < judged.bounds.stated / 2
    assert judged.exact.missed < judged.exact.stated / 2
    greater = {start: {(): tuple(100 * v for v in values[()])} for start, values in truth.items()}
    wrong = tally_bounds(world.store, plan, greater)
    assert wrong.bounds.missed > 0.9 * wrong.bounds.stated
    assert wrong.exact.missed == wrong.exact.stated == judged.exact.stated > 0, "every claim to be exact is judged"


def test_a_campaign_goes_on_after_its_results_and_runs_wrong_seeds_again(tmp_path: Path) -> None:
    draw = Draw(only=frozenset({Feature.LOSS}))
    path = tmp_path / "results.jsonl"
    kept = CampaignResults(path, draw)
    tally = RunTally(BoundTally(10, 1, 1.0), BoundTally(20, 0, 2.0))
    report = RunReport(3, frozenset({Feature.LOSS}), [], records=7, windows=5, bounds=tally)
    report.seen[RareState.REQUEST_LOST] = 2
    kept.append(report)
    kept.append(RunReport(4, frozenset({Feature.LOSS}), ["it was wrong"]))
    with path.open("a") as file:
        file.write('{"draw": "torn')
    assert kept.read()[3] == report
    again = run_campaign(range(3, 5), draw, results=path)
    assert not again.failures, "the seed that was wrong is right now"
    assert again.coverage.seeds == 2
    assert again.coverage.states[RareState.REQUEST_LOST] >= 2
    assert again.coverage.bounds.bounds.total.stated == 10
    assert kept.read()[4] == run_seed_without_trace(4, draw)


def run_seed_without_trace(seed: int, draw: Draw) -> RunReport:
    report = run_seed(seed, draw)
    report.trace.clear()
    report.simulated_s = round(report.simulated_s, 3)
    return report


def test_results_of_another_campaign_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    CampaignResults(path, Draw(covering=True)).append(RunReport(0, frozenset()))
    with pytest.raises(ConfigError, match="another campaign"):
        CampaignResults(path, Draw()).read()
