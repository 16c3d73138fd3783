"""Contracts on joins and on `explode`: what windows lack, or have too much, is learned from those before them.

Catches: a bound that is stated too early, from windows that may still change, or too small; a row that is said to lack
less than it does, or that a late partner takes back though its bound did not allow for that.
Cannot catch: streams whose windows are not alike, for which no such bound holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import partials
from catchment.center.windows.learned import MAX_LEARNED, LearnedErrors, RowChanges, changes_of_answers
from catchment.deploy.deployment import Deployment
from catchment.quality.merge_sites import Lateness
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature
from catchment.testing.verdicts.stated_bounds import BoundVerdict
from catchment.timeline import SECOND_US, WindowSpec
from tests.worlds.tiers import examples
from tests.worlds.world import make_fragment

DELTA = 0.2  # four windows are needed
UNKNOWN = Lateness(None, 0.0)


def learn(shares: list[float], whole: float = 100.0) -> LearnedErrors:
    """Windows 0, 1, ... that lacked these shares of a total when they closed, and are settled."""
    learned = LearnedErrors()
    for start, share in enumerate(shares):
        learned.close(start, (whole * (1.0 - share),))
        learned.revise(start, (whole,))
        learned.settle(start)
    return learned


def amount(learned: LearnedErrors, start: int, unsettled: frozenset[int] = frozenset()) -> float | None:
    return learned.lateness(start, ("n",), UNKNOWN, unsettled, DELTA).of("n").amount


def test_a_window_lacks_what_the_worst_of_the_last_ones_lacked() -> None:
    learned = learn([0.5, 0.1, 0.2, 0.0, 0.1])
    learned.close(9, (80.0,))
    assert amount(learned, 9) == pytest.approx(20.0)  # 80 / (1 - 0.2) - 80: the half that one lacked is too long ago
    learned.add(9, (15.0,))
    assert amount(learned, 9) == pytest.approx(5.0)  # what has come since is not missing any more


def test_nothing_is_stated_until_enough_windows_are_settled() -> None:
    learned = learn([0.1, 0.1, 0.1])
    learned.close(9, (80.0,))
    assert amount(learned, 9) is None
    learned = learn([0.1] * 6)
    learned.windows[3].is_settled = False
    learned.close(9, (80.0,))
    assert amount(learned, 9, frozenset({3})) is None, "those behind it settled sooner, which is no measure"
    assert amount(learned, 9) is None, "it never was whole: nothing is known of what it lacked"


def test_a_total_that_shrank_or_began_at_nothing_gives_no_bound() -> None:
    for first, last in ((100.0, 90.0), (0.0, 10.0), (-5.0, 10.0)):
        learned = learn([0.1] * 3)
        learned.close(3, (first,))
        learned.revise(3, (last,))
        learned.settle(3)
        learned.close(9, (80.0,))
        assert amount(learned, 9) is None


def test_what_is_used_up_is_not_said_to_be_exact() -> None:
    learned = learn([0.1] * 4)
    learned.close(9, (90.0,))
    learned.add(9, (11.0,))
    assert amount(learned, 9) is None
    learned = learn([0.0] * 6)
    learned.close(9, (90.0,))
    assert 0.0 < (amount(learned, 9) or 0.0) < 1e-6


def test_a_late_record_of_a_settled_window_counts_too() -> None:
    learned = learn([0.1] * 4)
    learned.revise(2, (200.0,))
    learned.close(9, (80.0,))
    assert amount(learned, 9) == pytest.approx(80.0 / 0.45 - 80.0)


def test_only_so_many_windows_are_remembered() -> None:
    assert len(learn([0.0] * (MAX_LEARNED + 5)).windows) == MAX_LEARNED


@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_windows_that_are_alike_lack_more_than_stated_no_more_often_than_delta(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.choice([rng.beta(1, 5, 2000), rng.random(2000) ** 8])
    learned = LearnedErrors()
    missed = stated = 0
    for start, share in enumerate(shares.tolist()):
        whole = float(rng.integers(1, 1000))
        learned.close(start, (whole * (1.0 - share),))
        most = amount(learned, start)
        if most is not None:
            stated += 1
            missed += whole * share > most * (1 + 1e-9)
        learned.revise(start, (whole,))
        learned.settle(start)
    assert stated > 1900
    assert missed / stated < DELTA + 4 * np.sqrt(DELTA * (1 - DELTA) / stated)


# --- rows that are taken back -----------------------------------------------------------------------------------------


def test_a_row_may_be_off_by_what_is_still_added_or_taken_whichever_is_more() -> None:
    learned = LearnedErrors()
    for start, (added, taken) in enumerate([(5.0, 10.0), (20.0, 0.0), (0.0, 0.0), (1.0, 2.0)]):
        learned.close(start, (100.0,), (100.0,))
        learned.change(start, (100.0 + added - taken,), [RowChanges(0.0, added, taken)])
        learned.settle(start)
    learned.close(9, (50.0,), (50.0,))
    assert amount(learned, 9) == pytest.approx(10.0)
    learned.change(9, (57.0,), [RowChanges(0.0, 8.0, 1.0)])
    assert amount(learned, 9) == pytest.approx(4.0), "of 5 that may be taken 1 was, of 10 that may be added 8 were"
    learned.change(9, (53.0,), [RowChanges(0.0, 0.0, 4.1)])
    assert amount(learned, 9) is None, "more was taken than ever was"


def test_a_window_that_is_computed_again_says_nothing_of_what_was_taken_from_it() -> None:
    learned = LearnedErrors()
    for start in range(4):
        learned.close(start, (100.0,), (100.0,))
        learned.settle(start)
    learned.close(9, (50.0,), (50.0,))
    assert amount(learned, 9) is not None
    learned.close(2, (90.0,), (90.0,))
    assert amount(learned, 9) is None


def test_a_sum_that_is_not_a_number_has_no_bound() -> None:
    learned = LearnedErrors()
    for start in range(4):
        learned.close(start, (float("nan"),), (float("nan"),))
        learned.settle(start)
    learned.close(9, (50.0,), (50.0,))
    assert amount(learned, 9) is None
    learned = learn([0.1] * 4)
    learned.close(10, (float("nan"),), (float("nan"),))
    assert amount(learned, 10) is None


ANSWERS = make_fragment(WindowSpec(SECOND_US, SECOND_US))
CHANGED_ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-9, 9)), max_size=12)


@given(before=CHANGED_ROWS, after=CHANGED_ROWS)
def test_what_a_revision_adds_and_takes_is_that_of_its_rows_one_by_one(
    before: list[tuple[str | None, int]], after: list[tuple[str | None, int]]
) -> None:
    def lift(rows: list[tuple[str | None, int]]) -> pa.Table:
        keys, values = pa.array([k for k, _ in rows], pa.string()), pa.array([x for _, x in rows], pa.int64())
        table = pa.table({"k": keys, "v": values})
        return partials.lift(table, ["k"], list(ANSWERS.aggregates), {"n": None, "total": "v"})

    found = changes_of_answers(ANSWERS, lift(before), lift(after))
    for change, power in zip(found, (0, 1), strict=True):  # a count sums up x ** 0
        grown = [
            sum(x**power for k, x in after if k == key) - sum(x**power for k, x in before if k == key)
            for key in ("a", "b", None)
        ]
        assert change.added == pytest.approx(sum(g for g in grown if g > 0))
        assert change.taken == pytest.approx(-sum(g for g in grown if g < 0))


@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_rows_that_move_between_keys_are_off_by_more_than_stated_no_more_often_than_delta(seed: int) -> None:
    """Windows of rows of either sign, which revisions raise, lower and move; brute force follows every row."""
    rng = np.random.default_rng(seed)
    learned = LearnedErrors()
    missed = stated = 0
    for start in range(1000):
        rows = rng.normal(rng.uniform(-5, 5), 20, 6)
        steps = [rng.normal(0, rng.exponential(3), 6) * (rng.random(6) < 0.3) for _ in range(rng.integers(0, 4))]
        truth = rows + sum(steps)
        learned.close(start, (rows.sum(),), (np.abs(rows).sum(),))
        most = amount(learned, start)
        if most is not None:
            stated += 1
            missed += bool(np.abs(truth - rows).max(initial=0.0) > most * (1 + 1e-9))
        for step in steps:
            rows = rows + step
            changes = RowChanges(0.0, step[step > 0].sum(), -step[step < 0].sum())
            learned.change(start, (rows.sum(),), [changes])
        learned.settle(start)
    assert stated > 900
    assert missed / stated < DELTA + 4 * np.sqrt(DELTA * (1 - DELTA) / stated)


# --- whole deployments ------------------------------------------------------------------------------------------------

TOML = """
[project]
name = "shop"
center = "center"
[sites.us]
[sites.eu]
[sites.hub]
[sites.center]
[[links]]
from = "us"
to = "hub"
[[links]]
from = "eu"
to = "center"
[[links]]
from = "hub"
to = "center"
[defaults]
trigger = "1 s"
repair_horizon = "60 s"
repair_after = "2 s"
freshness = "60 s"
relay_wait = "2 s"
"""
SQL = """
CREATE STREAM orders (ts TIMESTAMP, customer INT, item STRING, parts STRING, amount BIGINT)
  WITH (event_time = 'ts', path = 'orders/{site}', sites = 'us,eu');
