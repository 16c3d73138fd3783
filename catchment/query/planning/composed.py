"""A view that reads another view: the windows of that one are its records, at the start of each window.

To the rest of planning such a view is a stream whose event time is the start of the window. Its fragment runs at the
center, over what is published, so that nothing crosses the WAN for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from catchment.errors import QueryError
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import WINDOW_END, WINDOW_START, ViewScan
from catchment.query.planning.scope import RESOLVED, DerivedRelation
from catchment.query.sql.connectors import GeneratorConnector
from catchment.query.sql.statements import Column, Stream, View
from catchment.query.types import TIMESTAMP, read_type, sql_type
from catchment.timeline import WindowSpec

READS_VIEW = "reads another view"


@dataclass(frozen=True)
class ViewWindows(Stream):
    """The published rows of a view, as a stream of records at the start of their windows."""

    window: WindowSpec = field(kw_only=True)
    sketch_error: float = 0.0  # the greatest error of the sketches that its columns come from


def windows_of(plan: QueryPlan) -> ViewWindows:
    """Return what a view publishes as a stream."""
    own = {c.name.lower(): Column(c.name, c.type) for c in plan.columns}
    bounds = {name: Column(name, TIMESTAMP) for name in (WINDOW_START, WINDOW_END)}
    errors = [a.sketch_error for a in plan.answer.aggregates]
    if plan.lower is not None:
        assert isinstance(plan.scan, ViewScan)
        errors.append(plan.scan.sketch_error)
    return ViewWindows(
        name=plan.name,
        columns=tuple({**own, **bounds}.values()),
        event_time=WINDOW_START,
        connector=GeneratorConnector(),
        sites=(plan.root.site,),
        window=plan.window,
        sketch_error=max(errors, default=0.0),
    )


def relation_of(alias: str, canonical: str, plan: QueryPlan, stream: ViewWindows) -> DerivedRelation:
    """Return the columns of a view as a query that reads it names them: those that are the window's start are one.

    Not so where windows are assembled: there a row is at the start of the slice that its window ends in.
    """
    sources = {c.name: c.source for c in plan.columns if plan.assembly is None}
    expressions: dict[str, exp.Expr] = {}
    for column in stream.columns:
        source = sources.get(column.name)
        read = exp.column(source if source == WINDOW_START else column.name, table=canonical, quoted=True)
        read.type = read_type(sql_type(column.type))
        read.meta[RESOLVED] = True
        expressions[column.name] = read
    own = {c.name for c in plan.columns}
    hidden = frozenset({WINDOW_START, WINDOW_END} - own)
    return DerivedRelation(alias, stream.columns, expressions=expressions, hidden=hidden)


def check_composed_options(view: View, what: str = READS_VIEW) -> None:
    """Refuse options that mean nothing where rows follow from what is published; `what` says what this view does."""
    if view.options.sites is not None and what == READS_VIEW:
        raise QueryError(
            f"view {view.name!r} {what}, and sites is for views of streams",
            where=view.where,
            hint="name the sites in the view that it reads: it answers for the same ones",
        )
    if view.options.emit_early_us is not None:
        raise QueryError(
            f"view {view.name!r} {what}, and emit_early is for windows of one size over streams",
            where=view.where,
            hint="leave it out: windows are published when those that they are made of are",
        )
