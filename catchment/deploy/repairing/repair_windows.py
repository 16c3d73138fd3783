"""Windows beyond the repair horizon are computed again here, on request, from the histories of the sites.

A view of its own, `VIEW_repair`, begins at the first of these windows and ends behind the last, so that nothing that
runs is touched: sites read that part of their past from history, exactly as for a view that begins in the past, and
send partials. When one of its windows is final, the center publishes its rows as a revision of the view that was asked
for (`catchment.center.results.restate`); when all are, it drops the view (`catchment.deploy.rebalance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.heal import refuse_without_history
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.store import DeploymentStore
from catchment.errors import ConfigError, QueryError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.options import did_you_mean
from catchment.query.catalog import load_catalog
from catchment.query.plan import QueryPlan
from catchment.query.sql.statements import View
from catchment.query.sql.view_options import ViewOptions
from catchment.query.view_start import ViewStart, write_instant
from catchment.query.window_repair import WindowRepair
from catchment.timeline import WindowSpec

SUFFIX = "_repair"  # behind the name of a view, in that of the one that computes its windows again


def repair_windows(folder: Path, name: str, first_us: int, before_us: int | None = None) -> Mapping[str, Any]:
    """Compute the windows of a view again that start at or after an instant, and before another; by default one.

    Of a view that reads another one, the windows of that are computed again, and those that read them follow.
    """
    deployment = Deployment.load(folder)
    declared = load_catalog(deployment.project)
    name, first_us, before_us = _lowest_windows(deployment, name, first_us, before_us)
    helper = f"{name}{SUFFIX}"
    made: list[WindowRepair] = []

    def make(now: Deployed | None) -> Deployed:
        planned = Deployment.plan(declared, now)
        plan = _find_plan(planned, name)
        if helper in planned.catalog.views:
            raise QueryError(
                f"there is a view {helper!r} already, which computes windows of {name!r} again",
                hint=f"wait until it is gone from `show queries`, or end it: catchment drop {folder} {helper}",
            )
        repair = _windows_of(plan, first_us, before_us)
        _refuse_changeable(planned, plan, repair)
        streams = {side.scan.stream for side in plan.sides}
        refuse_without_history(planned, streams, hint="windows are computed again from history: set history = true")
        made.append(repair)
        view = _helper_view(planned.catalog.view(name), helper, repair.from_us)
        deployed = planned.add([view]).deployed
        return deployed.repair(deployed.query_name(helper), repair)

    deployed = DeploymentStore(deployment.project.state_folder).change(make)
    (repair,) = made[-1:]
    return {
        "version": deployed.version,
        "view": repair.view,
        "computed_by": deployed.query_name(helper),
        "from_us": repair.from_us,
        "until_us": repair.until_us,
    }


def _lowest_windows(
    deployment: Deployment, name: str, first_us: int, before_us: int | None
) -> tuple[str, int, int | None]:
    """Return the view whose records are read for a view, and from when until when its windows start that are in those.

    A view over the windows of another one is a function of these: its windows follow when they are published again.
    """
    plan = next((p for p in deployment.plans if p.view == name), None)
    while plan is not None and plan.lower is not None and plan.slices is None:
        spec = plan.window
        first_us = _next_start(spec, first_us)
        last_us = first_us if before_us is None else max(_next_start(spec, before_us) - spec.slide_us, first_us)
        before_us = last_us + spec.size_us
        plan = next(p for p in deployment.plans if p.view == plan.lower)
        name = plan.view
    return name, first_us, before_us


def _find_plan(deployment: Deployment, name: str) -> QueryPlan:
    """Return the plan of a view whose windows can be computed again one by one."""
    plan = next((p for p in deployment.plans if p.view == name), None)
    if plan is None:
        hint = did_you_mean(name, [p.view for p in deployment.plans])
        raise ConfigError(f"there is no view {name!r}", where=str(deployment.project.folder), hint=hint)
    if plan.lower is not None:
        raise QueryError(
            f"view {name!r} has windows that are not of one size, and single windows of it are not computed again",
            where=str(deployment.project.folder),
            hint="replace it by itself, with start: CREATE OR REPLACE MATERIALIZED VIEW ... WITH (start = ...)",
        )
    return plan


def _windows_of(plan: QueryPlan, first_us: int, before_us: int | None) -> WindowRepair:
    """Return the windows that start at or after an instant, and before another; the first one if none is given."""
    spec = plan.window
    from_us = _next_start(spec, first_us)
    last_us = from_us if before_us is None else _next_start(spec, before_us) - spec.slide_us
    if last_us < from_us:
        raise QueryError(
            f"no window of {plan.view!r} starts between {write_instant(first_us)} and the end that was given",
            hint=f"the next one starts at {write_instant(from_us)}",
        )
    return WindowRepair(plan.name, from_us, last_us + 1, last_us + spec.size_us)


def _next_start(spec: WindowSpec, at_us: int) -> int:
    """Return where the first window starts that starts at an instant or after it."""
    return spec.starts_between(at_us, at_us).start


def _refuse_changeable(deployment: Deployment, plan: QueryPlan, repair: WindowRepair) -> None:
    """Refuse windows that are not final yet: what comes late for them is merged anyway."""
    told = (read_status(deployment.project.state_folder / "center") or {}).get("queries", {}).get(plan.name, {})
    changeable_us = told.get("changeable_from_us")
    if changeable_us is None or repair.before_us > changeable_us:
        some = "none of its windows is"
        since = some if changeable_us is None else f"those from {write_instant(changeable_us)} on are not"
        raise QueryError(
            f"only windows of {plan.view!r} that are final are computed again on request, and {since}",
            hint="late records still revise the others; a site whose state is doubted is healed: catchment sites heal",
        )


def _helper_view(view: View, name: str, from_us: int) -> View:
    """Return the view that computes windows of another one again: the same query, without what is for live windows."""
    kept = view.options
    options = ViewOptions(
        start=ViewStart(at_us=from_us),
        shed=kept.shed,
        policy=kept.policy,
        max_distinct=kept.max_distinct,
        publish_every_us=kept.publish_every_us,
    )
    return replace(view, name=name, options=options, replaces=False)
