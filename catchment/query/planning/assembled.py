"""Views whose windows are assembled from slices: `session_window`, `cumulate` and `calendar_window`.

Such a view is planned as two: its slices, which sites aggregate like any other query, and the view itself, which the
center assembles from them (`catchment.query.assembly`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from catchment.aggregates import Aggregate, make_aggregate, quote
from catchment.errors import QueryError
from catchment.query.assembly import Assembly, Sessions
from catchment.query.fragment import Key
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import (
    FIRST_INSTANT,
    LAST_INSTANT,
    LOWER_ROWS,
    SLICES,
    WINDOW_END,
    WINDOW_START,
    Answer,
    Assemble,
    Finish,
    OutputColumn,
    Sink,
    SliceScan,
    WindowAggregate,
)
from catchment.query.planning.composed import ViewWindows, check_composed_options
from catchment.query.planning.from_clause import FromClause
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import NEVER
from catchment.query.types import TIMESTAMP


def hidden_aggregates(assembly: Assembly, read: FromClause) -> tuple[Aggregate, ...]:
    """Return what is aggregated beside what the view asks for: the number of records, and of sessions their ends."""
    records = make_aggregate("count", None, None, name=LOWER_ROWS)
    if not isinstance(assembly, Sessions):
        return (records,)
    time = f"{quote(read.canonical)}.{quote(read.stream.event_time)}"
    ends = (("min", FIRST_INSTANT), ("max", LAST_INSTANT))
    return records, *(make_aggregate(function, time, TIMESTAMP, name=name) for function, name in ends)


def plan_assembled(
    view: View,
    assembly: Assembly,
    slices: WindowAggregate,
    finish: Callable[[Answer], Finish],
    site: str,
) -> QueryPlan:
    """Return the plan of a view over the aggregation of its slices."""
    options = replace(view.options, shed=NEVER)
    name = f"{view.name}{SLICES}"
    below = Sink(Finish(slices, _slice_columns(slices.keys)), name, site, options)
    error = max(a.sketch_error for a in slices.aggregates)
    scan = SliceScan(name, WINDOW_START, (WINDOW_START,), (site,), slices.window, error, source=below)
    last = finish(Assemble(scan, slices.window, slices.keys, slices.aggregates, assembly=assembly))
    _check_finish(last, view)
    return QueryPlan(Sink(last, view.name, site, options))


def check_assembled(view: View, read: FromClause) -> None:
    """Refuse what cannot be assembled from slices."""
    if read.branches > 1 or isinstance(read.stream, ViewWindows):
        found = "unites several streams" if read.branches > 1 else "reads another view"
        raise QueryError(
            f"view {view.name!r} {found}, and has windows that are not of one size",
            where=view.where,
            hint="such windows are for views of one stream; use window(ts, 'size') here",
        )
    check_composed_options(view, "has windows that are assembled from slices")


def _check_finish(last: Finish, view: View) -> None:
    if last.top is not None:
        raise view.text.error(
            "ORDER BY with LIMIT is for windows that rows have in common",
            view.select,
            hint="leave it out, and order the rows when you read them",
        )
    for column in (c for c in last.columns if c.name in (WINDOW_START, WINDOW_END)):
        raise view.text.error(
            f"{column.name!r} is where the engine keeps the slice that a window ends in",
            view.select,
            hint="give the bound of the window another name: window.start AS began",
        )


def _slice_columns(keys: Sequence[Key]) -> tuple[OutputColumn, ...]:
    start = OutputColumn("start", quote(WINDOW_START), TIMESTAMP, WINDOW_START)
    own = (OutputColumn(f"key_{number}", quote(k.name), k.type, k.name) for number, k in enumerate(keys, start=1))
    return (start, *own)
