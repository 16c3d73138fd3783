"""SELECT and HAVING, rewritten over the columns of the aggregation: window_start, window_end, keys, aggregates.

Names are resolved as in Spark. In SELECT: input columns first, then the aliases of the columns before; in HAVING: keys
first, then aliases. Inside an aggregate a name is always an input column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from catchment.query.fragment import SLICE_COLUMN, Key
from catchment.query.plan_nodes import WINDOW_END, WINDOW_START, OutputColumn, SortKey
from catchment.query.planning.calls import AggregateSet, input_text, read_call
from catchment.query.planning.grouping import window_name
from catchment.query.planning.scope import Scope, infer_type, make_typed
from catchment.query.sql.dialect import CatchmentSpark, render, show
from catchment.query.sql.tokens import IDENTIFIER
from catchment.query.types import TIMESTAMP, read_type, sql_type

WINDOW_NAMES = (["window"], ["session_window"])  # what the window is called in SELECT and HAVING
BOUNDS = {"start": WINDOW_START, "end": WINDOW_END}
# Columns that every result table has beside those of its view.
PUBLISHED_COLUMNS = (
    "coverage",
    "bound",
    "bound_kind",
    "bound_terms",
    "status",
    "revision",
    "published_at",
    "missing_sites",
    "missing_sources",
    "retracted",
    "state",
)
RESULT_COLUMNS = frozenset((WINDOW_START, WINDOW_END, SLICE_COLUMN, *PUBLISHED_COLUMNS))


@dataclass
class SelectOutputs:
    """The outputs of one SELECT; the aggregate calls in them are added to `aggregates`."""

    scope: Scope
    window: exp.Expr
    keys: Mapping[str, Key]  # by the text of the resolved expression
    aggregates: AggregateSet
    items: Sequence[exp.Expr]

    def columns(self) -> tuple[OutputColumn, ...]:
        """Return the SELECT list."""
        self._name_aggregates()
        outputs = tuple(self._column(position, item) for position, item in enumerate(self.items))
        seen: set[str] = set()
        for item, output in zip(self.items, outputs, strict=True):
            self._check_name(item, output, seen)
            seen.add(output.name.lower())
        return outputs

    def having(self, condition: exp.Expr) -> str:
        """Return the HAVING condition."""
        rewritten = self._rewrite(condition, len(self.items), aliases_win=True)
        check_boolean(rewritten, condition, self.scope, "HAVING")
        return render(rewritten)

    def sort_key(self, ordered: exp.Ordered) -> SortKey:
        """Return one key of ORDER BY: an alias, an ordinal or an expression over keys and aggregates."""
        expression = ordered.this
        if isinstance(expression, exp.Literal) and not expression.is_string:
            expression = self._item_at(expression)
        rewritten = self._rewrite(expression, len(self.items), aliases_win=True)
        source = rewritten.name if isinstance(rewritten, exp.Column) else None
        made = make_typed(rewritten, self.scope.text, "a key of ORDER BY,", at=ordered)
        if pa.types.is_nested(made.type):
            raise self.scope.text.error(
                f"rows cannot be ordered by a {sql_type(made.type)}", ordered, hint="order by a part of it"
            )
        return SortKey(made.sql, made.type, source, bool(ordered.args.get("desc")), bool(ordered.args["nulls_first"]))

    def _item_at(self, ordinal: exp.Literal) -> exp.Expr:
        number = int(ordinal.name) if ordinal.name.isdigit() else 0
        if not 1 <= number <= len(self.items):
            raise self.scope.text.error(
                f"ORDER BY {ordinal.name} points at no column",
                ordinal,
                hint=f"the SELECT list has the columns 1 to {len(self.items)}",
            )
        return self.items[number - 1].unalias()

    def _name_aggregates(self) -> None:
        """Give an aggregate that is a whole column the name of that column."""
        for item in self.items:
            call = read_call(item.unalias(), self.scope.text) if item.alias else None
            if call is not None:
                self.aggregates.add(call, str(item.alias))

    def _column(self, position: int, item: exp.Expr) -> OutputColumn:
        if item.is_star:
            raise self.scope.text.error(
                "SELECT * is not possible in a grouped query",
                item,
                hint="list window.start, the keys and the aggregates",
            )
        rewritten = self._rewrite(item.unalias(), position)
        name = self._name(item, rewritten)
        if isinstance(rewritten, exp.Column):
            return OutputColumn(name, render(rewritten), rewritten.meta["arrow"], rewritten.name)
        made = make_typed(rewritten, self.scope.text, f"the column {name!r},", at=item)
        return OutputColumn(name, made.sql, made.type)

    def _name(self, item: exp.Expr, rewritten: exp.Expr) -> str:
        if item.alias:
            return str(item.alias)
        if isinstance(item, exp.Column | exp.Dot):
            return str(item.expression.name if isinstance(item, exp.Dot) else item.name)
        if isinstance(rewritten, exp.Column):
            return rewritten.name
        if window_name(item):
            return "window"
        raise self.scope.text.error(f"the column {show(item)} has no name", item, hint="write ... AS name")

    def _check_name(self, item: exp.Expr, output: OutputColumn, seen: set[str]) -> None:
        name = output.name
        error = self.scope.text.error
        if not IDENTIFIER.fullmatch(name):
            raise error(
                f"{name!r} cannot be the name of a column",
                item,
                hint="a name is made of letters, digits and _: write ... AS name",
            )
        if name.lower() in seen:
            raise error(f"two columns are named {name!r}", item, hint="name one of them ... AS other_name")
        own_bound = name.lower() in BOUNDS.values() and output.source == name.lower()
        if name.lower() in RESULT_COLUMNS and not own_bound:
            raise error(
                f"every result has a column {name!r} of its own", item, hint="choose another name: ... AS other_name"
            )

    def _rewrite(self, expression: exp.Expr, position: int, aliases_win: bool = False) -> exp.Expr:
        """Return an expression over the aggregation's columns; it may use the aliases of the items before it."""
        return expression.transform(lambda node: self._rewrite_node(node, position, aliases_win))

    def _rewrite_node(self, node: exp.Expr, position: int, aliases_win: bool) -> exp.Expr:
        if "arrow" in node.meta:
            return node
        window = self._window_column(node)
        if window is not None:
            return window
        call = read_call(node, self.scope.text)
        if call is not None:
            made = self.aggregates.add(call)
            return _result_column(made.name, made.result_type)
        key = self.keys.get(input_text(node, self.scope) or "")
        if key is not None:
            return _result_column(key.name, key.type)
        return self._resolve_ungrouped(node, position, aliases_win) if isinstance(node, exp.Column) else node

    def _resolve_ungrouped(self, column: exp.Column, position: int, aliases_win: bool) -> exp.Expr:
        """Return the expression of an alias that a column names; any other column that is not a key is refused."""
        if len(column.parts) == 1 and (aliases_win or not self.scope.knows(column.name)):
            for before, item in enumerate(self.items[:position]):
                if item.alias.lower() == column.name.lower():
                    meant = self._rewrite(item.unalias(), before)
                    return meant if isinstance(meant, exp.Column) else exp.paren(meant)
        self.scope.resolve(column)
        raise self.scope.text.error(
            f"the column {show(column)} is neither grouped nor aggregated",
            column,
            hint=f"add it to GROUP BY, or aggregate it, as in max({show(column)})",
        )

    def _window_column(self, node: exp.Expr) -> exp.Expr | None:
        """Return what stands for window.start, window.end, window, or the window call of GROUP BY repeated."""
        if isinstance(node, exp.Column) and [p.name.lower() for p in node.parts[:-1]] in WINDOW_NAMES:
            return self._bound(node.name, node)
        if isinstance(node, exp.Dot) and window_name(node.this):
            self._check_same_window(node.this)
            return self._bound(node.expression.name, node)
        if window_name(node):
            self._check_same_window(node)
        elif not (isinstance(node, exp.Column) and [p.name.lower() for p in node.parts] in WINDOW_NAMES):
            return None
        return _window_struct()

    def _bound(self, name: str, at: exp.Expr) -> exp.Column:
        if name.lower() not in BOUNDS:
            raise self.scope.text.error(f"a window has no {name!r}", at, hint="possible: window.start, window.end")
        return _result_column(BOUNDS[name.lower()], TIMESTAMP)

    def _check_same_window(self, call: exp.Expr) -> None:
        if render(call).lower() != render(self.window).lower():
            raise self.scope.text.error(
                f"{show(call)} is not the window of GROUP BY", call, hint="write window.start or window.end"
            )


def check_boolean(expression: exp.Expr, at: exp.Expr, scope: Scope, clause: str) -> None:
    """Refuse a condition that is known not to be one."""
    type_ = infer_type(expression)
    if type_ is not None and type_ != pa.bool_():
        raise scope.text.error(
            f"the condition of {clause} is a {sql_type(type_)}",
            at,
            hint="a condition is true or false, such as bytes > 100",
        )


def _result_column(name: str, type_: pa.DataType) -> exp.Column:
    """Return a column of the aggregation, marked so that no rewriting touches it again."""
    column = exp.column(name, quoted=True)
    column.type = read_type(sql_type(type_))
    column.meta["arrow"] = type_
    return column


def _window_struct() -> exp.Expr:
    start, end = (_result_column(name, TIMESTAMP) for name in BOUNDS.values())
    arguments = [exp.Literal.string("start"), start, exp.Literal.string("end"), end]
    struct = exp.Anonymous(this="named_struct", expressions=arguments)
    return exp.cast(struct, "STRUCT<start: TIMESTAMP, end: TIMESTAMP>", dialect=CatchmentSpark)
