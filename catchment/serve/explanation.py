"""What runs where and what it will cost, as plain data: sites, links and views, predicted and, if asked for, measured.

A prediction is made from the rates that are declared or, where nothing is, assumed; `origin` says which. A measured
number comes from the state folder of a project that runs or has run. All rates are per second of event time, so that a
log that is replayed faster than it was recorded can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from catchment.center.results.quality import view_quality
from catchment.center.results.read import published_views
from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import known_statistics, site_statistics
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.routes.measured_routes import find_better_routes, read_measured_links
from catchment.deploy.routes.route_log import read_moves
from catchment.deploy.routes.route_mover import RouteTimes, sites_on
from catchment.optimizer.sharing.explain_sharing import explain_sharing
from catchment.optimizer.sharing.link_traffic import (
    fragment_traffic,
    link_traffic,
    record_links,
    traffic_of_sinks,
)
from catchment.optimizer.sharing.statistics import Statistics, fill_with_guesses, load_statistics
from catchment.project.option_kinds import COPY, REFERENCE
from catchment.project.routes import Routes
from catchment.project.ways import Ways
from catchment.query.explain import explain_data
from catchment.query.plan import QueryPlan
from catchment.query.sql.connectors import GeneratorConnector
from catchment.serve.evaluation_advice import advise_evaluation
from catchment.timeline import SECOND_US
from catchment.vectorised.choose import explain_evaluation

ASSUMED = "assumed"  # origin of a rate about which nothing is declared or measured
CENTER_STEP_S = 0.25  # how often the center looks at what has landed


def explain_deployment(
    deployment: Deployment,
    views: Sequence[str] | None = None,
    *,
    analyze: bool = False,
    statistics: Statistics | None = None,
) -> dict[str, Any]:
    """Return the explanation of some views of a deployment, or of all.

    With `analyze`, what was measured stands beside what is predicted from declared and assumed rates; without it,
    predictions use what was measured. `statistics` takes the place of what is known.
    """
    known = statistics or (predicted_statistics(deployment) if analyze else known_statistics(deployment))
    plans = [p for p in deployment.plans if views is None or p.name in views]
    evaluated = _evaluations(deployment)
    rates = list(explain_rates(deployment, known, analyze=analyze))
    answer: dict[str, Any] = {
        "at": deployment.project.center,
        "sinks": list(deployment.sinks),
        "rates": rates,
        "sites": [_site(deployment, site, known, evaluated) for site in deployment.sites],
        "links": list(_links(deployment, known)),
        "ways": list(_ways(deployment)),
        "routes": _better_routes(deployment),
        "moves": _moves(deployment),
        "evaluation": _better_evaluation(deployment, known, rates),
        "views": [_view(deployment, plan, known, evaluated) for plan in plans],
    }
    if analyze:
        _add_measured(answer, deployment)
    return answer


def predicted_statistics(deployment: Deployment) -> Statistics:
    """Return the declared rates, with guesses for streams about which nothing is declared."""
    return fill_with_guesses(load_statistics(deployment.project, deployment.catalog), deployment.catalog)


def _evaluations(deployment: Deployment) -> dict[str, str]:
    """Return how each fragment is evaluated, and why."""
    streams = deployment.catalog.streams
    return {
        plan.fragment.name: explain_evaluation(streams[plan.fragment.stream], plan, deployment.project)
        for plan, _ in deployment.fragment_plans()
    }


def explain_rates(deployment: Deployment, known: Statistics, *, analyze: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the rows per second of each stream, how they are known, and how its records are kept.

    With `analyze`, the rates are those from before anything ran.
    """
    declared = load_statistics(deployment.project, deployment.catalog).streams
    measured = {s for told in site_statistics(deployment).values() for s, r in told["rows_per_s"].items() if r}
    for name in sorted({side.fragment.stream for side in deployment.sides}):
        origin = ASSUMED
        if name in declared:
            is_made = isinstance(deployment.catalog.streams[name].connector, GeneratorConnector)
            origin = "that of its generator" if is_made else "declared in statistics.toml"
        if name in measured and not analyze:
            origin = "measured"
        yield {
            "stream": name,
            "rows_per_s": dict(known.of(name).rows_per_s),
            "origin": origin,
            "history": _history_of(deployment, name),
        }


