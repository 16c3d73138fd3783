"""From the SELECT of a view to its plan.

The SELECT is read in the order in which it is evaluated: FROM and JOIN give a scope, WHERE a filter, GROUP BY the
window and the keys, and every distinct aggregate call of SELECT and HAVING one aggregate. SELECT and HAVING are then
rewritten over the window's bounds, the keys and the aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping

from catchment.aggregates import make_aggregate
from catchment.aggregates.shed_terms import BOUNDED, with_terms
from catchment.errors import QueryError
from catchment.query.catalog import Catalog
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import LOWER_ROWS, Sink
from catchment.query.planning.assembled import check_assembled, hidden_aggregates, plan_assembled
from catchment.query.planning.calls import AggregateSet
from catchment.query.planning.composed import ViewWindows, check_composed_options
from catchment.query.planning.explodes import with_laterals
from catchment.query.planning.from_clause import FromClause, read_from
from catchment.query.planning.grouping import read_grouping
from catchment.query.planning.joined import plan_joined
from catchment.query.planning.project_calls import with_installed_calls
from catchment.query.planning.records import group_records
from catchment.query.planning.refused_options import check_options
from catchment.query.planning.select import aggregate_stream, names_in_use, read_conditions, read_finish, read_keys
from catchment.query.planning.subqueries import selects_records
from catchment.query.planning.united import unite
from catchment.query.planning.view_sites import check_named_sites
from catchment.query.sql.dialect import render
from catchment.query.sql.functions import refuse_unlisted_functions
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import ANY, NEVER


def plan_views(catalog: Catalog) -> Mapping[str, QueryPlan]:
    """Return the plans of all views of a catalog, by name."""
    return {name: plan_view(view, catalog) for name, view in catalog.views.items()}


def plan_view(view: View, catalog: Catalog) -> QueryPlan:
    """Return the plan of a view, or the first mistake in it."""
    view = with_installed_calls(with_laterals(view), catalog.functions)
    read = read_from(view, catalog, plan_view)
    streams = list(read.streams.values())
    if read.joined is not None:
        plan = plan_joined(view, catalog, read)
    elif read.branches > 1:
        check_options(view, "unites several streams")
        branches = [read, *(read_from(view, catalog, plan_view, number) for number in range(1, read.branches))]
        streams = [stream for branch in branches for stream in branch.streams.values()]
        plan = unite(view, [_plan_one_stream(view, catalog, branch) for branch in branches])
    else:
        if isinstance(read.stream, ViewWindows):
            check_options(view, "reads another view")
            check_composed_options(view)
        plan = _plan_one_stream(view, catalog, read)
    if not isinstance(read.stream, ViewWindows):
        check_named_sites(view, streams, catalog)
    refuse_unlisted_functions(view.select, read.scope.text)
    return plan


def _plan_one_stream(view: View, catalog: Catalog, read: FromClause) -> QueryPlan:
    if selects_records(view.select):
        view = group_records(view, read)
    grouping = read_grouping(view.select, read.scope, read.streams, read.branches > 1, view.options.max_session_us)
    keys = read_keys(view, grouping, read.scope)
    aggregates = AggregateSet(read.scope, names_in_use(keys.values()), view.options.max_distinct)
    finish = read_finish(view, grouping, keys, aggregates)
    conditions = tuple(dict.fromkeys(render(part) for part in read_conditions(view, read)))
    found = tuple(aggregates.found.values())
    if read.explodes and view.options.shed == ANY:
        raise QueryError(
            f"view {view.name!r} makes several rows of a record, and shed = 'any' is for views that do not",
            where=view.where,
            hint="leave it out: records of such a view are sampled if all its aggregates are count, sum or avg",
        )
    if isinstance(read.stream, ViewWindows):
        found = (*found, make_aggregate("count", None, None, name=LOWER_ROWS))
    if grouping.assembly is not None:
        check_options(view, "has windows that are not of one size")
        check_assembled(view, read)
        hidden = hidden_aggregates(grouping.assembly, read)
        grouped = tuple(keys.values())
        measured = (*found, *hidden)
        slices = aggregate_stream(
            read.stream, read.lookups, conditions, grouping.window, grouped, measured, read.explodes
        )
        return plan_assembled(view, grouping.assembly, slices, finish, catalog.answering_site(view))
    sheds = read.stream.shed and view.options.shed != NEVER and read.branches == 1
    if any(lookup.refresh_us is not None for lookup in read.lookups):
        sheds = False  # what is repaired may find other rows than the sample did, and would not make it whole
    if read.may_multiply:  # only what a record adds in all is known to a bound
        sheds = sheds and all(aggregate.function in BOUNDED for aggregate in found)
    aggregate = aggregate_stream(
        read.stream,
        read.lookups,
        conditions,
        grouping.window,
        tuple(keys.values()),
        with_terms(found, clustered=read.may_multiply) if sheds else found,
        read.explodes,
    )
    return QueryPlan(Sink(finish(aggregate), view.name, catalog.answering_site(view), view.options))
