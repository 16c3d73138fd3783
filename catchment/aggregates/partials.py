"""Partials: Arrow tables (slice_us, keys..., states...), and lift, combine and lower over whole tables of them.

`combine` merges the rows that agree in their keys: associative and commutative because each aggregate is, so
a set of partials may be merged in any order, in any pieces. Equality of keys is that of Spark's GROUP BY:
null equals null, NaN equals NaN, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate
from catchment.arrays import Index, Ints
from catchment.errors import AggregateError

# Two columns are packed into one 64 bit code while the product of their cardinalities is below this.
_MAX_PACKED = 2**62
# Codes are counted in an array of one entry per possible code while there are at most this many per row.
_SPREAD_PER_ROW = 4


def group_codes(table: pa.Table, columns: Sequence[str]) -> tuple[Index, pa.Table]:
    """Return a dense code for each row, and the distinct rows in the order of their codes.

    Rows have the same code where they agree in `columns`. Codes count up in the order in which the distinct rows
    first appear. Without columns, all rows are one group.
    """
    codes, first = number_groups(table, columns)
    keys = table.select(list(columns))
    return codes, keys if len(first) == table.num_rows else keys.take(pa.array(first))


def number_groups(table: pa.Table, columns: Sequence[str]) -> tuple[Index, Ints]:
    """Return what `group_codes` does, with the rows where distinct ones first appear instead of a table of them."""
    packed = np.zeros(table.num_rows, dtype=np.int64)
    cardinality = 1
    for column in columns:
        codes, count = _encode(_normal(one_array(table[column])))
        if cardinality * count > _MAX_PACKED:
            packed, cardinality = _hash_codes(pa.array(packed))
        packed = codes if cardinality == 1 else packed * count + codes
        cardinality *= count
    return _number_by_appearance(packed, cardinality)


def _encode(values: pa.Array) -> tuple[Ints, int]:
    """Return a code for each value, equal for equal values, and a number above all codes.

    Whole numbers that lie close together are their own codes, which takes no hashing.
    """
    if pa.types.is_signed_integer(values.type) and values.null_count == 0 and len(values):
        numbers = np.asarray(values)
        low = int(numbers.min())
        spread = int(numbers.max()) - low + 1
        if spread <= _SPREAD_PER_ROW * len(values):
            return numbers.astype(np.int64) - low, spread
    return _hash_codes(values)


def _hash_codes(values: pa.Array) -> tuple[Ints, int]:
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def _number_by_appearance(codes: Ints, cardinality: int) -> tuple[Index, Ints]:
    """Return the codes renumbered in the order of their first appearance, without gaps, and the rows of these."""
    rows = len(codes)
    if cardinality > _SPREAD_PER_ROW * rows:
        codes, cardinality = _hash_codes(pa.array(codes))
    first = np.full(cardinality, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)
    is_first = np.zeros(rows, dtype=np.bool_)
    is_first[first[first >= 0]] = True
    numbers = np.cumsum(is_first) - 1  # by row: the number of the group that appears there first
    return numbers[first[codes]].astype(np.intp, copy=False), np.flatnonzero(is_first)


def _normal(values: pa.Array) -> pa.Array:
    """Return the values in the one form in which equal keys have equal bytes."""
    if pa.types.is_dictionary(values.type):
        return _normal(values.cast(values.type.value_type))
    if pa.types.is_floating(values.type):
        positive = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 + 0.0 is 0.0
        return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), values.type), positive)
    return values


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the column as one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def cast_to(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values in a type; where they have it, as is the rule, without a cast, which costs even for few rows."""
    return values if values.type == wanted else values.cast(wanted)


