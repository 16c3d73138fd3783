"""What sharing saves on the WAN: planned at the rates declared in examples/wan_workload, and live, scaled down.

Planned: the strengths of sharing on the twelve queries, where source sites cannot compute (as in Sana) and where
they can, on links of plenty and slowed; two hundred random draws of twelve queries in a star, as catchment runs; the
queries arriving one by one; the greedy rules and the local search against the exact program on random worlds; and how
long many queries take to plan. Workload, draws and seeds were fixed before any of them was planned. Live (`live`,
`dense`, `relay`, `arrivals`): see `live.py` and `arrivals.py`. Counted (`replayed`): see `replayed.py`.
"""

from __future__ import annotations

import gc
import statistics as stats
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

from benchmarks.sharing.arrivals import plot as plot_arrivals
from benchmarks.sharing.arrivals import run_arrivals
from benchmarks.sharing.live import run_dense, run_live, run_relay
from benchmarks.sharing.replayed import run_replayed
from benchmarks.sharing.tables import LIVE_TABLES, PLANNED_TABLES
from catchment.errors import ConfigError
from catchment.optimizer.choices import Planner, Strength
from catchment.optimizer.placement.cost import throughput
from catchment.optimizer.placement.exact import place_exactly
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.local_search import improve
from catchment.optimizer.placement.operators import query_operators
from catchment.optimizer.placement.planner import WanPlan, place_shared, plan_wan, queries_of_catalog
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.demand import SharedQuery, query_of_plan
from catchment.optimizer.sharing.share import SharingState, share
from catchment.optimizer.sharing.statistics import Statistics, load_statistics
from catchment.project.config import Project
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.planning.build import plan_view
from catchment.query.sql.parse import parse_sql
from catchment.sim.printed_placement import choose_as_printed
from catchment.sim.wan_worlds import random_instance, random_views, table_views

DESCRIPTION = "WAN bytes and throughput of none, strict, full and max sharing, planned and live; greedy against exact"

PROJECT = Path(__file__).parents[2] / "examples" / "wan_workload"
SEED = 20261116
STAR_DRAWS = 200
EXACT_LIMIT_S = 30.0
# All links are slowed alike until the fullest one of the unshared plan is asked for so many times its bandwidth.
ASKED = (2, 4, 8, 16)


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """The chosen parts; a quick run plans fewer worlds and starts nothing."""
    chosen = parts or (("planned",) if quick else tuple(PARTS))
    found = {"parts": list(chosen), "data": "examples/wan_workload: 12 queries, wiki edits of one day, 14 EC2 regions"}
    for part in chosen:
        found |= {part: PARTS[part](report, quick)}
    return found


