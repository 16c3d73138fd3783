"""The laws of states over pairs: repetition, products, and comparisons as in Spark."""

from __future__ import annotations

import math
from operator import ge, gt, le, lt, ne
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import Aggregate, make_aggregate
from catchment.aggregates.pair_states import can_repeat, compare, multiply, repeat
from catchment.errors import AggregateError
from tests.worlds.aggregate_cases import every_aggregate, tolerance
from tests.worlds.aggregate_cases import records as raw_records
from tests.worlds.join_world import (
    close,
)
from tests.worlds.tiers import examples

REPEATED = [
    ("count", None),
    ("count", pa.int64()),
    ("sum", pa.int64()),
    ("sum", pa.float64()),
    ("sum", pa.decimal128(9, 2)),
    ("avg", pa.int64()),
    ("avg", pa.float64()),
    ("min", pa.int64()),
    ("max", pa.string()),
    ("var_samp", pa.float64()),
    ("stddev_pop", pa.int64()),
    ("moments", pa.float64()),
    ("histogram", pa.float64()),
    ("approx_count_distinct", pa.string()),
]


def values_of(rng: np.random.Generator, count: int, type_: pa.DataType) -> pa.Array:
    drawn = [None if i == 0 else int(i) * 3 - 20 for i in rng.integers(0, 20, count)]
    return pa.array([None if d is None else str(d) for d in drawn] if type_ == pa.string() else drawn, type_)


def same(left: list[pa.Array], right: list[pa.Array], lower: object) -> bool:
    assert callable(lower)
    found, expected = lower(left).to_pylist(), lower(right).to_pylist()
    return close(dict(enumerate(zip(found, strict=True))), dict(enumerate(zip(expected, strict=True))))


@pytest.mark.parametrize(("function", "type_"), REPEATED, ids=str)
@settings(max_examples=examples(15))
@given(seed=st.integers(0, 10**6))
def test_a_repeated_state_is_that_of_as_many_copies(function: str, type_: pa.DataType | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parameters = (-5, 20, 4) if function == "histogram" else ()
    aggregate = make_aggregate(function, "x" if type_ else None, type_, parameters, name="r")
    groups, times = np.sort(rng.integers(0, 6, 30)).astype(np.intp), rng.integers(0, 5, 6)
    states = aggregate.lift(values_of(rng, 30, type_) if type_ else None, groups, 6)
    copies = np.repeat(np.arange(6), times)
    expected = aggregate.combine([s.take(pa.array(copies)) for s in states], copies.astype(np.intp), 6)
    found = repeat(aggregate, states, times)
    assert [f.type for f in found] == [s.type for s in aggregate.states]
    if function in ("moments", "histogram"):  # lists compare value by value
        flat = [np.nan_to_num(np.array(aggregate.lower(s).flatten())) for s in (found, expected)]
        assert np.allclose(*flat)
    else:
        assert same(found, expected, aggregate.lower)


@pytest.mark.parametrize("function", ["sum", "avg"])
@pytest.mark.parametrize("type_", [pa.int64(), pa.float64()], ids=str)
@settings(max_examples=examples(15))
@given(seed=st.integers(0, 10**6))
def test_a_product_of_states_is_the_state_of_products(function: str, type_: pa.DataType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    aggregate = make_aggregate(function, "x", type_, name="r")
    sides = [values_of(rng, int(rng.integers(0, 6)), type_) for _ in range(2)]
    zeros = [np.zeros(len(s), dtype=np.intp) for s in sides]
    found = multiply(aggregate, *(aggregate.lift(s, z, 1) for s, z in zip(sides, zeros, strict=True)))
    products = [None if None in (x, y) else x * y for x in sides[0].to_pylist() for y in sides[1].to_pylist()]
    expected = aggregate.lift(pa.array(products, type_), np.zeros(len(products), dtype=np.intp), 1)
    assert same(found, expected, aggregate.lower)


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "<>"])
def test_columns_compare_as_in_spark(operator: str) -> None:
    values = [None, float("nan"), -0.0, 0.0, 1.5, float("inf"), float("-inf")]
    pairs = [(a, b) for a in values for b in values]
    left, right = (pa.array([p[i] for p in pairs], pa.float64(), from_pandas=False) for i in (0, 1))
    holds = {"<": lt, "<=": le, ">": gt, ">=": ge, "<>": ne}[operator]

    def rank(x: float) -> tuple[bool, float]:
        return (True, 0.0) if math.isnan(x) else (False, x)

    expected = [a is not None and b is not None and holds(rank(a), rank(b)) for a, b in pairs]
    assert compare(left, operator, right).to_pylist() == expected


@pytest.mark.parametrize("aggregate", [a for a in every_aggregate() if can_repeat(a)], ids=lambda a: a.name)
@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_every_state_that_can_be_repeated_is_that_of_as_many_copies(aggregate: Aggregate, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = raw_records(40, seed)
    groups, times = np.sort(rng.integers(0, 6, 40)).astype(np.intp), rng.integers(0, 5, 6)
    column = None if aggregate.argument is None else given[aggregate.argument].combine_chunks()
    states = aggregate.lift(column, groups, 6)
    copies = np.repeat(np.arange(6), times)
    expected = aggregate.combine([s.take(pa.array(copies)) for s in states], copies.astype(np.intp), 6)
    found = aggregate.lower(repeat(aggregate, states, times)).to_pylist()
    for mine, other in zip(found, aggregate.lower(expected).to_pylist(), strict=True):
        assert same_repeated(aggregate, mine, other), (mine, other)


def same_repeated(aggregate: Aggregate, left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return left == right or bool(np.allclose(left, right))
    if isinstance(left, float) and isinstance(right, float):
        return bool(np.isclose(left, right, rtol=1e-9 + tolerance(aggregate), atol=1e-9))
    return bool(left == right)


def test_sketches_of_ranks_and_of_frequencies_have_no_law_of_repetition() -> None:
    for function, parameters in (("percentile_approx", (0.5,)), ("approx_top_k", (3,))):
        assert not can_repeat(make_aggregate(function, "x", pa.int64(), parameters, name="r"))


def test_a_count_of_pairs_that_does_not_fit_is_an_error() -> None:
    count = make_aggregate("count", None, None, name="n")
    with pytest.raises(AggregateError, match="64 bits"):
        repeat(count, [pa.array([2**40])], np.array([2**40]))
    decimal = make_aggregate("sum", "x", pa.decimal128(38, 2), name="d")
    with pytest.raises(AggregateError, match="38 digits"):
        repeat(decimal, [pa.array([10**30], pa.decimal128(38, 2))], np.array([10**9]))