def _history_of(deployment: Deployment, stream: str) -> str | None:
    """Return how the records of a stream are kept: as a copy, or by a reference to its files; None if they are not."""
    declared = deployment.catalog.streams[stream].history
    defaults = deployment.project.defaults
    if defaults.copies_history(declared):
        return COPY
    return REFERENCE if defaults.keeps_history(declared) else None


def _site(deployment: Deployment, site: str, known: Statistics, evaluated: Mapping[str, str]) -> dict[str, Any]:
    sharing = deployment.deployed.sharing
    fragments = [
        {
            "fragment": name,
            "stream": demand.source.stream,
            "serves": list(sharing.users(name)),
            "bytes_per_s": known.partial_bytes_per_s(demand, site),
            "evaluation": evaluated.get(name, ""),
        }
        for name, demand in sharing.fragments.items()
        if site in demand.source.sites
    ]
    return {"site": site, "fragments": fragments}


def _links(deployment: Deployment, known: Statistics) -> Any:
    """Yield what each link carries; those that only other sinks than this one use are told where all are known."""
    project = deployment.project
    records = record_links(deployment.routes, deployment.deployed.sharing)
    rates = link_traffic(project, deployment.deployed.sharing, known)
    summed = traffic_of_sinks([(part.routes, part.deployed.sharing) for part in deployment.parts], known)
    for origin, destination in dict.fromkeys((*rates, *summed)):
        rate = rates.get((origin, destination), 0.0)
        of_sinks = summed[origin, destination]
        capacity = project.link(origin, destination).bandwidth_bytes_per_s
        yield {
            "from": origin,
            "to": destination,
            "bytes_per_s": rate,
            "capacity_bytes_per_s": capacity,
            "of_all_sinks_bytes_per_s": of_sinks.bytes_per_s,
            "repeated_bytes_per_s": of_sinks.repeated_bytes_per_s,
            "spared_bytes_per_s": of_sinks.spared_bytes_per_s,
            "utilisation": of_sinks.bytes_per_s / capacity if capacity else None,
            "records": list(records.get((origin, destination), ())),
        }


def _ways(deployment: Deployment) -> Iterator[dict[str, Any]]:
    """Yield the ways of each end that has several: what they would give, and which is used since when and why."""
    project = deployment.project
    ways = Ways.of(project)
    for origin in ways.routes.hops if not project.sink else ():  # to other sinks the direct link is the only way
        known = ways.from_end(origin)
        if len(known) > 1:
            folder = project.relay_folder(origin) if origin in ways.routes.relays else project.site_folder(origin)
            told = (read_status(folder) or {}).get("ways") or {}
            yield {
                "from": origin,
                "to": known[0][-1],
                "ways": [{"way": list(way), "declared_s": ways.time_us(way) / SECOND_US} for way in known],
                **{key: told.get(key) for key in ("used", "since_us", "reason", "changes", "known")},
            }


