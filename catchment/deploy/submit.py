"""Queries are submitted and dropped here, while a project runs or before it does.

Everything is checked first: the whole file is parsed, planned and shared in memory, and the record of what is deployed
is written only if all of it is right. Running processes find the change at their next tick; none has to be running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from catchment.query.sql.parse import parse_file, parse_sql
from catchment.query.sql.statements import Statement, View


def submit(project: Project, path: Path) -> Mapping[str, Any]:
    """Deploy the views of a file beside those that run; return which fragments they share and which are new."""
    if not path.is_file():
        raise QueryError(f"there is no file {path}", hint="give a file with CREATE MATERIALIZED VIEW statements")
    return _deploy(project, _views_of(parse_file(path), str(path)))


def submit_text(project: Project, text: str) -> Mapping[str, Any]:
    """Deploy the views of a text, as `submit` does those of a file."""
    return _deploy(project, _views_of(parse_sql(text), "the submitted text"))


def _deploy(project: Project, views: Sequence[View]) -> Mapping[str, Any]:
    declared = load_catalog(project)

    def make(now: Deployed | None) -> Deployed:
        deployment = Deployment.plan(declared, now)
        return deployment.add(views, known_bytes(deployment)).deployed

    made = DeploymentStore(project.state_folder).change(make)
    return {"version": made.version, "queries": [_describe_query(made, q) for v in views for q in made.parts(v.name)]}


def drop(project: Project, name: str) -> Mapping[str, Any]:
    """Drop a query; its published answers stay."""
    declared = load_catalog(project)
    ended: list[str] = []

    def make(now: Deployed | None) -> Deployed:
        deployment = Deployment.plan(declared, now)
        deployed = deployment.deployed
        _refuse_composed(deployment, name)
        if name not in deployed.views:
            raise QueryError(f"there is no query {name!r}", hint=did_you_mean(name, deployed.views))
        made = deployed.drop(name)
        ended.extend(f for f in deployed.sharing.fragments if f not in made.sharing.fragments)
        return made

    made = DeploymentStore(project.state_folder).change(make)
    return {"version": made.version, "dropped": name, "ended_fragments": ended}


def _refuse_composed(deployment: Deployment, name: str) -> None:
    """Refuse to drop a view that another one reads, or that reads another one."""
    for plan in (p for p in deployment.plans if p.lower is not None and name in (p.name, p.lower)):
        raise QueryError(
            f"view {plan.name!r} reads the windows of {plan.lower!r}, and neither is dropped while a project runs",
            hint=f"remove {plan.name!r} from the project's queries/, and start the center again",
        )


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