CREATE STREAM payments (ts TIMESTAMP, customer INT, paid BIGINT)
  WITH (event_time = 'ts', path = 'payments/{site}', sites = 'us,eu');
CREATE STREAM returns (ts TIMESTAMP, customer INT)
  WITH (event_time = 'ts', path = 'returns/{site}', sites = 'eu');
CREATE MATERIALIZED VIEW paid WITH (max_error = 0.2, confidence = 0.8) AS
  SELECT window.start, o.item, count(*) AS n, sum(p.paid) AS paid
  FROM orders o JOIN payments p ON o.customer = p.customer GROUP BY window(o.ts, '2 seconds'), o.item;
CREATE MATERIALIZED VIEW returned WITH (max_error = 0.3, confidence = 0.8) AS
  SELECT window.start, count(*) AS n FROM orders o JOIN payments p ON o.customer = p.customer
  JOIN returns r ON r.customer = p.customer GROUP BY window(o.ts, '2 seconds');
CREATE MATERIALIZED VIEW unpaid WITH (max_error = 0.2, confidence = 0.8) AS
  SELECT window.start, o.item, p.customer IS NULL AS open, count(*) AS n, sum(o.amount - 50) AS amount,
         sum(p.paid) AS paid
  FROM orders o LEFT JOIN payments p ON o.customer = p.customer
  GROUP BY window(o.ts, '2 seconds'), o.item, p.customer IS NULL;
