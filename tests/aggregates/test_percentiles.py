"""Medians and percentiles: exact up to their bound however records are split, within an error of rank beyond it.

Beyond the bound the oracle is the sorted list of all records. A sketch is random, so these errors are checked against
three times what its library states at 99%, for fixed seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.percentiles import REPEATED_AT_ONCE
from catchment.errors import AggregateError
from tests.worlds.aggregate_cases import identical
from tests.worlds.tiers import examples

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 2.5, -7.0, 1e300, math.inf, -math.inf, math.nan])


def percentile(ranks: object, bound: int) -> Aggregate:
    return make_aggregate("percentile", "x", pa.float64(), (ranks, bound), name="p")


def merge(aggregate: Aggregate, values: list[float], parts: list[int]) -> list[pa.Array]:
    """Lift the values in parts, and merge the parts."""
    count = max(parts, default=0) + 1
    states = aggregate.lift(pa.array(values, pa.float64()), np.array(parts, np.intp), count)
    return aggregate.combine(states, np.zeros(count, np.intp), 1)


@settings(max_examples=examples(100))
@given(data=st.data(), values=st.lists(NUMBERS, max_size=25), bound=st.integers(2, 9))
def test_what_is_kept_depends_on_the_records_and_not_on_how_they_were_split(
    data: st.DataObject, values: list[float], bound: int
) -> None:
    parts = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    aggregate = percentile([0.0, 0.5, 1.0], bound)
    whole, merged = merge(aggregate, values, [0] * len(values)), merge(aggregate, values, parts)
    is_small = len({0.0 if v == 0 else str(v) for v in values}) <= bound
    assert identical(whole[0].to_pylist(), merged[0].to_pylist())
    assert aggregate.are_estimates(whole).tolist() == aggregate.are_estimates(merged).tolist() == [not is_small]
    if is_small:
        assert identical(aggregate.lower(whole).to_pylist(), aggregate.lower(merged).to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_beyond_the_bound_the_rank_is_within_the_stated_error(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.lognormal(0, 3, 60_000)
    parts = random.choice(40, len(values), p=np.r_[[0.5], np.full(39, 0.5 / 39)])  # one part is large, the others small
    aggregate = percentile([0.1, 0.5, 0.99], 2_000)
    merged = merge(aggregate, values.tolist(), parts.tolist())
    assert aggregate.are_estimates(merged).all()
    for rank, found in zip((0.1, 0.5, 0.99), aggregate.lower(merged)[0].as_py(), strict=True):
        assert np.mean(values <= found) == pytest.approx(rank, abs=3 * aggregate.sketch_error)


def test_values_that_stand_for_many_records_count_as_many_in_a_sketch() -> None:
    aggregate = percentile([0.2, 0.5, 0.8], 2)
    often = 2 * REPEATED_AT_ONCE + 1
    counted = pa.array([[{"value": 1.0, "count": often}, {"value": 2.0, "count": often}]], aggregate.states[0].type)
    few = aggregate.lift(pa.array([5.0, math.nan]), np.zeros(2, np.intp), 1)
    states = [pa.concat_arrays([counted, few[0]]), pa.concat_arrays([pa.nulls(1, pa.binary()), few[1]])]
    merged = aggregate.combine(states, np.zeros(2, np.intp), 1)
    assert aggregate.are_estimates(merged).all()
    assert aggregate.lower(merged).to_pylist() == [[1.0, aggregate.lower(merged)[0].as_py()[1], 2.0]]


def test_a_group_without_values_has_no_percentile() -> None:
    aggregate = percentile(0.5, 10)
    states = aggregate.lift(pa.array([None, 3.0], pa.float64()), np.array([0, 2]), 3)
    assert aggregate.lower(states).to_pylist() == [None, None, 3.0]
    assert not aggregate.are_estimates(states).any()


@pytest.mark.parametrize("ranks", [1.5, [], [0.5, -0.1]])
def test_ranks_are_shares_of_one(ranks: object) -> None:
    with pytest.raises(AggregateError, match=r"0\.0 to 1\.0"):
        percentile(ranks, 10)


def test_spark_is_not_asked_to_merge_them() -> None:
    aggregate = percentile(0.5, 10)
    assert not aggregate.merges_in_spark
    with pytest.raises(AggregateError, match="merged in the driver"):
        aggregate.merge_sql()