def combine(table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Return the partials with those of equal keys merged.

    Columns are the keys and the states, in the table's order. Rows come in the order in which their keys first appear;
    rows that are alone with their keys pass unchanged.
    """
    wanted = _key_and_state_columns(table, keys, aggregates)
    codes, first = number_groups(table, keys)
    size = len(first)
    if size == table.num_rows:
        return table.select(wanted)
    distinct = table.select(list(keys)).take(pa.array(first))
    columns = {key: distinct[key] for key in keys}
    for aggregate in aggregates:
        merged = aggregate.combine(_states(table, aggregate), codes, size)
        columns |= {s.name: part for s, part in zip(aggregate.states, merged, strict=True)}
    return pa.table({name: columns[name] for name in wanted}).cast(table.select(wanted).schema)


def combine_fitting(table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Return the partials merged, or as they are where a merged one would not fit into its type.

    Partials are a bag, so both stand for the same records. Whoever needs one row per key meets the error.
    """
    try:
        return combine(table, keys, aggregates)
    except AggregateError:
        return table.select(_key_and_state_columns(table, keys, aggregates))


def select_matching(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return the rows that agree with some wanted row in the wanted columns; null keys match null keys."""
    names = wanted.column_names
    both = pa.concat_tables([wanted, rows.select(names)], promote_options="permissive")
    codes, distinct = group_codes(both, names)
    asked = np.zeros(distinct.num_rows, dtype=bool)
    asked[codes[: wanted.num_rows]] = True
    return rows.filter(pa.array(asked[codes[wanted.num_rows :]]))


def select_others(rows: pa.Table, known: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows whose keys are not among those of known rows; null keys match null keys."""
    if not keys:
        return rows.slice(0, 0 if known.num_rows else rows.num_rows)
    if not rows.num_rows or not known.num_rows:
        return rows
    both = pa.concat_tables([known.select(keys).cast(rows.select(keys).schema), rows.select(keys)])
    codes, _ = number_groups(both, keys)
    return rows.filter(pa.array(~np.isin(codes[known.num_rows :], codes[: known.num_rows])))


def lower(table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Return the keys, and one value column per aggregate, named as the aggregate is."""
    _key_and_state_columns(table, keys, aggregates)
    columns = {key: table[key] for key in keys}
    columns |= {a.name: a.lower(_states(table, a)) for a in aggregates}
    fields = [
        *(table.schema.field(key) for key in keys),
        *(pa.field(a.name, a.result_type) for a in aggregates),
    ]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


@dataclass(frozen=True)
class RowGroups:
    """The groups of some rows: the group of each row, and the keys of each group."""

    codes: Index
    keys: pa.Table
    size: int


def group_rows(table: pa.Table, keys: Sequence[str]) -> RowGroups:
    """Return the groups of rows by their keys; -0.0 is a key as 0.0, as in Spark."""
    codes, distinct = group_codes(_with_normal_keys(table, keys), keys)
    return RowGroups(codes, distinct, _size(codes))


def lift(
    table: pa.Table,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
    arguments: Mapping[str, str | None] | None = None,
    grouping: RowGroups | None = None,
) -> pa.Table:
    """Return the partials of raw rows, one for each distinct key.

    `arguments` names, for each aggregate, the column of `table` that holds its argument (None: every row
    counts); without it, each aggregate's argument text is taken as the name of the column. `grouping` are the groups of
    the rows by their keys, where they are known already.
    """
    sources = {a.name: a.argument for a in aggregates} if arguments is None else arguments
    groups = group_rows(table, keys) if grouping is None else grouping
    columns = list(groups.keys.columns)
    fields = list(groups.keys.schema)
    for aggregate in aggregates:
        columns += aggregate.lift(_argument(table, aggregate, sources), groups.codes, groups.size)
        fields += [pa.field(s.name, s.type) for s in aggregate.states]
    return pa.table(columns, schema=pa.schema(fields))


def _with_normal_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    for key in keys:
        if pa.types.is_floating(table.schema.field(key).type):
            table = table.set_column(table.schema.get_field_index(key), key, _normal(one_array(table[key])))
    return table


def _size(codes: Index) -> int:
    """Return how many groups there are; the table of distinct keys does not say it where there are no keys."""
    return int(codes.max()) + 1 if codes.size else 0


def _argument(table: pa.Table, aggregate: Aggregate, sources: Mapping[str, str | None]) -> pa.Array | None:
    source = sources[aggregate.name]
    if source is None:
        return None
    if source not in table.column_names:
        raise AggregateError(
            f"the argument of {aggregate.name!r} should be in column {source!r}, and the columns are "
            f"{table.column_names}"
        )
    return cast_to(one_array(table[source]), aggregate.argument_type)


def _states(table: pa.Table, aggregate: Aggregate) -> list[pa.Array]:
    return [cast_to(one_array(table[s.name]), s.type) for s in aggregate.states]


def _key_and_state_columns(table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> list[str]:
    """Return the names of the key and state columns in the table's order; each must be there exactly once."""
    expected = {*keys, *(s.name for a in aggregates for s in a.states)}
    found = [name for name in table.column_names if name in expected]
    if len(found) != len(expected):
        raise AggregateError(
            f"a table of partials should have the columns {sorted(expected)}, and has {table.column_names}"
        )
    return found
