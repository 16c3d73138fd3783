"""Advice on where the records of a deployment's sites would better be evaluated, as plain data.

It is about rates that are declared or measured; where one is only assumed there is none. A site that has run keeps its
place: its outbox belongs to one link, and its history lies where its records are evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.errors import ConfigError
from catchment.light.streams import light_streams
from catchment.optimizer.placement.evaluation_places import EvaluationPlanner
from catchment.optimizer.sharing.statistics import Statistics

MAX_SITES = 64  # where streams are born; of larger deployments nothing is advised


def advise_evaluation(deployment: Deployment, known: Statistics) -> dict[str, Any] | None:
    """Return which sites should have their records evaluated elsewhere, and what that saves; None if none should.

    `known` has the rates of all streams that are read.
    """
    if deployment.project.sink or len(deployment.sites) > MAX_SITES:
        return None
    sharings = {part.project.sink: part.deployed.lasting for part in deployment.parts}
    may_evaluate = {site: tuple(_evaluators(deployment, site)) for site in deployment.sites}
    choices = {site: places for site, places in may_evaluate.items() if places}
    better = EvaluationPlanner(deployment.project, sharings, known, choices).find_better()
    if not better.is_worthwhile:
        return None
    return {
        "bytes_per_s": better.before.bytes_per_s,
        "better_bytes_per_s": better.after.bytes_per_s,
        "use": better.before.use,
        "better_use": better.after.use,
        "sites": [{"site": s, "evaluated_at": now, "better": place} for s, (now, place) in better.changed.items()],
    }


def _evaluators(deployment: Deployment, site: str) -> Iterator[str]:
    """Yield who may evaluate the records of a site: itself, where it computes, and ends of its links."""
    project = deployment.project
    is_light = project.is_light(site)
    if not is_light:
        yield site
    if not is_light and not _can_be_light(deployment, site):
        return
    for link in project.links.values():
        to = link.destination
        if link.origin == site and not project.is_light(to) and all(p.routes.reaches(to) for p in deployment.parts):
            yield to


def _can_be_light(deployment: Deployment, site: str) -> bool:
    """Return whether a site that computes could only send its records: nothing else is done there."""
    is_end = any(link.destination == site for link in deployment.project.links.values())
    if is_end or any(part.project.center == site for part in deployment.parts):
        return False
    try:
        light_streams(site, deployment.declared_at(site))
    except ConfigError:
        return False
    return True
