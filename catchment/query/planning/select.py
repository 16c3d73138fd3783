"""What plans of one stream and of two have in common: WHERE, keys, SELECT and HAVING, the aggregation of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates import Aggregate
from catchment.query.fragment import SLICE_COLUMN, Explode, Key, Lookup
from catchment.query.join import JoinedKey
from catchment.query.plan_nodes import (
    WINDOW_END,
    WINDOW_START,
    Answer,
    ExplodeRecords,
    Filter,
    Finish,
    LookupJoin,
    Node,
    OutputColumn,
    Scan,
    TopRows,
    ViewScan,
    WindowAggregate,
)
from catchment.query.planning.calls import AggregateSet, ParsedCall, fresh_name, input_text, resolve_inputs
from catchment.query.planning.composed import ViewWindows
from catchment.query.planning.from_clause import FromClause
from catchment.query.planning.grouping import Grouping
from catchment.query.planning.outputs import SelectOutputs, check_boolean
from catchment.query.planning.scope import Scope, make_typed
from catchment.query.planning.view_sites import StreamAtSites
from catchment.query.sql.dialect import conjuncts, read_expression, render, show
from catchment.query.sql.statements import Stream, View
from catchment.query.types import sql_type
from catchment.timeline import WindowSpec

OWN_NAMES = (SLICE_COLUMN, WINDOW_START, WINDOW_END)


def names_in_use(keys: Iterable[Key | JoinedKey]) -> set[str]:
    """Return the names beside which others are found: those of keys, and of columns that every fragment has."""
    return {*OWN_NAMES, *(key.name.lower() for key in keys)}


def aggregate_stream(
    stream: Stream,
    lookups: Sequence[Lookup],
    conditions: tuple[str, ...],
    window: WindowSpec,
    keys: tuple[Key, ...],
    aggregates: tuple[Aggregate, ...],
    explodes: Sequence[Explode] = (),
) -> WindowAggregate:
    """Return the scan of a stream, its lookups, what becomes several rows, the filter, and the aggregation over it."""
    arguments = (a.argument for a in aggregates if a.argument)
    joined = (*(lookup.on for lookup in lookups), *(explode.sql for explode in explodes))
    texts = [*conditions, *joined, *(k.sql for k in keys), *arguments]
    columns = _used_columns(stream, texts)
    sites = stream.sites or ()
    named_sites = stream.named_sites if isinstance(stream, StreamAtSites) else ()
    node: Node = Scan(stream.name, stream.event_time, columns, sites, named_sites=named_sites)
    if isinstance(stream, ViewWindows):
        node = ViewScan(stream.name, stream.event_time, columns, sites, stream.window, stream.sketch_error)
    for number in range(len(lookups) + 1):
        for explode in (e for e in explodes if e.after == number):
            node = ExplodeRecords(node, explode)
        node = LookupJoin(node, lookups[number]) if number < len(lookups) else node
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


def read_finish(
    view: View, grouping: Grouping, keys: Mapping[str, Key], aggregates: AggregateSet
) -> Callable[[Answer], Finish]:
    """Return what makes the last step of a view over its aggregation: the SELECT list, HAVING, ORDER BY with LIMIT.

    The calls in them are added to `aggregates`, which is not left empty.
    """
    outputs = SelectOutputs(aggregates.scope, grouping.call, keys, aggregates, view.select.selects)
    columns = outputs.columns()
    having = view.select.args.get("having")
    condition = outputs.having(having.this) if having is not None else None
    top = _read_top(view.select, outputs)
    _check_distinct(view.select, columns, keys, view)
    if not aggregates.found:
        aggregates.add(ParsedCall(view.select, "count", None))
    return lambda node: Finish(node, columns, condition, top)


def _read_top(select: exp.Select, outputs: SelectOutputs) -> TopRows | None:
    """Return ORDER BY and LIMIT, which come together."""
    order = select.args.get("order")
    limit = select.args.get("limit")
    error = outputs.scope.text.error
    if limit is None and order is not None:
        raise error(
            "ORDER BY without LIMIT orders nothing: results are a table",
            order,
            hint="add LIMIT n for the first rows of each window, or order the rows when you read them",
        )
    if limit is None:
        return None
    if order is None:
        raise error(
            "LIMIT without ORDER BY would leave rows to chance", limit, hint="say which rows come first: ORDER BY ..."
        )
    number = limit.expression
    rows = int(number.name) if isinstance(number, exp.Literal) and number.name.isdigit() else 0
    if rows < 1:
        raise error(f"LIMIT {show(number)} keeps no rows", limit, hint="write a whole number of 1 or more")
    return TopRows(tuple(outputs.sort_key(o) for o in order.expressions), rows)


def _check_distinct(select: exp.Select, columns: tuple[OutputColumn, ...], keys: Mapping[str, Key], view: View) -> None:
    """Refuse DISTINCT where rows of one window could be equal: those of a view differ in its keys."""
    distinct = select.args.get("distinct")
    if distinct is None:
        return
    if distinct.args.get("on"):
        raise view.text.error("DISTINCT ON is not possible in a view", distinct, hint="use first(x) or max_by(x, y)")
    shown = {c.source for c in columns}
    hidden = [k.name for k in keys.values() if k.name not in shown]
    if hidden or not shown & {WINDOW_START, WINDOW_END}:
        missing = ", ".join(hidden) or "window.start"
        raise view.text.error(
            f"SELECT DISTINCT leaves out {missing}, so that equal rows could follow each other",
            distinct,
            hint="select window.start and every key of GROUP BY, or leave the key out of GROUP BY",
        )


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
                hint="take a part of it, such as a field or an element",
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
    if isinstance(expression, exp.Column):
        return expression.name
    columns = (item for item in view.select.selects if isinstance(item, exp.Column))  # those of a subquery
    return next((c.name for c in columns if input_text(c, scope) == sql), None)
