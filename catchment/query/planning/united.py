"""UNION ALL in FROM: one view over the records of several streams, or of one stream read in several ways.

Every branch is planned as a view of its own stream. The plans agree in windows, keys and aggregates, so the center
merges their partials as it merges those of several sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import WindowAggregate, WindowUnion
from catchment.query.sql.statements import View
from catchment.query.types import sql_type


def unite(view: View, plans: Sequence[QueryPlan]) -> QueryPlan:
    """Return the plan of a view whose branches were planned one by one; its last step is that of the first branch."""
    first = plans[0].aggregate
    united: WindowAggregate | WindowUnion = first
    for number, plan in enumerate(plans[1:], start=2):
        branch = _name_as(first, plan.aggregate)
        if branch.layout != first.layout:
            raise view.text.error(
                f"branch {number} of UNION ALL gives {_describe(branch)}, and the first one {_describe(first)}",
                view.select,
                hint="give the columns of all branches the same types with CAST, and the same number of them",
            )
        united = WindowUnion(united, branch)
    root = plans[0].root
    return QueryPlan(replace(root, input=replace(plans[0].finish, input=united)))


def _name_as(first: WindowAggregate, branch: WindowAggregate) -> WindowAggregate:
    """Return a branch whose keys and aggregates have the names of the first one's, place by place."""
    if (len(first.keys), len(first.aggregates)) != (len(branch.keys), len(branch.aggregates)):
        return branch
    keys = tuple(replace(k, name=f.name) for k, f in zip(branch.keys, first.keys, strict=True))
    named = zip(branch.aggregates, first.aggregates, strict=True)
    return replace(branch, keys=keys, aggregates=tuple(replace(a, name=f.name) for a, f in named))


def _describe(branch: WindowAggregate) -> str:
    keys = [f"{k.name} {sql_type(k.type)}" for k in branch.keys]
    return ", ".join([*keys, *(f"{a.name} {sql_type(a.result_type)}" for a in branch.aggregates)])
