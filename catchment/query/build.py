"""A view's SELECT to its plan.

The SELECT is taken apart in the order in which it is evaluated: FROM and JOIN give a scope, WHERE a filter,
GROUP BY the window and the keys, and every distinct aggregate call of SELECT and HAVING one aggregate; what remains
of SELECT and HAVING is rewritten over the columns window_start, window_end, the keys and the aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from sqlglot import exp

from catchment.errors import QueryError, TimelineError
from catchment.options import IDENTIFIER
from catchment.query.calls import AggregateSet, Call, fresh_name, read_call, resolve_inputs
from catchment.query.catalog import Catalog
from catchment.query.dialect import CatchmentSpark, render
from catchment.query.fragment import SLICE_COLUMN, Key, Lookup
from catchment.query.grouping import Grouping, read_grouping, window_name
from catchment.query.plan import (
    WINDOW_END,
    WINDOW_START,
    Filter,
    Finish,
    LookupJoin,
    Node,
    OutputColumn,
    QueryPlan,
    Scan,
    Sink,
    WindowAggregate,
)
from catchment.query.scope import Scope, infer, typed
from catchment.query.shape import From, check_shape, read_from
from catchment.query.statements import View
from catchment.query.types import TIMESTAMP, read_type, sql_type

BOUNDS = {"start": WINDOW_START, "end": WINDOW_END}
# Columns that every result table has beside those of its view.
RESULT_COLUMNS = frozenset(
    [
        WINDOW_START,
        WINDOW_END,
        SLICE_COLUMN,
        "coverage",
        "bound",
        "status",
        "revision",
        "published_at",
        "missing_sites",
    ]
)


def plan_view(view: View, catalog: Catalog) -> QueryPlan:
    """The plan of a view, or the first mistake in it."""
    check_shape(view.select, view.text)
    read = read_from(view, catalog)
    return QueryPlan(
        _Builder(view, catalog, read, read_grouping(view.select, read.scope, read.stream)).root()
    )


@dataclass
class _Builder:
    """One view on its way to a plan."""

    view: View
    catalog: Catalog
    read: From
    grouping: Grouping

    @property
    def scope(self) -> Scope:
        return self.read.scope

    def root(self) -> Sink:
        finish = self.finish()
        return Sink(
            finish, self.view.name, self.view.options.sink or self.catalog.project.center, self.view.options
        )

    def finish(self) -> Finish:
        self._name_aggregates()
        outputs = [self._output(item) for item in self.view.select.selects]
        having = self.view.select.args.get("having")
        condition = self._condition(having.this) if having is not None else None
        if not self.aggregates.found:
            self.aggregates.add(Call(self.view.select, "count", None))
        aggregate = WindowAggregate(
            self.source(),
            self.grouping.window,
            tuple(self.keys.values()),
            tuple(self.aggregates.found.values()),
        )
        self._check_names(outputs)
        self._check_slices(aggregate)
        return Finish(aggregate, tuple(outputs), condition)

    # ---- below the aggregate

    def source(self) -> Node:
        node: Node = Scan(
            self.read.stream.name, self.read.stream.event_time, self._used(), self.read.stream.sites or ()
        )
        for join in self.read.joins:
            on = resolve_inputs(join.on, self.scope, "JOIN ON")
            self._check_equality(on, join.alias, join.on)
            node = LookupJoin(node, Lookup(join.table.name, join.alias, render(on), join.how))
        where = self.view.select.args.get("where")
        if where is None:
            return node
        resolved = resolve_inputs(where.this, self.scope, "WHERE")
        self._check_boolean(resolved, where.this, "WHERE")
        parts = resolved.flatten() if isinstance(resolved, exp.And) else [resolved]
        return Filter(node, tuple(render(p.unnest()) for p in parts))

    def _used(self) -> tuple[str, ...]:
        """The stream's columns that the view needs, in declared order."""
        stream = self.read.stream
        names = {stream.event_time.lower()}
        for column in self.view.select.find_all(exp.Column):
            names.update(p.name.lower() for p in column.parts)
        return tuple(c.name for c in stream.columns if c.name.lower() in names)

    def _check_equality(self, on: exp.Expr, alias: str, at: exp.Expr) -> None:
        for part in on.flatten() if isinstance(on, exp.And) else [on]:
            sides = (
                [{c.table for c in side.find_all(exp.Column)} for side in (part.left, part.right)]
                if isinstance(part, exp.EQ)
                else []
            )
            if sorted(alias in side for side in sides) != [False, True] or not all(sides):
                raise self.view.text.error(
                    f"a lookup is by equality, not by {render(part)}",
                    at,
                    hint="write ON stream.column = table.column [AND ...]; put the rest in WHERE",
                )

    def _check_boolean(self, expression: exp.Expr, at: exp.Expr, clause: str) -> None:
        type_ = infer(expression)
        if type_ is not None and type_ != pa.bool_():
            raise self.view.text.error(
                f"the condition of {clause} is a {sql_type(type_)}",
                at,
                hint="a condition is true or false, such as bytes > 100",
            )

    # ---- keys and aggregates

    @cached_property
    def keys(self) -> dict[str, Key]:
        """The keys by the text of their resolved expressions."""
        taken = {SLICE_COLUMN, WINDOW_START, WINDOW_END}
        keys: dict[str, Key] = {}
        for expression in self.grouping.keys:
            sql = render(expression)
            name = fresh_name(self._key_name(expression, sql, len(keys) + 1), taken)
            taken.add(name.lower())
            made = typed(expression, self.view.text, "the key")
            keys[sql] = Key(name, made.sql, self._groupable(made.type, expression))
        return keys

    def _key_name(self, expression: exp.Expr, sql: str, place: int) -> str:
        for item in self.view.select.selects:
            if item.alias and self._input_text(item.unalias()) == sql:
                return str(item.alias)
        return expression.name if isinstance(expression, exp.Column | exp.Dot) else f"key_{place}"

    def _groupable(self, type_: pa.DataType, at: exp.Expr) -> pa.DataType:
        if pa.types.is_nested(type_):
            raise self.view.text.error(
                f"a key of type {sql_type(type_)} is not possible",
                at,
                hint="group by a part of it, such as a field or an element",
            )
        return type_

    @cached_property
    def aggregates(self) -> AggregateSet:
        names = {k.name.lower() for k in self.keys.values()}
        return AggregateSet(self.scope, {SLICE_COLUMN, WINDOW_START, WINDOW_END, *names})

    def _name_aggregates(self) -> None:
        """Aggregates that are a column of their own take that column's name."""
        for item in self.view.select.selects:
            call = read_call(item.unalias(), self.view.text) if item.alias else None
            if call is not None:
                self.aggregates.add(call, str(item.alias))

    def _input_text(self, node: exp.Expr) -> str | None:
        try:
            return render(resolve_inputs(node, self.scope, "a key"))
        except QueryError:
            return None

    # ---- above the aggregate

    def _output(self, item: exp.Expr) -> OutputColumn:
        if item.is_star:
            raise self.view.text.error(
                "SELECT * is not possible in a grouped query",
                item,
                hint="list window.start, the keys and the aggregates",
            )
        rewritten = self._rewrite(item.unalias())
        name = self._output_name(item, rewritten)
        if isinstance(rewritten, exp.Column):
            return OutputColumn(name, render(rewritten), _lowered_type(rewritten), rewritten.name)
        made = typed(rewritten, self.view.text, f"the column {name!r},")
        return OutputColumn(name, made.sql, made.type)

    def _output_name(self, item: exp.Expr, rewritten: exp.Expr) -> str:
        if item.alias:
            return str(item.alias)
        if isinstance(item, exp.Column | exp.Dot):
            return item.name if isinstance(item, exp.Column) else item.expression.name
        if isinstance(rewritten, exp.Column):
            return rewritten.name
        if window_name(item):
            return "window"
        raise self.view.text.error(f"the column {item.sql()} has no name", item, hint="name it: ... AS name")

    def _condition(self, expression: exp.Expr) -> str:
        rewritten = self._rewrite(expression)
        self._check_boolean(rewritten, expression, "HAVING")
        return render(rewritten)

    def _rewrite(self, expression: exp.Expr) -> exp.Expr:
        """An expression of SELECT or HAVING over the columns of the aggregate."""
        return expression.copy().transform(self._rewrite_node)

    def _rewrite_node(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and not node.table and node.args.get("lowered"):
            return node
        window = self._window_column(node)
        if window is not None:
            return window
        call = read_call(node, self.view.text)
        if call is not None:
            made = self.aggregates.add(call)
            return _lowered(made.name, made.result_type)
        key = self.keys.get(self._input_text(node) or "") if isinstance(node, exp.Condition) else None
        if key is not None:
            return _lowered(key.name, key.type)
        return self._ungrouped(node) if isinstance(node, exp.Column) else node

    def _window_column(self, node: exp.Expr) -> exp.Expr | None:
        """window.start, window.end, window, or the window call itself with the same arguments."""
        if isinstance(node, exp.Column) and node.table.lower() == "window" and not node.args.get("db"):
            return self._bound(node.name, node)
        if isinstance(node, exp.Dot) and window_name(node.this):
            self._check_same_window(node.this)
            return self._bound(node.expression.name, node)
        if window_name(node):
            self._check_same_window(node)
        elif not (isinstance(node, exp.Column) and node.name.lower() == "window" and not node.table):
            return None
        start, end = (_lowered(name, TIMESTAMP) for name in BOUNDS.values())
        struct = exp.Anonymous(
            this="named_struct",
            expressions=[exp.Literal.string("start"), start, exp.Literal.string("end"), end],
        )
        return exp.cast(struct, "STRUCT<start: TIMESTAMP, end: TIMESTAMP>", dialect=CatchmentSpark)

    def _bound(self, name: str, at: exp.Expr) -> exp.Column:
        if name.lower() not in BOUNDS:
            raise self.view.text.error(
                f"a window has no {name!r}", at, hint="possible: window.start, window.end"
            )
        return _lowered(BOUNDS[name.lower()], TIMESTAMP)

    def _check_same_window(self, call: exp.Expr) -> None:
        if render(call).lower() != render(self.grouping.call).lower():
            raise self.view.text.error(
                f"{call.sql()} is not the window of GROUP BY", call, hint="write window.start or window.end"
            )

    def _ungrouped(self, column: exp.Column) -> exp.Expr:
        """An alias of the SELECT list, or a mistake."""
        item = next((i for i in self.view.select.selects if i.alias.lower() == column.name.lower()), None)
        inside = column.find_ancestor(exp.Select) is None
        if item is not None and inside and not column.table:
            return exp.paren(self._rewrite(item.unalias()))
        self.scope.resolve(column)
        raise self.view.text.error(
            f"the column {column.sql()} is neither grouped nor aggregated",
            column,
            hint=f"add it to GROUP BY, or aggregate it, as in max({column.sql()})",
        )

    # ---- what must hold in the end

    def _check_names(self, outputs: Iterable[OutputColumn]) -> None:
        seen: dict[str, str] = {}
        for item, output in zip(self.view.select.selects, outputs, strict=True):
            name = output.name.lower()
            if not IDENTIFIER.fullmatch(output.name):
                raise self.view.text.error(
                    f"{output.name!r} cannot be the name of a column",
                    item,
                    hint="a name is made of letters, digits and _: write ... AS name",
                )
            if name in seen:
                raise self.view.text.error(
                    f"two columns are named {output.name!r}", item, hint="name one ... AS other"
                )
            if name in RESULT_COLUMNS and output.source != name:
                raise self.view.text.error(
                    f"every result has a column {output.name!r} of its own",
                    item,
                    hint="choose another name: ... AS name",
                )
            seen[name] = output.name

    def _check_slices(self, aggregate: WindowAggregate) -> None:
        try:
            from catchment.timeline import Slicing

            Slicing.of([aggregate.window])
        except TimelineError as cause:
            raise self.view.text.error(cause.message, self.grouping.call, hint=cause.hint) from cause


def _lowered(name: str, type_: pa.DataType) -> exp.Column:
    column = exp.column(name, quoted=True)
    column.type = read_type(sql_type(type_))
    column.meta["arrow"] = type_
    return column


def _lowered_type(column: exp.Column) -> pa.DataType:
    return column.meta["arrow"]
