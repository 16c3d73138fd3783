"""Partials: Arrow tables (slice_us, keys..., states...), and lift, combine and lower over whole tables of them.

`combine` merges the rows that agree in their keys: associative and commutative because each aggregate is, so
a set of partials may be merged in any order, in any pieces. Equality of keys is that of Spark's GROUP BY:
null equals null, NaN equals NaN, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate
from catchment.aggregates.grouping import RowGroups as RowGroups
from catchment.aggregates.grouping import group_codes as group_codes
from catchment.aggregates.grouping import normal
from catchment.aggregates.grouping import number_groups as number_groups
from catchment.aggregates.grouping import one_array as one_array
from catchment.arrays import Index
from catchment.errors import AggregateError


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
            table = table.set_column(table.schema.get_field_index(key), key, normal(one_array(table[key])))
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
