"""The second round of percentiles and distinct counts, against sorted lists.

Values of every shape are split among sites, narrowed by the SQL that sites run (here by DuckDB), and merged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate
from catchment.aggregates.bounded_sets import CountDistinct
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.second_round import RankIntervals, find_intervals, settle
from catchment.errors import AggregateError

RANKS = st.lists(
    st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]), min_size=1, max_size=4, unique=True
)


def exact_percentiles(values: Sequence[float], ranks: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    found = []
    for rank in ranks:
        place = (len(ordered) - 1) * rank
        low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
        found.append(low if low == high else low + (place - math.floor(place)) * (high - low))
    return found


def narrow(values: np.ndarray, known: RankIntervals) -> np.ndarray:
    """The values as a site sends them, by the SQL that it runs."""
    sql = sqlglot.transpile(known.narrow_sql("`v`"), read="spark", write="duckdb")[0]
    drawn = pa.table({"v": values})  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql(f"SELECT {sql} AS v FROM drawn")
    assert found is not None
    return np.asarray(found.to_arrow_table()["v"])


def draw(seed: int, count: int, shape: str) -> np.ndarray:
    chance = np.random.default_rng(seed)
    match shape:
        case "normal":
            return chance.normal(0, 1e3, count)
        case "few":
            return chance.integers(0, 300, count).astype(float)
        case "heavy":
            return np.where(chance.random(count) < 0.5, 7.0, chance.normal(7, 1e-9, count))
        case "wide":
            return chance.choice([-1e308, 1e308, 1.0], count) * chance.random(count)
    return np.sort(chance.random(count))


def percentile_of(ranks: Sequence[float]) -> Percentile:
    found = make_aggregate("percentile", "v", pa.float64(), (list(ranks), 100), name="p")
    assert isinstance(found, Percentile)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(200, 20_000),
    st.sampled_from(["normal", "few", "heavy", "wide", "sorted"]),
    RANKS,
)
def test_percentiles_from_narrowed_values_are_those_of_all_values(
    seed: int, count: int, shape: str, ranks: list[float]
) -> None:
    values = draw(seed, count, shape)
    aggregate = percentile_of(ranks)
    sites = np.random.default_rng(seed).integers(0, 3, count)
    states = [
        aggregate.lift(pa.array(values[sites == site]), np.zeros((sites == site).sum(), int), 1) for site in range(3)
    ]
    merged = aggregate.combine([pa.concat_arrays(column) for column in zip(*states, strict=True)], np.zeros(3, int), 1)
    if not aggregate.are_estimates(merged)[0]:
        return
    known = find_intervals(aggregate, merged[1][0].as_py())
    assert known.records == count
    exact = make_aggregate("percentile", "v", pa.float64(), (list(ranks), 1_000_000), name="p")
    sent = [narrow(values[sites == site], known) for site in range(3)]
    parts = [exact.lift(pa.array(part), np.zeros(len(part), int), 1) for part in sent]
    whole = exact.combine([pa.concat_arrays(column) for column in zip(*parts, strict=True)], np.zeros(3, int), 1)
    items = whole[0][0].as_py()
    assert len(items) <= known.most_values + len(known.intervals) + 1
    found = settle(
        aggregate, known, np.array([i["value"] for i in items]), np.array([i["count"] for i in items], dtype=np.int64)
    )
    assert not isinstance(found, str), found
    assert len(found) <= 4 * len(ranks) + 1
    state = pa.array([[{"value": v, "count": c} for v, c in found]], aggregate.states[0].type)
    settled = [state, pa.array([None], pa.binary())]
    assert not aggregate.are_estimates(settled)[0]
    assert aggregate.lower(settled)[0].as_py() == pytest.approx(exact_percentiles(values.tolist(), ranks), rel=1e-12)


def test_other_records_and_ranks_outside_of_their_interval_are_noticed() -> None:
    aggregate = percentile_of([0.5])
    known = RankIntervals(((4.0, 6.0),), 9, 9)
    inside = np.array([-math.inf, 5.0, math.inf])
    assert settle(aggregate, known, inside, np.array([4, 1, 4])) == ((-math.inf, 4), (5.0, 1), (math.inf, 4))
    assert "histories hold 10" in str(settle(aggregate, known, inside, np.array([5, 1, 4])))
    assert "outside" in str(settle(aggregate, known, inside, np.array([2, 2, 5])))
    assert "outside" in str(settle(aggregate, known, inside, np.array([6, 1, 2])))


def test_nan_is_above_all_and_counts() -> None:
    aggregate = percentile_of([0.5, 1.0])
    values = np.concatenate([np.arange(5000.0), [math.nan]])
    known = find_intervals(aggregate, aggregate.lift(pa.array(values), np.zeros(5001, int), 1)[1][0].as_py())
    kept, counts = np.unique(narrow(values, known), return_counts=True)
    found = settle(aggregate, known, kept, counts)
    assert not isinstance(found, str)
    assert math.isnan(found[-1][0])


def test_a_distinct_count_that_was_made_exact_is_exact_and_cannot_be_merged() -> None:
    aggregate = make_aggregate("count_distinct", "v", pa.int64(), (2,), name="d")
    assert isinstance(aggregate, CountDistinct)
    states = [pa.array([aggregate.counted(12_345), [1, 2], [], None], pa.list_(pa.int64()))]
    assert aggregate.are_estimates(states).tolist() == [False] * 4
    assert aggregate.lower(states).to_pylist() == [12_345, 2, 0, 0]
    with pytest.raises(AggregateError, match="cannot be merged"):
        aggregate.combine(states, np.zeros(4, int), 1)
