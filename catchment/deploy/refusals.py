"""What is refused before anything starts: views that can be planned but cannot run as the project is, and is deployed.

Every refusal is an error that names the view or the file, and what to change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from catchment.center.results.layout import RESERVED
from catchment.deploy.contracts import check_slack
from catchment.errors import ConfigError, QueryError
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.query.catalog import Catalog
from catchment.query.plan import QueryPlan
from catchment.query.sql.statements import Stream, View
from catchment.sinks.declared import shown_keys


def check_sinks(declared: Catalog, answered: Iterable[Catalog]) -> None:
    """Refuse what is delivered to another system, if no view of that name is answered anywhere."""
    views = {view.name.lower(): view for catalog in answered for view in catalog.views.values()}
    for sink in declared.sinks.values():
        if not isinstance(declared.find(sink.view), View) and sink.view.lower() not in views:
            declared.view(sink.view, sink.where)


def refuse_read_elsewhere(view: View, catalog: Catalog, elsewhere: Collection[str]) -> None:
    """Refuse a view that reads another one which is answered elsewhere only."""
    here = catalog.project.center
    for name in view.reads:
        if catalog.find(name) is None and name.lower() in elsewhere:
            raise QueryError(
                f"view {view.name!r} is to be answered at {here!r}, and {name!r}, which it reads, is not",
                where=view.where,
                hint=f"let both be answered there: name {here!r} in the option sink of {name!r}",
            )


def check_answerable(catalog: Catalog, views: Iterable[View]) -> None:
    """Refuse views that are to be answered where what they read is not, or does not come by any route."""
    here = catalog.project.center
    routes = Routes.of(catalog.project)
    for view in views:
        refuse_read_elsewhere(view, catalog, {name.lower() for name in view.reads})
        read = {name: catalog.find(name) for name in view.reads}
        born = {site for stream in read.values() if isinstance(stream, Stream) for site in stream.sites or ()}
        for site in sorted(born & set(view.options.sites or born)):
            if not routes.reaches(site):
                raise QueryError(
                    f"view {view.name!r} is to be answered at {here!r}, to which {site!r} has no link",
                    where=view.where,
                    hint=f'add to catchment.toml [[links]] from = "{site}", to = "{here}", or links through others',
                )


def refuse_merged_sites(project: Project, deployed: Deployed) -> None:
    """Refuse routes by which sites come merged of which a running view wants some and not others."""
    for name, query in deployed.sharing.queries.items():
        source = query.demand.source
        fragment = deployed.sharing.fragments[deployed.derivation(name).fragment].source
        if not source.can_leave_out(fragment.sites):
            others = [site for site in fragment.sites if site not in source.sites]
            raise ConfigError(
                f"view {query.view or name!r} reads {source.stream!r} at {', '.join(source.sites)}, but by the links "
                f"as they are now their partials come merged with those of {', '.join(others)}",
                where=str(project.folder / PROJECT_FILE),
                hint="give the sites the links again that they had when the view was deployed",
            )


def refuse_relayed_changes(project: Project, known: Deployed, queries: Sequence[SharedQuery]) -> None:
    """Refuse that a site which sends through others, or others through it, comes or goes while state is kept.

    A relay merges its partials with those of others, so that none of it could be left out.
    """
    routings = Routings.of(project, known.hops_of, known.hubs)
    for query in (q for q in queries if q.name in known.sharing.queries):
        source = query.demand.source
        before = known.sharing.queries[query.name].demand.source
        for site in set(before.sites) ^ set(source.sites):
            is_behind = any(routes.hops.get(site, project.center) != project.center for routes in routings.every)
            if site in routings.hubs or is_behind:
                raise ConfigError(
                    f"stream {source.stream!r} has other sites than before, and {site!r} sends through others or "
                    f"others through it: the center could not tell its records apart",
                    where=str(project.folder / PROJECT_FILE),
                    hint=f'give it a link of its own first: [[links]] from = "{site}", to = "{project.center}"; '
                    f"a site that has state then comes back by: catchment sites heal {site}",
                )


def check_plan(plan: QueryPlan, catalog: Catalog) -> None:
    """Refuse a view that can be planned but cannot run."""
    _check_names(plan, catalog)
    for sink in catalog.sinks.values():
        if sink.view.lower() == plan.view.lower():
            shown_keys(sink, plan)
    _check_start(plan, catalog)
    if plan.sides == (plan,) or plan.join is not None:
        for side in plan.sides:
            check_slack(plan, catalog.streams[side.fragment.stream], catalog.views[plan.view].where)


def _check_start(plan: QueryPlan, catalog: Catalog) -> None:
    """Refuse a begin in the past where no history is kept."""
    if plan.options.start is None:
        return
    where = catalog.views[plan.view].where
    for side in plan.sides:
        stream = catalog.streams[side.fragment.stream]
        if not catalog.project.defaults.keeps_history(stream.history):
            raise QueryError(
                f"view {plan.view!r} is to begin in the past, but the stream {stream.name!r} keeps no history",
                where=where,
                hint="leave start out: the view then begins with what comes; or set history = true for the stream",
            )


def _check_names(plan: QueryPlan, catalog: Catalog) -> None:
    for column in plan.columns:
        if column.name.lower() in RESERVED and column.source != column.name:
            raise QueryError(
                f"view {plan.view!r} has a column {column.name!r}, a name that every result table uses itself",
                where=catalog.views[plan.view].where,
                hint=f"give it another name: {column.sql} AS my_{column.name} (reserved are {', '.join(RESERVED)})",
            )
