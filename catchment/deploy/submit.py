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
from catchment.query.sql.parse import parse_file, parse_sql
from catchment.query.sql.statements import Statement, View


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
    made = after.deployed
    old = {plan.view: plan for plan in before.plans}
    new = {plan.view: plan for plan in after.plans}
    ended = [f for f in before.deployed.sharing.fragments if f not in made.sharing.fragments]
    replaced = [
        {"query": new[view].name, "replaces": old[view].name, "difference": _plan_difference(old[view], new[view])}
        for view in views
        if view in old
    ]
    parts = [part for view in views for part in made.parts(made.query_name(view))]
    composed = [{"query": new[view].name, "reads": new[view].lower} for view in views if not new[view].sides]
    return {
        "version": made.version,
        "queries": [*(_describe_query(made, part) for part in parts), *composed],
        "replaced": replaced,
        "ended_fragments": ended,
    }


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
        deployed = deployment.deployed
        definition = find_definition(deployment, name)
        if definition is None:
            raise QueryError(f"there is no query {name!r}", hint=did_you_mean(name, deployment.catalog.views))
        _refuse_read(deployment, view_of(definition))
        made = deployed.drop(definition)
        ended.extend(f for f in deployed.sharing.fragments if f not in made.sharing.fragments)
        return made

    made = DeploymentStore(project.state_folder).change(make)
    return {"version": made.version, "dropped": name, "ended_fragments": ended}


def _refuse_read(deployment: Deployment, view: str) -> None:
    """Refuse to end a view that another one reads."""
    for plan in (p for p in deployment.plans if p.slices is None and p.lower == view):
        raise QueryError(
            f"view {plan.view!r} reads the windows of {view!r}, which cannot end before it",
            hint=f"drop {plan.view!r} first, and submit it again afterwards",
        )


def find_definition(deployment: Deployment, name: str) -> str | None:
    """Return the definition that runs under a name: that of a view, or its own; None if there is none."""
    return next((plan.name for plan in deployment.plans if name in (plan.view, plan.name)), None)


def _views_of(statements: Sequence[Statement], where: str) -> list[View]:
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