def _better_routes(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the sites whose segments would arrive much sooner by another route, by the links as measured."""
    if deployment.project.sink:
        return []
    measured = read_measured_links(deployment)
    return [route.to_json() for route in find_better_routes(deployment.project, measured)]


def _better_evaluation(
    deployment: Deployment, known: Statistics, rates: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return which records should be evaluated elsewhere; None if none should, or their rates are only assumed."""
    everywhere = [rate for part in deployment.sinks.values() for rate in explain_rates(part, known)]
    if any(rate["origin"] == ASSUMED for rate in (*rates, *everywhere)):
        return None
    return advise_evaluation(deployment, known)


def _moves(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the sites that were moved to other routes: when and why, predicted against measured."""
    measured = read_measured_links(deployment)
    routes = deployment.routes
    found = []
    for told in read_moves(deployment.project.state_folder):
        site = told["site"]
        is_there = site in routes.hops and list(sites_on(routes, site)) == told["to"]
        times = RouteTimes(deployment.project, measured, lambda _: {}, [site])
        time_us = times.of(routes)[site] if is_there else None
        found.append({**told, "measured_s": None if time_us is None else time_us / SECOND_US})
    return found


def _view(deployment: Deployment, plan: QueryPlan, known: Statistics, evaluated: Mapping[str, str]) -> dict[str, Any]:
    sides = [explain_sharing(side.name, deployment.deployed, known, deployment.project) for side in plan.sides]
    for side in sides:
        side["evaluation"] = evaluated[side["fragment"]]
    told = explain_data(plan, deployment.project)
    return {
        **told,
        "sharing": sides[0] if len(sides) == 1 else {"sides": sides},
        "predicted": {"answered_after_s": _answered_after_s(deployment, plan, known), "error": told["error"]},
    }


def _answered_after_s(deployment: Deployment, plan: QueryPlan, known: Statistics) -> float | None:
    """Return about how long after the end of a window it is answered if every site is up; None: the link falls behind.

    The last records wait for a micro-batch and the slack of their stream; the partials of the last slice go over the
    slowest route; the center looks at what has landed. A contract chooses its own slack, which is not known before.
    """
    return max((_side_s(deployment, side, known) or float("inf") for side in plan.sides), default=0.0)


def _side_s(deployment: Deployment, side: QueryPlan, known: Statistics) -> float | None:
    project = deployment.project
    stream = deployment.catalog.streams[side.fragment.stream]
    slack_us = project.defaults.slack_us if stream.slack_us is None else stream.slack_us
    waited_s = (project.defaults.trigger_us + slack_us) / SECOND_US + CENTER_STEP_S
    demand = deployment.deployed.sharing.fragments[deployment.deployed.derivation(side.name).fragment]
    slice_s = demand.slicing.period_us / len(demand.slicing.cuts_us) / SECOND_US
    sent = fragment_traffic(Routes.of(project), demand, known)
    return waited_s + max((_route_s(deployment, site, sent, slice_s) for site in side.scan.sites), default=0.0)


def _route_s(deployment: Deployment, site: str, sent: Mapping[tuple[str, str], float], slice_s: float) -> float:
    total_s = 0.0
    for link in deployment.routes.route(site) if site != deployment.project.center else ():
        declared = deployment.project.link(*link)
        total_s += declared.latency_us / SECOND_US
        if declared.bandwidth_bytes_per_s:
            total_s += sent.get(link, 0.0) * slice_s / declared.bandwidth_bytes_per_s  # records are sent as they come
    return total_s


# --- measured ---------------------------------------------------------------------------------------------------


def _add_measured(answer: dict[str, Any], deployment: Deployment) -> None:
    state = deployment.project.state_folder
    told = {site: read_status(deployment.project.site_folder(site)) for site in deployment.sites}
    for rate in answer["rates"]:
        rate["measured_rows_per_s"] = {
            site: status["statistics"]["rows_per_s"].get(rate["stream"])
            for site, status in told.items()
            if status and "statistics" in status
        }
    for site in answer["sites"]:
        for fragment in site["fragments"]:
            fragment["measured_bytes_per_s"] = _measured_bytes_per_s(told[site["site"]], fragment)
    sent = {s["site"]: [f["measured_bytes_per_s"] for f in s["fragments"]] for s in answer["sites"]}
    relays = deployment.routes.relays
    for link in answer["links"]:
        is_used = deployment.routes.hops.get(link["from"]) == link["to"]  # by what is answered here
        rates = sent.get(link["from"], []) if is_used else []
        known = [rate for rate in rates if rate is not None]
        is_told = known and len(known) == len(rates) and link["from"] not in relays
        link["measured_bytes_per_s"] = sum(known) if is_told else None
    published = set(published_views(state))
    for view, plan in zip(answer["views"], _plans_of(deployment, answer["views"]), strict=True):
        view["measured"] = view_quality(state, plan.name, plan.options.confidence) if plan.name in published else None


def _plans_of(deployment: Deployment, views: Sequence[Mapping[str, Any]]) -> list[QueryPlan]:
    plans = {plan.name: plan for plan in deployment.plans}
    return [plans[view["view"]] for view in views]


def _measured_bytes_per_s(status: Mapping[str, Any] | None, fragment: Mapping[str, Any]) -> float | None:
    """Return the bytes that a fragment has sent, over the seconds of event time in which its records came."""
    if status is None or "statistics" not in status:
        return None
    told = status["statistics"]
    rows_per_s = told["rows_per_s"].get(fragment["stream"])
    read = told["fragments"].get(fragment["fragment"])
    if not rows_per_s or not read or not read["rows"]:
        return None
    return float(read["bytes"]) * float(rows_per_s) / float(read["rows"])
