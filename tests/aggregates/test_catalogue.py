"""The catalogue makes every aggregate by all its names, and refuses with a reason what it cannot make."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from catchment.aggregates import FUNCTIONS, Aggregate, canonical_name, make_aggregate
from catchment.errors import AggregateError
from tests.worlds.aggregate_cases import every_aggregate

INT, TEXT = pa.int64(), pa.string()
AGGREGATES = every_aggregate()


@pytest.mark.parametrize(
    ("called", "canonical"),
    [
        ("AVG", "avg"),
        ("mean", "avg"),
        ("stddev", "stddev_samp"),
        ("std", "stddev_samp"),
        ("variance", "var_samp"),
        ("approx_percentile", "percentile_approx"),
        ("Approx_Count_Distinct", "approx_count_distinct"),
    ],
)
def test_a_function_is_known_by_its_other_names(called: str, canonical: str) -> None:
    assert canonical_name(called) == canonical


def test_the_tests_cover_every_function_of_the_catalogue() -> None:
    assert {a.function for a in AGGREGATES} == set(FUNCTIONS)


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=[a.name for a in AGGREGATES])
def test_an_aggregate_is_a_value(aggregate: Aggregate) -> None:
    """It equals its copy, hashes alike and survives pickling, so plans can be compared, cached and sent."""
    copy = pickle.loads(pickle.dumps(aggregate))
    assert copy == aggregate
    assert hash(copy) == hash(aggregate)
    assert copy.lift_sql() == aggregate.lift_sql()


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=[a.name for a in AGGREGATES])
def test_state_columns_are_named_after_the_aggregate_and_have_one_expression_each(
    aggregate: Aggregate,
) -> None:
    names = [s.name for s in aggregate.states]
    assert all(name.startswith(f"{aggregate.name}__") for name in names)
    assert len(set(names)) == len(names) == len(aggregate.lift_sql())
    assert not aggregate.merges_in_spark or len(aggregate.merge_sql()) == len(names)


def test_exact_aggregates_have_no_error_and_sketches_say_theirs() -> None:
    assert all((a.sketch_error == 0.0) == a.exact for a in AGGREGATES)


def test_a_name_with_odd_characters_is_quoted() -> None:
    aggregate = make_aggregate("max", "x", INT, name="most `x`")
    assert aggregate.merge_sql() == ("max(`most ``x``__max`)",)


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        ("percentile_disc", "percentile_approx"),
        ("percentile_cont", r"percentile\(x, p\)"),
        ("mode", "approx_top_k"),
        ("summ", "did you mean sum"),
        ("collect_list", "collect_set"),
        ("listagg", "array_join"),
        ("group_concat", "possible: count, sum"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_what_can_be_used(function: str, hint: str) -> None:
    with pytest.raises(AggregateError, match=hint):
        make_aggregate(function, "x", INT, name="c")


@pytest.mark.parametrize(
    ("function", "argument", "type_", "parameters", "message"),
    [
        ("sum", "x", TEXT, (), "needs numbers"),
        ("avg", "x", pa.bool_(), (), "needs numbers"),
        ("var_pop", "x", pa.date32(), (), "needs numbers"),
        ("moments", "x", TEXT, (), "needs numbers"),
        ("percentile_approx", "x", pa.timestamp("us"), (0.5,), "needs numbers"),
        ("max", "x", pa.list_(INT), (), "needs numbers, strings"),
        ("sum", None, None, (), "needs an argument"),
        ("sum", "*", None, (), "needs an argument"),
        ("sum", "x", None, (), "type of 'x'"),
        ("sum", "x", INT, (1,), "at most 0 parameters"),
        ("approx_count_distinct", "x", pa.binary(), (), "cannot take binary"),
        ("approx_count_distinct", "x", pa.decimal128(20, 2), (), "at most 18 digits"),
        ("approx_count_distinct", "x", INT, (22,), "lgK from 4 to 21"),
        ("approx_count_distinct", "x", INT, (1.5,), "lgK or a relative deviation"),
        ("approx_count_distinct", "x", INT, ("much",), "lgK or a relative deviation"),
        ("percentile_approx", "x", INT, (), "needs a percentage"),
        ("percentile_approx", "x", INT, (50,), "from 0.0 to 1.0"),
        ("percentile_approx", "x", INT, ([],), "from 0.0 to 1.0"),
        ("percentile_approx", "x", INT, ("half",), "needs numbers as its percentage"),
        ("percentile_approx", "x", INT, (0.5, 10**6), "accuracy from 1 to"),
        ("approx_top_k", "x", pa.float64(), (3,), "strings, integers, booleans"),
        ("approx_top_k", "x", TEXT, (0,), "1 <= k"),
        ("approx_top_k", "x", TEXT, (5, 4), "k <= max_items"),
        ("approx_top_k", "x", TEXT, (-1,), "whole numbers"),
    ],
)
def test_a_wrong_call_is_refused_and_says_where(
    function: str,
    argument: str | None,
    type_: pa.DataType | None,
    parameters: tuple[object, ...],
    message: str,
) -> None:
    with pytest.raises(AggregateError, match=message) as refused:
        make_aggregate(function, argument, type_, parameters, name="column_c")
    assert refused.value.where == "column_c"


def test_an_aggregate_without_a_name_is_refused() -> None:
    with pytest.raises(AggregateError, match="no name"):
        make_aggregate("sum", "x", INT, name="")


def test_count_of_a_star_counts_every_record() -> None:
    assert make_aggregate("count", "*", None, name="n").lift_sql() == ("count(*)",)
