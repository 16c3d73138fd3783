"""Sketches beyond the size at which they are exact: published errors, determinism, lazy merging."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.distinct import ApproxCountDistinct, lg_k_of
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.aggregates.topk import ApproxTopK
from catchment.errors import AggregateError
from catchment.quality.laws import distinct_error
from tests.worlds.tiers import examples

INT = pa.int64()
DISTINCT = make_aggregate("approx_count_distinct", "x", INT, name="d")
MEDIAN = make_aggregate("percentile_approx", "x", pa.float64(), ([0.01, 0.5, 0.99],), name="q")
TOP = make_aggregate("approx_top_k", "x", pa.string(), (5, 48), name="t")
SKETCHES = pytest.mark.parametrize("aggregate", [DISTINCT, MEDIAN, TOP], ids=["hll", "kll", "top k"])


def value(aggregate: Aggregate, values: pa.Array, parts: np.ndarray | None = None) -> object:
    """The aggregate of all the values, lifted in parts and merged in two rounds."""
    groups = np.zeros(len(values), np.intp) if parts is None else parts.astype(np.intp)
    size = int(groups.max()) + 1
    states = aggregate.lift(values, groups, size)
    halves = aggregate.combine(states, np.arange(size) % 2, min(size, 2))
    return aggregate.lower(aggregate.combine(halves, np.zeros(len(halves[0]), np.intp), 1))[0].as_py()


@pytest.mark.parametrize("distinct", [1, 10, 500, 5000, 20_000])
def test_distinct_counts_are_within_their_published_error_as_often_as_they_say(distinct: int) -> None:
    """At 95% about 95% of the answers hold the error; none is off by twice as much."""
    starts = np.arange(40) * distinct
    parts = np.random.default_rng(distinct).integers(0, 5, distinct)
    found = [value(DISTINCT, pa.array(np.arange(start, start + distinct)), parts) for start in starts]
    errors = np.abs(np.array(found) / distinct - 1)
    stated = distinct_error(DISTINCT.sketch_error, 0.05)
    assert np.mean(errors <= stated) >= 0.9
    assert errors.max() <= 2 * stated


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 1000), parts=st.integers(1, 12))
def test_a_distinct_count_is_the_same_however_the_values_are_split(seed: int, parts: int) -> None:
    random = np.random.default_rng(seed)
    values = np.arange(8000)
    split = value(DISTINCT, pa.array(random.permutation(values)), random.integers(0, parts, len(values)))
    assert split == value(DISTINCT, pa.array(values))


def test_the_error_of_a_distinct_count_is_published_and_shrinks() -> None:
    errors = [ApproxCountDistinct("d", "approx_count_distinct", "x", INT, k).sketch_error for k in (4, 10, 12, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] == pytest.approx(1.04 / 2**6, rel=0.05)


@pytest.mark.parametrize(("given", "lg_k"), [(12, 12), ("14", 14), (0.05, 9), (0.01, 14), (0.9, 4)])
def test_a_relative_deviation_chooses_the_size_of_the_sketch(given: object, lg_k: int) -> None:
    assert lg_k_of(given, "d") == lg_k


def test_percentiles_are_within_their_rank_error() -> None:
    assert isinstance(MEDIAN, ApproxPercentile)
    values = np.random.default_rng(2).permutation(np.arange(30_000.0))
    found = value(MEDIAN, pa.array(values), np.random.default_rng(3).integers(0, 20, len(values)))
    assert isinstance(found, list)
    ranks = [(v + 1) / len(values) for v in found]
    # The published error holds for 99% of the answers; compaction is random, so allow it three times over.
    assert ranks == pytest.approx([0.01, 0.5, 0.99], abs=3 * MEDIAN.sketch_error)


def test_an_accuracy_chooses_the_size_of_the_sketch() -> None:
    fine = make_aggregate("percentile_approx", "x", pa.float64(), (0.5, 1000), name="q")
    assert isinstance(fine, ApproxPercentile)
    assert fine.sketch_error <= 1 / 1000 < ApproxPercentile(*_head(fine), fine.ranks, False, fine.k - 1).sketch_error


def _head(aggregate: Aggregate) -> tuple[str, str, str | None, pa.DataType]:
    return aggregate.name, aggregate.function, aggregate.argument, aggregate.argument_type


def test_top_items_are_within_their_share_of_all_records() -> None:
    assert isinstance(TOP, ApproxTopK)
    values = np.random.default_rng(4).zipf(1.3, 20_000) % 5000
    found = value(TOP, pa.array(values.astype(str)), np.random.default_rng(5).integers(0, 6, len(values)))
    truth = Counter(values.astype(str).tolist())
    assert isinstance(found, list)
    assert [item["item"] for item in found] == [item for item, _ in truth.most_common(5)]
    assert all(abs(item["count"] - truth[item["item"]]) <= TOP.sketch_error * len(values) for item in found)


@SKETCHES
def test_a_state_alone_in_its_group_passes_untouched(aggregate: Aggregate) -> None:
    """Even bytes that are no sketch pass: nothing is read that need not be merged."""
    states = pa.array([b"not a sketch", None, b"nor this", None], pa.binary())
    merged = aggregate.combine([states], np.array([2, 0, 0, 1], np.intp), 3)
    assert merged[0].to_pylist() == [b"nor this", None, b"not a sketch"]


@SKETCHES
@pytest.mark.parametrize("damaged", [b"", b"\x00", b"not a sketch", b"\xff" * 64])
def test_bytes_that_are_no_sketch_are_refused_with_the_name_of_the_aggregate(
    aggregate: Aggregate, damaged: bytes
) -> None:
    with pytest.raises(AggregateError, match=repr(aggregate.name)):
        aggregate.combine([pa.array([damaged, damaged], pa.binary())], np.zeros(2, np.intp), 1)
    with pytest.raises(AggregateError, match=repr(aggregate.name)):
        aggregate.lower([pa.array([damaged], pa.binary())])


@SKETCHES
def test_a_truncated_sketch_is_refused(aggregate: Aggregate) -> None:
    values = pa.array(np.arange(5000)).cast(aggregate.argument_type)
    state = aggregate.lift(values, np.zeros(5000, np.intp), 1)[0][0].as_py()
    with pytest.raises(AggregateError):
        aggregate.lower([pa.array([state[: len(state) // 2]], pa.binary())])


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (pa.string(), ["", "a", "", None], 2),
        (pa.float64(), [0.0, -0.0, float("nan"), -float("nan"), None], 2),
        (pa.float32(), [0.1, 0.1, 0.2], 2),
        (pa.bool_(), [True, False, None], 2),
        (pa.int8(), [1, 1, 2], 2),
    ],
)
def test_distinct_values_are_told_apart_as_spark_groups_them(
    type_: pa.DataType, values: list[object], expected: int
) -> None:
    assert value(make_aggregate("approx_count_distinct", "x", type_, name="d"), pa.array(values, type_)) == expected


def test_a_null_is_an_item_as_in_spark() -> None:
    found = value(TOP, pa.array(["b", None, "a", None, "b"]), np.array([0, 0, 1, 1, 1]))
    assert found == [{"item": None, "count": 2}, {"item": "b", "count": 2}, {"item": "a", "count": 1}]


@pytest.mark.parametrize("distinct", [0, 1, 99, 100])
def test_a_distinct_count_is_exact_up_to_its_bound(distinct: int) -> None:
    aggregate = make_aggregate("count_distinct", "x", INT, (100,), name="d")
    values = pa.array(np.tile(np.arange(distinct), 3))
    parts = np.random.default_rng(1).integers(0, 7, len(values)) if distinct else None
    groups = np.zeros(0, np.intp) if not distinct else parts
    assert groups is not None
    size = max(int(groups.max()) + 1 if len(groups) else 1, 1)
    states = aggregate.combine(aggregate.lift(values, groups, size), np.zeros(size, np.intp), 1)
    assert aggregate.lower(states).to_pylist() == [distinct]
    assert not aggregate.are_estimates(states).any()


def test_a_distinct_count_beyond_its_bound_is_within_its_published_error_as_often_as_it_says() -> None:
    aggregate = make_aggregate("count_distinct", "x", INT, (400,), name="d")
    errors = []
    for start in range(0, 60_000_000, 1_000_000):
        values = pa.array(np.arange(start, start + 5000))
        states = aggregate.combine(aggregate.lift(values, np.arange(5000) % 3, 3), np.zeros(3, np.intp), 1)
        assert len(states[0][0]) == 401
        errors.append(abs(aggregate.lower(states)[0].as_py() / 5000 - 1))
    assert aggregate.are_estimates(states).all()
    assert np.mean(np.array(errors) <= 2 * aggregate.sketch_error) >= 0.88
    assert max(errors) <= 5 * aggregate.sketch_error


def test_the_set_of_a_distinct_count_depends_on_the_values_alone() -> None:
    aggregate = make_aggregate("count_distinct", "x", INT, (50,), name="d")
    values = pa.array(np.arange(1000))
    for seed in range(5):
        parts = np.random.default_rng(seed).integers(0, 9, 1000).astype(np.intp)
        merged = aggregate.combine(aggregate.lift(values, parts, 9), np.zeros(9, np.intp), 1)
        assert merged == aggregate.lift(values, np.zeros(1000, np.intp), 1)