CREATE MATERIALIZED VIEW of_either WITH (max_error = 0.2, confidence = 0.8) AS
  SELECT window.start, count(*) AS n, sum(o.amount) AS amount
  FROM orders o FULL JOIN payments p ON o.customer = p.customer GROUP BY window(o.ts, '2 seconds');
CREATE MATERIALIZED VIEW used WITH (max_error = 0.2, confidence = 0.8) AS
  SELECT window.start, part, count(*) AS n, sum(amount) AS amount
  FROM orders LATERAL VIEW explode(split(parts, ' ')) t AS part GROUP BY window(ts, '2 seconds'), part;
"""
BEGIN_US = 1_767_225_600 * SECOND_US
VIEWS = ("paid", "returned", "unpaid", "of_either", "used")


def simulate(folder: Path, seed: int) -> DeploymentSimulation:
    """Eighty seconds of three streams, of whose records a tenth are late, by up to 20 seconds."""
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(SQL)
    deployment = Deployment.load(folder)
    rng = np.random.default_rng(seed)
    workload = {}
    for name, stream in deployment.catalog.streams.items():
        for site in stream.sites or ():
            count = 120
            times = np.sort(BEGIN_US + rng.integers(0, 80 * SECOND_US, count))
            late = (rng.random(count) < 0.1) * rng.integers(0, 20 * SECOND_US, count)
            columns = {
                "ts": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
                "customer": pa.array(rng.integers(0, 4, count), pa.int32()),
                "item": pa.array(rng.choice(["a", "b"], count)),
                "parts": pa.array([" ".join(rng.choice(["x", "y", "z"], rng.integers(1, 6))) for _ in range(count)]),
                "amount": pa.array(rng.integers(1, 100, count)),
                "paid": pa.array(rng.integers(1, 100, count)),
            }
            table = pa.table({f.name: columns[f.name] for f in stream.schema})
            workload[name, site] = ArrivingRecords.of(stream, site, table, times + late)
    return DeploymentSimulation(deployment, workload, seed, frozenset({Feature.CRASH, Feature.DELAY}))


def test_bounds_of_pairs_and_of_rows_of_arrays_are_missed_no_more_often_than_they_say(tmp_path: Path) -> None:
    tallies = []
    stated = dict.fromkeys(VIEWS, 0)
    for seed in range(examples(4)):
        simulation = simulate(tmp_path / str(seed), seed)
        report = simulation.run()
        report.assert_right()
        tallies.append(report.bounds.bounds)
        for view in VIEWS:
            rows = simulation.world.store.rows("results", view)
            assert rows is not None
            kinds = [row["n"] for row in rows["bound_kind"].to_pylist()]
            stated[view] += kinds.count("estimated")
            assert set(kinds) <= {"exact", "estimated", "unknown"}
    assert all(stated.values()), f"a bound that is never stated says nothing: {stated}"
    verdict = BoundVerdict.of(tallies)
    assert not verdict.is_refuted, verdict.describe()
    assert verdict.missed_share < 2 * verdict.allowed_share, verdict.describe()
