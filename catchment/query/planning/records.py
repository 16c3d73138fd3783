"""SELECT without GROUP BY: the records that a condition keeps, with the columns that are computed of them.

Records travel as rows of partials, so that everything which makes answers exact (numbered segments, late records,
repairs, restarts) holds for them too: such a SELECT is planned as if it grouped by all its columns, in windows of
`publish_every`. Equal rows of a window are one row, whose column `copies` says how many they are.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from catchment.query.plan_nodes import COPIES
from catchment.query.planning.from_clause import FromClause
from catchment.query.planning.subqueries import resolve_plain, selected_columns
from catchment.query.sql.dialect import show
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import NEVER


def group_records(view: View, read: FromClause) -> View:
    """Return the view that groups by all columns and counts equal records; it is never sampled."""
    _refuse_group_clauses(view)
    _refuse_contract(view)
    columns: list[exp.Expr] = []
    keys: list[exp.Expr] = []
    for name, written in selected_columns(view.select, read.scope):
        resolved = resolve_plain(written, read.scope)
        # What is the same for every record is no key: the last step adds it. In a union it may tell branches apart.
        is_key = resolved.find(exp.Column) is not None or (read.branches > 1 and written.find(exp.Column) is not None)
        keys += [written.copy()] if is_key else []
        columns.append(exp.alias_(written.copy() if is_key else resolved, name, quoted=True))
    length = exp.Literal.string(f"{view.options.publish_every_us} microseconds")
    window = exp.Anonymous(this="window", expressions=[read.scope.event_time(read.canonical), length])
    count = exp.alias_(exp.Anonymous(this="count", expressions=[exp.Star()]), COPIES)
    select = view.select.copy()
    select.set("expressions", [*columns, count])
    select.set("group", exp.Group(expressions=[window, *keys]))
    return replace(view, select=select, options=replace(view.options, shed=NEVER))


def _refuse_group_clauses(view: View) -> None:
    for name, word, way_out in (
        ("having", "HAVING", "a condition on records is WHERE"),
        ("order", "ORDER BY", "results are a table: order the rows when you read them"),
        ("limit", "LIMIT", "results are a table: limit the rows when you read them"),
    ):
        clause = view.select.args.get(name)
        if clause is not None:
            raise view.text.error(f"{word} is not possible without GROUP BY", clause, hint=way_out)


def _refuse_contract(view: View) -> None:
    for name, value in (("max_error", view.options.max_error), ("slack", view.options.slack)):
        if value is not None:
            raise view.text.error(
                f"{name} is for aggregates, and {show(view.select.selects[0])} is a column of records",
                view.select,
                hint=f"leave {name} out: records are published as they are",
            )
