"""Queries are submitted and dropped here, while a project runs or before it does.

Everything is checked first: the whole file is parsed, planned and shared in memory, and the record of what is deployed
is written only if all of it is right. Running processes find the change at their next tick; none has to be running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import known_bytes
from catchment.deploy.store import DeploymentStore
from catchment.errors import QueryError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.query.catalog import load_catalog
from catchment.query.definition_names import view_of
from catchment.query.plan import QueryPlan
from catchment.query.sql.parse import AnyStatement, parse_file, parse_sql
from catchment.query.sql.statements import View


def submit(project: Project, path: Path, *, dry_run: bool = False) -> Mapping[str, Any]:
    """Deploy the views of a file beside those that run, or in their place; return what that changes.

    In a dry run nothing is deployed: it only says what would change.
    """
    if not path.is_file():
        raise QueryError(f"there is no file {path}", hint="give a file with CREATE MATERIALIZED VIEW statements")
    return _deploy(project, _views_of(parse_file(path), str(path)), dry_run)


def submit_text(
    project: Project, text: str, file: str = "the submitted text", *, dry_run: bool = False
) -> Mapping[str, Any]:
    """Deploy the views of a text, as `submit` does those of a file; `file` is the name that errors give it."""
    return _deploy(project, _views_of(parse_sql(text, file), file), dry_run)


def plan_text(project: Project, text: str, file: str) -> tuple[Deployment, Deployment]:
    """Return what is deployed now, and what would be after the views of a text were submitted."""
    before = Deployment.plan(load_catalog(project))
    return before, before.add(_views_of(parse_sql(text, file), file), known_bytes(before))


def _deploy(project: Project, views: Sequence[View], dry_run: bool) -> Mapping[str, Any]:
    declared = load_catalog(project)
    changes: list[Mapping[str, Any]] = []

    def make(now: Deployed | None) -> Deployed:
        before = Deployment.plan(declared, now)
        for view in (v.name for v in views if v.replaces):
            _refuse_read(before, view)
        after = before.add(views, known_bytes(before))
        changes.append(_describe_change(before, after, [view.name for view in views]))
        return after.deployed

    store = DeploymentStore(project.state_folder)
    if dry_run:
        make(store.read())
    else:
        store.change(make)
    return {**changes[-1], "deployed": not dry_run}


def _describe_change(before: Deployment, after: Deployment, views: Sequence[str]) -> Mapping[str, Any]:
    """Return what a submission changes: fragments that begin and end, and how plans of replaced views differ."""
    changes = [_describe_part(before, part, views) for part in after.parts]
    joined = {name: [entry for change in changes for entry in change[name]] for name in ("queries", "replaced")}
    return {"version": after.deployed.version, **joined, "ended_fragments": _ended_fragments(before, after)}


def _describe_part(before: Deployment, after: Deployment, views: Sequence[str]) -> Mapping[str, Any]:
    """Return what a submission changes at one site at which views are answered."""
    made = after.deployed
    was = before.sinks.get(after.project.sink) if after.project.sink else before
    old = {} if was is None else {plan.view: plan for plan in was.plans}
    new = {plan.view: plan for plan in after.plans}
    here = [view for view in views if view in new]
    sink = {"sink": after.project.sink} if after.project.sink else {}
    replaced = [
        {"query": new[view].name, "replaces": old[view].name, "difference": _plan_difference(old[view], new[view])}
        for view in here
        if view in old
    ]
    parts = [part for view in here for part in made.parts(made.query_name(view))]
    composed = [{"query": new[view].name, "reads": new[view].lower} for view in here if not new[view].sides]
    queries = [*(_describe_query(made, part) for part in parts), *composed]
    return {"queries": [{**query, **sink} for query in queries], "replaced": replaced}


def _ended_fragments(before: Deployment, after: Deployment) -> list[str]:
    """Return the fragments that run before a change, for the center or another sink, and not after it."""
    left = {name for part in after.parts for name in part.deployed.sharing.fragments}
    return [name for part in before.parts for name in part.deployed.sharing.fragments if name not in left]


def _plan_difference(old: QueryPlan, new: QueryPlan) -> list[str]:
    """Return the lines in which two plans differ, as `diff -u` shows them; none if only the start does."""
    before, after = (plan.renamed(plan.view).to_text().splitlines() for plan in (old, new))
    return list(unified_diff(before, after, old.name, new.name, lineterm="", n=1))


def drop(project: Project, name: str) -> Mapping[str, Any]:
    """Drop a query; its published answers stay."""
    declared = load_catalog(project)
    ended: list[str] = []

    def make(now: Deployed | None) -> Deployed:
        deployment = Deployment.plan(declared, now)
        definition = find_definition(deployment, name)
        if definition is None:
            views = [view for part in deployment.parts for view in part.catalog.views]
            raise QueryError(f"there is no query {name!r}", hint=did_you_mean(name, views))
        _refuse_read(deployment, view_of(definition))
        without = deployment.drop(view_of(definition))
        ended.extend(_ended_fragments(deployment, without))
        return without.deployed

    made = DeploymentStore(project.state_folder).change(make)
    return {"version": made.version, "dropped": name, "ended_fragments": ended}


def _refuse_read(deployment: Deployment, view: str) -> None:
    """Refuse to end a view that another one reads."""
    plans = (plan for part in deployment.parts for plan in part.plans)
    for plan in (p for p in plans if p.slices is None and p.lower == view):
        raise QueryError(
            f"view {plan.view!r} reads the windows of {view!r}, which cannot end before it",
            hint=f"drop {plan.view!r} first, and submit it again afterwards",
        )


def find_definition(deployment: Deployment, name: str) -> str | None:
    """Return the definition that runs under a name: that of a view, or its own; None if there is none."""
    plans = (plan for part in deployment.parts for plan in part.plans)
    return next((plan.name for plan in plans if name in (plan.view, plan.name)), None)


def _views_of(statements: Sequence[AnyStatement], where: str) -> list[View]:
    views = [s for s in statements if isinstance(s, View)]
    if len(views) != len(statements) or not views:
        raise QueryError(
            "only CREATE MATERIALIZED VIEW can be submitted" if statements else "there is no statement in it",
            where=where,
            hint="declare streams and tables in the project's queries/ before it runs",
        )
    return views


def _describe_query(made: Deployed, name: str) -> Mapping[str, Any]:
    fragment = made.derivation(name).fragment
    others = [u for u in made.sharing.users(fragment) if u != name]
    return {"query": name, "fragment": fragment, "shared_with": others, "new_fragment": not others}
