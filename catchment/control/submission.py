"""What a submission would do to links, before it is deployed: bytes per second now and then, and which would overflow.

Rates are those that are declared or measured. Where the rate of a stream is only assumed, a link is never said to
overflow because of it: a guess is shown, and stops nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import known_statistics, site_statistics
from catchment.deploy.submit import plan_text, submit_text
from catchment.errors import PlanError
from catchment.optimizer.sharing.link_traffic import traffic_of_sinks
from catchment.optimizer.sharing.statistics import load_statistics
from catchment.project.config import Project
from catchment.units import format_bandwidth

Answer = Mapping[str, Any]


def submit(
    folder: Path, text: str, file: str = "the submitted text", dry_run: bool = False, yes: bool = False
) -> Answer:
    """Add the views of a text, or put them in the place of those of the same name.

    In a dry run nothing is deployed. A submission after which a link would overflow is refused, unless `yes` is said.
    """
    project = Project.load(folder)
    before, after = plan_text(project, text, file)
    links = list(compare_links(before, after))
    if not dry_run and not yes:
        _refuse_overflow([link for link in links if link["overflows"]], file)
    return {**submit_text(project, text, file, dry_run=dry_run), "links": links}


def compare_links(before: Deployment, after: Deployment) -> Iterable[dict[str, Any]]:
    """Yield every link: what it carries now, what it would carry then, and whether it would overflow only then."""
    now, then = _traffic(before), _traffic(after)
    is_known = not _assumed_streams(after)
    for place in sorted({*now, *then}):
        bytes_now, bytes_then = now.get(place, 0.0), then.get(place, 0.0)
        capacity = after.project.link(*place).bandwidth_bytes_per_s
        overflows = is_known and capacity is not None and bytes_then > max(capacity, bytes_now)
        yield {
            "from": place[0],
            "to": place[1],
            "now_bytes_per_s": bytes_now,
            "then_bytes_per_s": bytes_then,
            "capacity_bytes_per_s": capacity,
            "overflows": overflows,
        }


def _traffic(deployment: Deployment) -> Mapping[tuple[str, str], float]:
    """Return the bytes per second on each link, for all sinks together."""
    parts = [(part.routes, part.deployed.sharing) for part in deployment.parts]
    summed = traffic_of_sinks(parts, known_statistics(deployment))
    return {link: traffic.bytes_per_s for link, traffic in summed.items()}


def _assumed_streams(deployment: Deployment) -> set[str]:
    """Return the streams that some view reads whose rate is neither declared nor measured."""
    declared = load_statistics(deployment.project, deployment.catalog).streams
    told = site_statistics(deployment).values()
    measured = {stream for report in told for stream, rate in report["rows_per_s"].items() if rate is not None}
    return {side.fragment.stream for part in deployment.parts for side in part.sides} - {*declared, *measured}


def _refuse_overflow(links: list[dict[str, Any]], file: str) -> None:
    if not links:
        return
    said = [
        f"from {link['from']} to {link['to']} {format_bandwidth(link['then_bytes_per_s'])} of "
        f"{format_bandwidth(link['capacity_bytes_per_s'])}"
        for link in links
    ]
    raise PlanError(
        f"links would have to carry more than they can: {', '.join(said)}",
        where=file,
        hint="--plan shows the difference; --yes deploys it all the same, and answers then come late",
    )