def _planned(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Everything that is computed and not run."""
    project = Project.load(PROJECT)
    catalog = load_catalog(project, star=False)
    known, topology = load_statistics(project, catalog), Topology.of_project(project)
    queries = queries_of_catalog(catalog)
    edge = replace(topology, compute_sites=topology.sites)
    slow = {f"sources do not compute, links asked for {a} times": _slower(topology, queries, known, a) for a in ASKED}
    worlds = {"sources do not compute": topology, "sources compute": edge, **(slow if not quick else {})}
    report("sharing of the twelve queries")
    return {
        "compared": "planned bytes per second over the WAN, and planned throughput (worst link on a query's route)",
        "strengths": [
            row
            for name, world in worlds.items()
            for row in _strengths(name, queries, world, known, exact=not quick and name not in slow)
        ],
        "star_draws": _star_draws(catalog, known, 20 if quick else STAR_DRAWS),
        "one_by_one": _one_by_one(queries, edge, known),
        "gaps": _gaps(20 if quick else 200, report),
        "many": _many(catalog, edge, known, 60 if quick else 300, report),
    }


PARTS: Mapping[str, Callable[[Callable[[str], None], bool], Any]] = {
    "planned": _planned,
    "live": lambda report, quick: run_live(report),
    "dense": lambda report, quick: run_dense(report),
    "relay": lambda report, quick: run_relay(report),
    "arrivals": run_arrivals,
    "replayed": lambda report, quick: run_replayed(report),
}


def _slower(topology: Topology, queries: list[SharedQuery], known: Statistics, asked: float) -> Topology:
    """The same links, all slowed by one factor, so that they are the bottleneck of the unshared plan."""
    unshared = plan_wan(queries, topology, known, Strength.NONE).placement
    fullest = max(rate / topology.links[n].bandwidth_bytes_per_s for n, rate in unshared.rates.items())
    links = {
        n: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * fullest / asked)
        for n, link in topology.links.items()
    }
    return replace(topology, links=links, _routes={})


def _drawn(catalog: Catalog, draw: int) -> list[SharedQuery]:
    """Twelve queries of Table 1, every entry drawn."""
    sinks = tuple(name for name, site in catalog.project.sites.items() if site.compute)
    text = "\n".join(table_views(sinks, np.random.default_rng([SEED, draw])))
    bare = Catalog(catalog.project, catalog.streams, catalog.tables, {}, star=False)
    return queries_of_catalog(bare.add(*parse_sql(text, "draw.sql")))


def _star_draws(catalog: Catalog, known: Statistics, count: int) -> list[dict[str, float]]:
    """Bytes per second that leave the sites of a star, as catchment runs: partials of every fragment, once."""
    rows = []
    for draw in range(count):
        queries = _drawn(catalog, draw)
        states = {s.value: share(queries, s, known.sent_bytes_per_s) for s in Strength}
        rows.append(
            {n: sum(known.sent_bytes_per_s(d) for d in state.fragments.values()) for n, state in states.items()}
        )
    return rows


def _strengths(
    world: str, queries: list[SharedQuery], topology: Topology, known: Statistics, *, exact: bool
) -> Iterable[dict[str, Any]]:
    """Each strength, and between strict and full what the paper has: equal fragments, and inputs by a router."""
    planners = (Planner.GREEDY, Planner.EXACT) if exact else (Planner.GREEDY,)
    for planner in planners:
        for strength in Strength:
            plan = plan_wan(queries, topology, known, strength, planner, time_limit_s=EXACT_LIMIT_S)
            yield _row(world, strength.value, planner, plan)
            if strength is Strength.STRICT:
                both = place_shared(plan.sharing, topology, known, True, planner, time_limit_s=EXACT_LIMIT_S)
                yield _row(world, "IN-OP and IN", planner, both)


def _row(world: str, strength: str, planner: Planner, plan: WanPlan) -> dict[str, Any]:
    placed = plan.placement
    shares = throughput(placed.graph, placed.sites, placed.topology, placed.multicast)
    return {
        "world": world,
        "sharing": strength,
        "planner": planner.value,
        "fragments": len(plan.sharing.fragments),
        "wan_bytes_per_s": plan.wan_bytes_per_s,
        "over_capacity_bytes_per_s": placed.cost.overload,
        "throughput": stats.fmean(shares.values()),
        "optimal": plan.optimal,
    }


def _one_by_one(queries: list[SharedQuery], topology: Topology, known: Statistics) -> list[dict[str, Any]]:
    """Queries one by one: what each adds, with nothing that runs being changed."""
    state, placed = SharingState(Strength.FULL), WanPlacement(topology, multicast=True)
    rows = []
    for query in queries:
        before = placed.cost.wan_bytes_per_s
        state = state.add(query)
        placed = placed.add(query.name, query_operators(state, query.name, known, topology))
        added = placed.cost.wan_bytes_per_s - before
        rows.append({"query": query.name, "added_bytes_per_s": added, "fragments": len(state.fragments)})
    return rows


def _gaps(count: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Bytes above those of the exact program, on worlds where it and the rule stay within capacity."""
    report(f"greedy against exact on {count} random worlds")
    rng = np.random.default_rng(SEED)
    gaps: dict[str, list[float]] = {"printed": [], "greedy": [], "greedy and search": []}
    over = dict.fromkeys(gaps, 0)
    for _ in range(count):
        topology, graph = random_instance(rng)
        greedy = place_greedily(WanPlacement(topology, True), graph)
        placed = {
            "printed": place_greedily(WanPlacement(topology, True), graph, choose_as_printed),
            "greedy": greedy,
            "greedy and search": improve(greedy),
        }
        exact = place_exactly(placed["greedy and search"]).placement.cost
        for name, plan in placed.items():
            if plan.cost.overload > exact.overload + 1:
                over[name] += 1
            elif exact.wan_bytes_per_s:
                gaps[name].append(plan.cost.wan_bytes_per_s / exact.wan_bytes_per_s - 1)
    return {
        "worlds": count,
        "sites": 5,
        "queries": 4,
        "rules": [
            {"rule": n, "mean_gap": stats.fmean(g), "worst_gap": max(g), "more_over_capacity": over[n]}
            for n, g in gaps.items()
        ],
    }


def _many(
    catalog: Catalog, topology: Topology, known: Statistics, count: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Many queries on one stream, planned together; then further ones, one by one."""
    report(f"planning {count} queries on one stream")
    further = 20
    sinks = tuple(name for name, site in catalog.project.sites.items() if site.compute)
    text = "\n".join(random_views(np.random.default_rng(SEED), count + further, sinks))
    began = time.process_time()
    wider = Catalog(catalog.project, catalog.streams, catalog.tables, {}, star=False).add(*parse_sql(text, "many.sql"))
    queries = [query_of_plan(plan_view(view, wider), wider) for view in wider.views.values()]
    parsed = time.process_time()
    state = share(queries[:count], Strength.FULL, known.sent_bytes_per_s)
    placed = WanPlacement(topology, multicast=True)
    for query in queries[:count]:
        placed = placed.add(query.name, query_operators(state, query.name, known, topology))
    planned = time.process_time()
    each = []
    gc.collect()  # the garbage of what came before is not the cost of a further query
    for query in queries[count:]:
        start = time.process_time()
        state = state.add(query)
        placed = placed.add(query.name, query_operators(state, query.name, known, topology))
        each.append(time.process_time() - start)
    return {
        "queries": count,
        "fragments": len(state.fragments),
        "read_cpu_s": (parsed - began) * count / (count + further),
        "plan_cpu_s": planned - parsed,
        "further_mean_cpu_s": stats.fmean(each),
        "further_worst_cpu_s": max(each),
    }


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the bytes over the WAN while queries come: of a whole result, or of that part alone."""
    arrivals = result.get("arrivals", result)
    if "runs" not in arrivals:
        raise ConfigError("there are no arrivals to draw", hint="run that part: --part arrivals")
    plot_arrivals(arrivals["runs"], path)


def render(result: Mapping[str, Any]) -> RenderableType:
    """Tables for a person."""
    shown = {"planned": PLANNED_TABLES, **LIVE_TABLES}
    return Group(*(table(result[part]) for part in result["parts"] for table in shown[part]))
