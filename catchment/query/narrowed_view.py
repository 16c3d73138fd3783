"""The view of a second round: some aggregates of some rows of another view, over the values that decide them.

It is written as SQL from the plan of the other view, so that everything that runs views runs it too: it is deployed,
reads the past, crosses relays and survives crashes like any view. Keys are named `key_1`, `key_2`, ..., aggregates
`estimate_N` after their place among those of the other view. `records` counts what the histories hold of a row, where
the other view has counted it too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import Aggregate, quote
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.second_round import RankIntervals, double_sql
from catchment.errors import QueryError
from catchment.functions.installed import find_installed, functions_in
from catchment.query.fragment import Fragment, Key, Lookup
from catchment.query.plan import QueryPlan
from catchment.query.sql.dialect import read_expression, render
from catchment.query.types import sql_type
from catchment.timeline import WindowSpec

ESTIMATE = "estimate_"
HELD_RECORDS = "records"  # the column that counts the records of a row
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class NarrowedRow:
    """A row with estimates: its window, its keys, the places of these aggregates, and where ranks lie, by place."""

    start_us: int
    keys: tuple[Any, ...]
    places: tuple[int, ...]
    intervals: Mapping[int, RankIntervals]


def place_of_estimate(name: str) -> int:
    """Return the place of the aggregate that an aggregate of a narrowed view is of."""
    return int(name.removeprefix(ESTIMATE))


def narrow_select(plan: QueryPlan, rows: Sequence[NarrowedRow]) -> str:
    """Return the SELECT that computes what is estimated in some rows of a plan over one stream.

    A record may be in several windows that overlap: rows of these with the same keys are narrowed together.
    """
    fragment = plan.fragment
    if plan.window.slide_us < plan.window.size_us:
        rows = _unite_windows(rows)
    keys = [f"{key.sql} AS key_{number}" for number, key in enumerate(fragment.keys, start=1)]
    places = sorted({place for row in rows for place in row.places})
    conditions = [_condition(fragment, plan.window, row) for row in rows]
    columns = [*keys, *(_estimate(fragment, place, rows, conditions) for place in places)]
    columns += [f"count(*) AS {HELD_RECORDS}"] if count_of_records(fragment) else []
    where = " OR ".join(f"({condition})" for condition in dict.fromkeys(conditions))
    if fragment.where is not None:
        where = f"({fragment.where}) AND ({where})"
    source = " ".join([quote(fragment.stream), *(_join(lookup) for lookup in fragment.lookups)])
    grouped = [_window(fragment, plan.window), *(key.sql for key in fragment.keys)]
    sql = (
        f"SELECT window.start AS begin, {', '.join(columns)} FROM {source} WHERE {where} GROUP BY {', '.join(grouped)}"
    )
    return _with_plain_functions(sql)


def count_of_records(fragment: Fragment) -> Aggregate | None:
    """Return the aggregate that counts the records of a row, if there is one."""
    return next((a for a in fragment.aggregates if a.function == "count" and a.argument is None), None)


def _unite_windows(rows: Sequence[NarrowedRow]) -> list[NarrowedRow]:
    """Return one row for all windows of the same keys."""
    found: dict[tuple[str, ...], NarrowedRow] = {}
    for row in rows:
        key = tuple(map(repr, row.keys))
        known = found.get(key)
        if known is None:
            found[key] = row
            continue
        intervals = dict(known.intervals)
        for place, own in row.intervals.items():
            intervals[place] = intervals[place].unite(own) if place in intervals else own
        found[key] = replace(known, places=tuple({*known.places, *row.places}), intervals=intervals)
    return list(found.values())


def why_not_narrowed(plan: QueryPlan) -> str | None:
    """Return why the estimates of a view cannot be made exact by a second round; None if they can."""
    if plan.sides != (plan,):
        return "it is not over the records of one stream"
    if plan.fragment.explodes:
        return "it makes several rows of a record"
    for key in plan.fragment.keys:
        if not _is_written(key.type):
            return f"its key {key.name} is of type {sql_type(key.type)}, which SQL has no literals for"
    return None


def _estimate(fragment: Fragment, place: int, rows: Sequence[NarrowedRow], conditions: Sequence[str]) -> str:
    aggregate = fragment.aggregates[place]
    name = f"{ESTIMATE}{place}"
    if not isinstance(aggregate, Percentile):
        return f"count(DISTINCT {_distinct_arguments(aggregate.argument or '', aggregate.argument_type)}) AS {name}"
    number = f"CAST(({aggregate.argument}) AS DOUBLE)"
    cases = [
        f"WHEN {condition} THEN {row.intervals[place].narrow_sql(number)}"
        for row, condition in zip(rows, conditions, strict=True)
        if place in row.intervals
    ]
    ranks = ", ".join(repr(rank) for rank in aggregate.ranks)
    return f"percentile(CAST(CASE {' '.join(cases)} END AS DOUBLE), array({ranks})) AS {name}"


def _distinct_arguments(argument: str, type_: pa.DataType | None) -> str:
    """Return what is written behind DISTINCT: one value, or several that the plan holds as a struct."""
    if not isinstance(type_, pa.StructType):
        return argument
    struct = read_expression(argument)
    assert isinstance(struct, exp.Struct)
    return ", ".join(render(part.expression) for part in struct.expressions)


def _condition(fragment: Fragment, window: WindowSpec, row: NarrowedRow) -> str:
    parts = [_equals(key, value) for key, value in zip(fragment.keys, row.keys, strict=True)]
    if window.slide_us == window.size_us:
        time = f"{quote(fragment.stream)}.{quote(fragment.event_time)}"
        parts.append(f"{time} >= {_timestamp(row.start_us)}")
        parts.append(f"{time} < {_timestamp(row.start_us + window.size_us)}")
    return " AND ".join(parts) or "TRUE"


def _equals(key: Key, value: Any) -> str:
    return f"({key.sql}) IS NULL" if value is None else f"({key.sql}) <=> {_literal(key.type, value)}"


def _is_written(type_: pa.DataType) -> bool:
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string)
    return any(is_one(type_) for is_one in (*plain, pa.types.is_date, pa.types.is_timestamp, pa.types.is_binary))


def _literal(type_: pa.DataType, value: Any) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return double_sql(value) if not math.isnan(value) else "CAST('NaN' AS DOUBLE)"
        case bytes():
            return f"X'{value.hex()}'"
        case int() | Decimal() | str() | datetime() | date():
            return f"CAST({render(exp.Literal.string(str(value)))} AS {sql_type(type_)})"
    raise QueryError(f"a key of type {sql_type(type_)} cannot be written in SQL: {value!r}")


def _timestamp(at_us: int) -> str:
    instant = (_EPOCH + timedelta(microseconds=at_us)).isoformat(sep=" ")
    return f"CAST('{instant}' AS TIMESTAMP)"


def _window(fragment: Fragment, window: WindowSpec) -> str:
    time = f"{quote(fragment.stream)}.{quote(fragment.event_time)}"
    lengths = ", ".join(f"'{us} microseconds'" for us in (window.size_us, window.slide_us, window.offset_us))
    return f"window({time}, {lengths})"


def _join(lookup: Lookup) -> str:
    how = "LEFT JOIN" if lookup.how == "left" else "JOIN"
    return f"{how} {quote(lookup.table)} AS {quote(lookup.alias)} ON {lookup.on}"


def _with_plain_functions(sql: str) -> str:
    """Return SQL in which functions of the project have the names that their authors gave them."""
    for installed in functions_in(sql):
        found = find_installed(installed)
        assert found is not None
        sql = re.sub(rf"\b{re.escape(installed)}\b", found.name, sql, flags=re.IGNORECASE)
    return sql
