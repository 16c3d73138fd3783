"""What plans of one stream and of two have in common: WHERE, keys, SELECT and HAVING, the aggregation of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import Aggregate
from catchment.query.fragment import SLICE_COLUMN, Key, Lookup
from catchment.query.plan import (
    WINDOW_END,
    WINDOW_START,
    Filter,
    LookupJoin,
    Node,
    OutputColumn,
    Scan,
    WindowAggregate,
)
from catchment.query.planning.calls import AggregateSet, ParsedCall, fresh_name, input_text, resolve_inputs
from catchment.query.planning.from_clause import FromClause
from catchment.query.planning.grouping import Grouping
from catchment.query.planning.outputs import SelectOutputs, check_boolean
from catchment.query.planning.scope import Scope, make_typed
from catchment.query.sql.dialect import conjuncts, read_expression, render
from catchment.query.sql.statements import Stream, View
from catchment.query.types import sql_type
from catchment.timeline import WindowSpec

OWN_NAMES = (SLICE_COLUMN, WINDOW_START, WINDOW_END)


def aggregate_stream(
    stream: Stream,
    lookups: Sequence[Lookup],
    conditions: tuple[str, ...],
    window: WindowSpec,
    keys: tuple[Key, ...],
    aggregates: tuple[Aggregate, ...],
) -> WindowAggregate:
    """Return the scan of a stream, its lookups, the filter, and the aggregation over them."""
    arguments = (a.argument for a in aggregates if a.argument)
    texts = [*conditions, *(lookup.on for lookup in lookups), *(k.sql for k in keys), *arguments]
    node: Node = Scan(stream.name, stream.event_time, _used_columns(stream, texts), stream.sites or ())
    for lookup in lookups:
        node = LookupJoin(node, lookup)
    source = Filter(node, conditions) if conditions else node
    return WindowAggregate(source, window, keys, aggregates)


def _used_columns(stream: Stream, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the stream's columns that these texts name, and its event time, in declared order."""
    named = {stream.event_time, *(column for text in texts for of, column in _columns(text) if of == stream.name)}
    return tuple(c.name for c in stream.columns if c.name in named)


@lru_cache(maxsize=4096)
def _columns(text: str) -> tuple[tuple[str, str], ...]:
    """Return the qualified columns of a text: relation and name."""
    found = read_expression(text).find_all(exp.Column)
    return tuple((c.parts[0].name, c.parts[1].name) for c in found if len(c.parts) > 1)


def read_conditions(view: View, read: FromClause) -> list[exp.Expr]:
    """Return the conditions on records, resolved: of the subqueries that are read, then of WHERE."""
    found = list(read.conditions)
    where = view.select.args.get("where")
    if where is not None:
        resolved = resolve_inputs(where.this, read.scope, "WHERE")
        check_boolean(resolved, where.this, read.scope, "WHERE")
        found += conjuncts(resolved)
    return found


def read_results(
    view: View, grouping: Grouping, keys: Mapping[str, Key], aggregates: AggregateSet
) -> tuple[tuple[OutputColumn, ...], str | None]:
    """Return the SELECT list and HAVING; the calls in them are added to `aggregates`, which is not left empty."""
    outputs = SelectOutputs(aggregates.scope, grouping.call, keys, aggregates, view.select.selects)
    columns = outputs.columns()
    having = view.select.args.get("having")
    condition = outputs.having(having.this) if having is not None else None
    if not aggregates.found:
        aggregates.add(ParsedCall(view.select, "count", None))
    return columns, condition


def read_keys(view: View, grouping: Grouping, scope: Scope) -> dict[str, Key]:
    """Return the keys by the texts of their expressions, each named as SELECT names it."""
    taken = set(OWN_NAMES)
    keys: dict[str, Key] = {}
    for expression in grouping.keys:
        sql = render(expression)
        made = make_typed(expression, scope.text, "the key")
        if pa.types.is_nested(made.type):
            raise scope.text.error(
                f"a key of type {sql_type(made.type)} is not possible",
                expression,
                hint="group by a part of it, such as a field or an element",
            )
        name = fresh_name(_key_name(expression, sql, view, scope) or f"key_{len(keys) + 1}", taken)
        taken.add(name.lower())
        keys[sql] = Key(name, made.sql, made.type)
    return keys


def _key_name(expression: exp.Expr, sql: str, view: View, scope: Scope) -> str | None:
    for item in view.select.selects:
        if item.alias and input_text(item.unalias(), scope) == sql:
            return str(item.alias)
    if isinstance(expression, exp.Dot):
        return str(expression.expression.name)
    return expression.name if isinstance(expression, exp.Column) else None
