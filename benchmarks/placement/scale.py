"""Planning for an internet of sites and queries: how long it takes, what crosses links, how late answers are.

The planner is that of `catchment plan --planner greedy`; bytes, use of links and delays follow in virtual time from the
rates of the made-up world (`internet.py`). How far greedy is from the best is told on small worlds of the same kind,
which the exact program can still solve.
"""

from __future__ import annotations

import statistics as stats
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.placement.internet import Internet, make_internet
from catchment.optimizer.choices import Planner, Strength
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.operators import operators_of
from catchment.optimizer.placement.planner import plan_wan
from catchment.optimizer.sharing.share import share
from catchment.sim.wan_delay import answer_delays_s

SEED = 20261117
SIZES = ((50, 500), (200, 2_000), (1_000, 10_000))  # sites, queries
QUICK_SIZES = ((50, 60),)
AFTER_S = 600.0  # how long the sources have sent when delays are told
SMALL_WORLDS = 10
SMALL = (100, 4)  # two hubs, and so many queries
EXACT_LIMIT_S = 20.0
ONE_MORE = 20  # queries that are added one by one to all others


def plan_at_scale(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Plan worlds of several sizes, shared and not; then small ones exactly."""
    rows = []
    for sites, queries in QUICK_SIZES if quick else SIZES:
        report(f"{sites} sites, {queries} queries")
        rows += list(_plan(sites, queries))
    report("small worlds, solved exactly")
    return {"scale": rows, "exact": _compare_exactly(1 if quick else SMALL_WORLDS)}


def _plan(sites: int, queries: int) -> Iterator[dict[str, Any]]:
    for strength in (Strength.NONE, Strength.FULL):
        world = make_internet(sites, queries, SEED)
        began_s = time.perf_counter()
        sharing = share(world.queries, strength, world.statistics.sent_bytes_per_s)
        shared_s = time.perf_counter()
        graph = operators_of(sharing, world.statistics, world.topology)
        empty = WanPlacement(world.topology, multicast=strength is Strength.FULL)
        placed = place_greedily(empty, graph, explains=False)
        placed_s = time.perf_counter()
        yield {
            "sites": len(world.topology.sites),
            "queries": queries,
            "sharing": strength.value,
            "fragments": len(sharing.fragments),
            "operators": len(graph.operators),
            "share_s": shared_s - began_s,
            "place_s": placed_s - shared_s,
            "one_more_ms": _one_more_ms(world, placed, strength) if strength is Strength.FULL else None,
            **_describe(placed),
        }


def _one_more_ms(world: Internet, placed: WanPlacement, strength: Strength) -> float:
    """Return how long it takes to place a query that comes when all others run, the median of some."""
    taken: list[float] = []
    for number, like in enumerate(world.queries[:ONE_MORE]):
        name = f"new{number}"
        sharing = share([replace(like, name=name)], strength, world.statistics.sent_bytes_per_s)
        graph = operators_of(sharing, world.statistics, world.topology)
        began_s = time.perf_counter()
        placed.add(name, [graph.operators[n] for n in graph.queries[name]])
        taken.append(1e3 * (time.perf_counter() - began_s))
    return stats.median(taken)


def _describe(placed: WanPlacement) -> dict[str, Any]:
    """Return what crosses links under a placement, and how late answers are."""
    delays = sorted(answer_delays_s(placed, AFTER_S).values())
    links = placed.topology.links
    used = sorted(rate / links[name].bandwidth_bytes_per_s for name, rate in placed.rates.items())
    return {
        "wan_bytes_per_s": placed.cost.wan_bytes_per_s,
        "links_used": len(used),
        "median_link_use": stats.median(used),
        "fullest_link": used[-1],
        "links_over_capacity": sum(share > 1.0 for share in used),
        "median_delay_s": stats.median(delays),
        "p99_delay_s": delays[int(0.99 * (len(delays) - 1))],
        "worst_delay_s": delays[-1],
    }


def _compare_exactly(worlds: int) -> dict[str, Any]:
    """Return how far greedy is from the exact program, on small worlds."""
    ratios: list[float] = []
    unsolved = 0
    for seed in range(worlds):
        world = make_internet(*SMALL, SEED + seed)
        greedy, exact = (
            plan_wan(
                world.queries, world.topology, world.statistics, Strength.FULL, planner, time_limit_s=EXACT_LIMIT_S
            )
            for planner in (Planner.GREEDY, Planner.EXACT)
        )
        if not exact.optimal:
            unsolved += 1
            continue
        ratios.append(greedy.wan_bytes_per_s / exact.wan_bytes_per_s)
    return {
        "worlds": worlds,
        "sites": len(world.topology.sites),
        "queries": SMALL[1],
        "not_solved_in_time": unsolved,
        "as_good": sum(ratio < 1 + 1e-6 for ratio in ratios),
        "mean_ratio": stats.fmean(ratios) if ratios else None,
        "worst_ratio": max(ratios, default=None),
    }


def render_scale(told: Mapping[str, Any]) -> RenderableType:
    """Tables for a person."""
    columns = ("sites", "queries", "sharing", "fragments", "operators", "share", "place", "one more", "WAN MB/s")
    table = Table(*columns, "fullest link", "over capacity", "median delay", "99 %")
    for row in told["scale"]:
        table.add_row(
            *(str(row[name]) for name in ("sites", "queries", "sharing", "fragments", "operators")),
            f"{row['share_s']:.1f} s",
            f"{row['place_s']:.1f} s",
            "" if row["one_more_ms"] is None else f"{row['one_more_ms']:.1f} ms",
            f"{row['wan_bytes_per_s'] / 1e6:.2f}",
            f"{100 * row['fullest_link']:.0f} %",
            str(row["links_over_capacity"]),
            f"{row['median_delay_s']:.3f} s",
            f"{row['p99_delay_s']:.2f} s",
        )
    exact = told["exact"]
    worst = "-" if exact["worst_ratio"] is None else f"{100 * (exact['worst_ratio'] - 1):.2f} %"
    said = (
        f"greedy against exact: {exact['worlds']} worlds of {exact['sites']} sites and {exact['queries']} queries, "
        f"{exact['as_good']} as good, {exact['not_solved_in_time']} not solved in time, worst {worst} more bytes"
    )
    return Group(table, said)
