"""Tables of partials: grouping equals that of a dictionary, and the verbs keep schema and order."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import grouping, make_aggregate, partials
from catchment.errors import AggregateError
from tests.worlds.aggregate_cases import every_aggregate, records
from tests.worlds.tiers import examples

KEYS: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int64(): st.sampled_from([-1, 0, 2**63 - 1]),
    pa.int32(): st.integers(-3, 3),
    pa.int8(): st.sampled_from([-128, 127]),
    pa.string(): st.sampled_from(["", "a", "ä", "a\0"]),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, 1.5]),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.sampled_from([dt.datetime(2024, 1, d, tzinfo=dt.UTC) for d in (1, 2)]),
    pa.date32(): st.sampled_from([dt.date(1969, 12, 31), dt.date(1970, 1, 1)]),
    pa.decimal128(20, 3): st.sampled_from([Decimal("1.500"), Decimal("-0.001")]),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b"]),
}
TOTALS = [make_aggregate("sum", "x", pa.int64(), name="x"), make_aggregate("count", None, None, name="n")]


@st.composite
def key_tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 20))
    types = draw(st.lists(st.sampled_from(list(KEYS)), min_size=0, max_size=4))
    values = [draw(st.sampled_from([KEYS[t], st.none() | KEYS[t]])) for t in types]
    columns = [pa.array(draw(st.lists(v, min_size=rows, max_size=rows)), t) for t, v in zip(types, values, strict=True)]
    names = [f"k{i}" for i in range(len(types))]
    return pa.table([*columns, pa.array(range(rows), pa.int64())], names=[*names, "row"])


def as_key(row: dict[str, object]) -> tuple[object, ...]:
    """A row under the equality of GROUP BY."""
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for name, v in row.items() if name != "row")


@settings(max_examples=examples(100))
@given(table=key_tables())
def test_codes_group_rows_as_a_dictionary_does(table: pa.Table) -> None:
    names = table.column_names[:-1]
    codes, distinct = partials.group_codes(table, names)
    numbered: dict[tuple[object, ...], int] = {}
    expected = [numbered.setdefault(as_key(row), len(numbered)) for row in table.to_pylist()]
    assert codes.tolist() == expected
    assert distinct.schema == table.select(names).schema
    if names:
        assert [as_key(row) for row in distinct.to_pylist()] == list(numbered)


@settings(max_examples=examples(50))
@given(table=key_tables())
def test_codes_are_the_same_when_columns_cannot_be_packed_into_one_word(table: pa.Table) -> None:
    names = table.column_names[:-1]
    packed, _ = partials.group_codes(table, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_MAX_PACKED", 0)
        assert partials.group_codes(table, names)[0].tolist() == packed.tolist()


@settings(max_examples=examples(100))
@given(table=key_tables(), spread=st.sampled_from([0, 4]))
def test_coded_columns_group_rows_as_their_codes_do(table: pa.Table, spread: int) -> None:
    names = table.column_names[:-1]
    expected, distinct = partials.group_codes(table, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "SPREAD_PER_ROW", spread)  # at 0, everything is hashed
        found = grouping.group_coded({n: grouping.encode(grouping.one_array(table[n])) for n in names}, table.num_rows)
    if found is None:
        pytest.fail("codes of twenty rows fit into one word")
    assert found.size == len(set(expected.tolist()))
    pairs = set(zip(expected.tolist(), found.codes.tolist(), strict=True))
    assert len(pairs) == found.size  # one code for each of the others, and back
    if names:
        keys = [as_key(row) for row in found.keys.to_pylist()]
        rows = [as_key(row) for row in distinct.to_pylist()]
        assert all(rows[mine] == keys[theirs] for mine, theirs in pairs)


def test_groups_whose_codes_do_not_fit_into_one_word_are_not_made_of_codes() -> None:
    wide = grouping.CodedColumn(np.zeros(2, np.int64), 2**40, grouping.encode(pa.array([1, 2])).decoder)
    assert grouping.group_coded({"a": wide, "b": wide}, 2) is None


def test_codes_do_not_depend_on_how_a_column_is_chunked() -> None:
    whole = pa.table({"k": ["a", "b", "a", None, "b", None]})
    chunked = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 3), whole.slice(4)])
    assert partials.group_codes(chunked, ["k"])[0].tolist() == [0, 1, 0, 2, 1, 2]


def test_a_negative_zero_is_lifted_as_the_key_zero() -> None:
    table = pa.table({"k": [-0.0, 0.0, -math.nan], "x": [1, 2, 3]})
    found = partials.lift(table, ["k"], TOTALS)
    assert [str(key) for key in found["k"].to_pylist()] == ["0.0", "nan"]


@settings(max_examples=examples(50))
@given(rows=st.lists(st.tuples(st.sampled_from([0, 10]), st.sampled_from(["a", "b", None]), st.integers(-9, 9))))
def test_lift_combine_lower_equal_a_dictionary_of_sums(rows: list[tuple[int, str | None, int]]) -> None:
    schema = pa.schema([("slice_us", pa.int64()), ("k", pa.string()), ("x", pa.int64())])
    table = pa.table(list(zip(*rows, strict=True)) or [(), (), ()], schema=schema)
    half = len(rows) // 2
    parts = [partials.lift(part, ["slice_us", "k"], TOTALS) for part in (table.slice(0, half), table.slice(half))]
    merged = partials.combine(pa.concat_tables(parts), ["slice_us", "k"], TOTALS)
    expected: dict[tuple[int, str | None], list[int]] = {}
    for slice_us, k, x in rows:
        entry = expected.setdefault((slice_us, k), [0, 0])
        entry[0], entry[1] = entry[0] + x, entry[1] + 1
    found = partials.lower(merged, ["slice_us", "k"], TOTALS).to_pylist()
    assert {(r["slice_us"], r["k"]): [r["x"], r["n"]] for r in found} == expected
    assert len(found) == len(expected)


def test_combine_keeps_the_schema_and_the_order_of_columns_and_first_rows() -> None:
    lifted = partials.lift(pa.table({"k": ["b", "a", "b"], "p": [1, 2, 3], "x": [1, 2, 3]}), ["k", "p"], TOTALS)
    shuffled = lifted.select(["n__count", "k", "x__sum"])
    merged = partials.combine(shuffled, ["k"], TOTALS)
    assert merged.schema == shuffled.schema
    assert merged.to_pylist() == [
        {"n__count": 2, "k": "b", "x__sum": 4},
        {"n__count": 1, "k": "a", "x__sum": 2},
    ]


def test_combine_gives_wide_types_back_as_they_came() -> None:
    schema = pa.schema([("k", pa.large_string()), ("d__hll", pa.large_binary())])
    distinct = make_aggregate("approx_count_distinct", "x", pa.int64(), name="d")
    lifted = partials.lift(pa.table({"k": ["a", "a"], "p": [1, 2], "x": [1, 2]}), ["k", "p"], [distinct])
    merged = partials.combine(lifted.drop(["p"]).cast(schema), ["k"], [distinct])
    assert merged.schema == schema
    assert partials.lower(merged, ["k"], [distinct])["d"].to_pylist() == [2]


def test_combining_twice_changes_nothing() -> None:
    aggregates = every_aggregate()
    lifted = partials.lift(records(100, seed=1), ["g", "p"], aggregates).drop(["p"])
    once = partials.combine(lifted, ["g"], aggregates)
    assert partials.combine(once, ["g"], aggregates).equals(once)


def test_the_order_of_partials_does_not_matter() -> None:
    lifted = partials.lift(records(200, seed=2), ["g", "p"], TOTALS_OF_RECORDS).drop(["p"])
    shuffled = lifted.take(np.random.default_rng(0).permutation(lifted.num_rows))
    one, other = (partials.combine(t, ["g"], TOTALS_OF_RECORDS).sort_by("g") for t in (lifted, shuffled))
    assert one.equals(other)


TOTALS_OF_RECORDS = [a for a in every_aggregate() if a.function in ("count", "sum", "min", "max")]


def test_without_keys_all_rows_are_one_group() -> None:
    raw = pa.table({"x": [1, 2, 3]})
    lifted = pa.concat_tables([partials.lift(raw, [], TOTALS), partials.lift(raw, [], TOTALS)])
    assert partials.lower(partials.combine(lifted, [], TOTALS), [], TOTALS).to_pylist() == [{"x": 12, "n": 6}]


def test_an_empty_table_stays_empty_and_keeps_its_schema() -> None:
    raw = pa.table({"k": pa.array([], pa.string()), "x": pa.array([], pa.int64())})
    lifted = partials.lift(raw, ["k"], TOTALS)
    assert lifted.schema.names == ["k", "x__sum", "n__count"]
    assert partials.combine(lifted, ["k"], TOTALS).num_rows == 0
    assert partials.lower(lifted, ["k"], TOTALS).schema.names == ["k", "x", "n"]


def test_arguments_may_be_named_apart_from_the_columns() -> None:
    raw = pa.table({"k": [1, 1], "size": pa.array([3, 4], pa.int32())})
    lifted = partials.lift(raw, ["k"], TOTALS, {"x": "size", "n": None})
    assert partials.lower(lifted, ["k"], TOTALS).to_pylist() == [{"k": 1, "x": 7, "n": 2}]


def test_a_missing_column_is_refused_with_the_columns_there_are() -> None:
    with pytest.raises(AggregateError, match=r"x__sum.*has \['k'\]"):
        partials.combine(pa.table({"k": [1]}), ["k"], TOTALS)
    with pytest.raises(AggregateError, match=r"'x'.*columns are"):
        partials.lift(pa.table({"k": [1]}), ["k"], TOTALS)
