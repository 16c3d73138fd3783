"""A view's SELECT to its plan.

The SELECT is taken apart in the order in which it is evaluated: FROM and JOIN give a scope, WHERE a filter,
GROUP BY the window and the keys, and every distinct aggregate call of SELECT and HAVING one aggregate; what
remains of SELECT and HAVING is rewritten over the window's bounds, the keys and the aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from sqlglot import exp

from catchment.aggregates.shed_terms import with_terms
from catchment.query.calls import AggregateSet, Call, fresh_name, input_text, resolve_inputs
from catchment.query.catalog import Catalog
from catchment.query.dialect import read_expression, render
from catchment.query.fragment import SLICE_COLUMN, Key
from catchment.query.grouping import Grouping, read_grouping
from catchment.query.outputs import Outputs, check_boolean
from catchment.query.plan import (
    WINDOW_END,
    WINDOW_START,
    Filter,
    Finish,
    LookupJoin,
    Node,
    QueryPlan,
    Scan,
    Sink,
    WindowAggregate,
)
from catchment.query.relations import From, conjuncts, read_from
from catchment.query.scope import Scope, typed
from catchment.query.statements import NEVER, View
from catchment.query.types import sql_type

OWN_NAMES = (SLICE_COLUMN, WINDOW_START, WINDOW_END)


def plan_views(catalog: Catalog) -> Mapping[str, QueryPlan]:
    """The plans of all views of a catalog, by name."""
    return {name: plan_view(view, catalog) for name, view in catalog.views.items()}


def plan_view(view: View, catalog: Catalog) -> QueryPlan:
    """The plan of a view, or the first mistake in it."""
    read = read_from(view, catalog)
    grouping = read_grouping(view.select, read.scope, read.stream)
    keys = _read_keys(view, grouping, read.scope)
    aggregates = AggregateSet(read.scope, {*OWN_NAMES, *(k.name.lower() for k in keys.values())})
    outputs = Outputs(read.scope, grouping.call, keys, aggregates, view.select.selects)
    columns = outputs.columns()
    having = view.select.args.get("having")
    condition = outputs.having(having.this) if having is not None else None
    if not aggregates.found:
        aggregates.add(Call(view.select, "count", None))
    conditions = _read_where(view, read.scope)
    found = tuple(aggregates.found.values())
    sheds = read.stream.shed and view.options.shed != NEVER
    made = (tuple(keys.values()), with_terms(found) if sheds else found)
    source = _source(read, conditions, [*(k.sql for k in made[0]), *(a.argument for a in made[1] if a.argument)])
    finish = Finish(WindowAggregate(source, grouping.window, *made), columns, condition)
    return QueryPlan(Sink(finish, view.name, view.options.sink or catalog.project.center, view.options))


def _source(read: From, conditions: tuple[str, ...], expressions: Iterable[str]) -> Node:
    """What the aggregation reads: the scan, the lookups, the filter."""
    texts = [*conditions, *(lookup.on for lookup in read.lookups), *expressions]
    stream = read.stream
    node: Node = Scan(stream.name, stream.event_time, _used_columns(read, texts), stream.sites or ())
    for lookup in read.lookups:
        node = LookupJoin(node, lookup)
    return Filter(node, conditions) if conditions else node


def _used_columns(read: From, texts: Iterable[str]) -> tuple[str, ...]:
    """The stream's columns that these texts name, and its event time, in declared order."""
    columns = [c for text in texts for c in read_expression(text).find_all(exp.Column)]
    named = {
        read.stream.event_time,
        *(c.parts[1].name for c in columns if c.parts[0].name == read.stream.name),
    }
    return tuple(c.name for c in read.stream.columns if c.name in named)


def _read_where(view: View, scope: Scope) -> tuple[str, ...]:
    where = view.select.args.get("where")
    if where is None:
        return ()
    resolved = resolve_inputs(where.this, scope, "WHERE")
    check_boolean(resolved, where.this, scope, "WHERE")
    return tuple(dict.fromkeys(render(part) for part in conjuncts(resolved)))


def _read_keys(view: View, grouping: Grouping, scope: Scope) -> dict[str, Key]:
    """The keys by the texts of their expressions, each named as SELECT names it."""
    taken, keys = set(OWN_NAMES), dict[str, Key]()
    for expression in grouping.keys:
        sql = render(expression)
        made = typed(expression, scope.text, "the key")
        if pa.types.is_nested(made.type):
            raise scope.text.error(f"a key of type {sql_type(made.type)} is not possible", expression,
                                   hint="group by a part of it, such as a field or an element")  # fmt: skip
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
