"""The laws of every aggregate, in the core: associative, commutative, with an identity, and split = whole.

Doubles here are multiples of 1/4 below 64, whose sums and powers are exact, so that the laws hold bit by bit;
what holds of all doubles is tested against exact sums in `test_aggregates_oracle.py`. Sketches stay below the
size at which they begin to estimate; above it, see `test_aggregates_sketches.py`.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import Aggregate
from tests.worlds.aggregate_cases import ALL_TYPES, STRUCTS, every_aggregate, same_state, same_value
from tests.worlds.tiers import examples

AGGREGATES = every_aggregate()
every = pytest.mark.parametrize("aggregate", AGGREGATES, ids=[a.name for a in AGGREGATES])
quarters = st.integers(-256, 256).map(lambda n: n / 4)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "i": st.integers(-50, 50),
    "l": st.integers(-(2**40), 2**40),
    "d": quarters,
    "f": quarters,
    "far": st.integers(0, 40).map(lambda n: 1e9 + n / 4),
    "e": st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-2)),
    "s": st.text(max_size=3),
    "b": st.booleans(),
    "day": st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    "ts": st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=dt.UTC)),
}
VALUES |= {
    name: st.fixed_dictionaries(
        {f.name: st.none() | strategy for f, strategy in zip(STRUCTS[name], parts, strict=True)}
    )
    for name, parts in {
        "xy": (quarters, st.integers(-50, 50)),
        "far_xy": (VALUES["far"], quarters),
        "text_by": (st.text(max_size=2), st.integers(0, 3)),
        "number_by": (st.sampled_from([-0.0, 0.0, 1.5, float("nan")]), st.sampled_from([-0.0, 0.0, 2.0, float("nan")])),
        "day_by": (VALUES["day"], VALUES["ts"]),
        "wrapped": (st.text(max_size=1),),
    }.items()
}
State = list[pa.Array]


def some_values(data: st.DataObject, aggregate: Aggregate, at_most: int = 12) -> pa.Array | None:
    """A few values of the aggregate's argument, some of them null."""
    if aggregate.argument is None:
        return pa.nulls(data.draw(st.integers(0, at_most)), pa.int8())
    drawn = data.draw(st.lists(st.none() | VALUES[aggregate.argument], max_size=at_most))
    return pa.array(drawn, ALL_TYPES[aggregate.argument])


def lift(aggregate: Aggregate, values: pa.Array) -> State:
    """The state of one group of values."""
    return aggregate.lift(None if aggregate.argument is None else values, np.zeros(len(values), np.intp), 1)


def merge(aggregate: Aggregate, *states: State) -> State:
    columns = [pa.concat_arrays(parts) for parts in zip(*states, strict=True)]
    return aggregate.combine(columns, np.zeros(len(states), np.intp), 1)


def assert_same(aggregate: Aggregate, left: State, right: State) -> None:
    a, b = ([column[0].as_py() for column in state] for state in (left, right))
    assert same_state(aggregate, a, b)
    assert same_value(aggregate, aggregate.lower(left)[0].as_py(), aggregate.lower(right)[0].as_py())


@every
@settings(max_examples=examples(8))
@given(data=st.data())
def test_merging_is_associative(aggregate: Aggregate, data: st.DataObject) -> None:
    a, b, c = (lift(aggregate, some_values(data, aggregate)) for _ in range(3))
    together = merge(aggregate, a, b, c)
    assert_same(aggregate, merge(aggregate, merge(aggregate, a, b), c), together)
    assert_same(aggregate, merge(aggregate, a, merge(aggregate, b, c)), together)


@every
@settings(max_examples=examples(8))
@given(data=st.data())
def test_merging_is_commutative(aggregate: Aggregate, data: st.DataObject) -> None:
    a, b = (lift(aggregate, some_values(data, aggregate)) for _ in range(2))
    assert_same(aggregate, merge(aggregate, a, b), merge(aggregate, b, a))


@every
@settings(max_examples=examples(8))
@given(data=st.data())
def test_merging_the_parts_equals_lifting_the_whole(aggregate: Aggregate, data: st.DataObject) -> None:
    values = some_values(data, aggregate, at_most=30)
    cut = data.draw(st.integers(0, len(values)))
    parts = lift(aggregate, values.slice(0, cut)), lift(aggregate, values.slice(cut))
    assert_same(aggregate, merge(aggregate, *parts), lift(aggregate, values))


@every
@settings(max_examples=examples(6))
@given(data=st.data())
def test_the_state_of_no_values_is_the_identity(aggregate: Aggregate, data: st.DataObject) -> None:
    some = lift(aggregate, some_values(data, aggregate))
    none = lift(aggregate, pa.array([], ALL_TYPES.get(aggregate.argument or "", pa.int8())))
    assert_same(aggregate, merge(aggregate, some, none), some)
    assert_same(aggregate, merge(aggregate, none, some), some)


@every
@settings(max_examples=examples(6))
@given(data=st.data())
def test_groups_do_not_touch_each_other(aggregate: Aggregate, data: st.DataObject) -> None:
    """Many groups at once, one of them without rows, are what each group is alone."""
    values = some_values(data, aggregate, at_most=20)
    groups = np.array(data.draw(st.lists(st.sampled_from([0, 2]), min_size=len(values), max_size=len(values))), np.intp)
    together = aggregate.lift(None if aggregate.argument is None else values, groups, 3)
    for group in range(3):
        alone = lift(aggregate, values.filter(pa.array(groups == group)))
        assert_same(aggregate, [column.slice(group, 1) for column in together], alone)


@every
def test_no_rows_at_all_give_no_groups(aggregate: Aggregate) -> None:
    empty = np.empty(0, np.intp)
    states = aggregate.lift(pa.array([], ALL_TYPES.get(aggregate.argument or "", pa.int8())), empty, 0)
    assert [s.type for s in states] == [s.type for s in aggregate.states]
    assert [len(s) for s in aggregate.combine(states, empty, 0)] == [0] * len(states)
    assert aggregate.lower(states).type == aggregate.result_type
