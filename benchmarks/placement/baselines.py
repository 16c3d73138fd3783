"""Ours against other ways to answer the twelve queries of examples/wan_workload, on the same sources and links.

The ways: operators dealt round over the sites, nothing shared (as a scheduler of one cluster does); placed by the
network, nothing shared; shared, and dealt round; shared and placed by the network, which is ours; and ours with the
strength max, by which everything is shared that can be, whatever links carry. Bytes, throughput and delays are computed
in virtual time from the declared rates (`catchment.sim.wan_delay`); nothing is run. Queries, links and the rule by
which queries name sites were fixed before any of it was computed.
"""

from __future__ import annotations

import random
import statistics as stats
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from catchment.optimizer.choices import Planner, Strength
from catchment.optimizer.placement.cost import throughput
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.operators import operators_of
from catchment.optimizer.placement.planner import plan_wan, queries_of_catalog
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.share import share
from catchment.optimizer.sharing.statistics import Statistics, load_statistics
from catchment.project.config import Project
from catchment.query.catalog import Catalog, load_catalog
from catchment.sim.even_spread import EvenSpread
from catchment.sim.wan_delay import answer_delays_s

PROJECT = Path(__file__).parents[2] / "examples" / "wan_workload"
AFTER_S = 600.0  # how long the sources have sent when delays are told
ASKED = 4.0  # all links are slowed alike until the fullest one of the network-aware way is asked for so many times
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
COMMON = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of the queries that read one stream; each other one reads its own
COPY = "edits_of_query_"  # what the names of copies of the stream begin with
EXACT_LIMIT_S = 60.0
SEED = 20261117


@dataclass(frozen=True)
class Way:
    """A way to deploy queries: what is shared, and whether the network decides where."""

    name: str
    strength: Strength
    is_network_aware: bool

    def place(self, queries: Sequence[SharedQuery], topology: Topology, known: Statistics) -> WanPlacement:
        """Return where every operator runs."""
        if self.is_network_aware:
            return plan_wan(queries, topology, known, self.strength).placement
        sharing = share(queries, self.strength, known.sent_bytes_per_s)
        empty = WanPlacement(topology, multicast=self.strength is Strength.FULL, capacity=False)
        return place_greedily(empty, operators_of(sharing, known, topology), EvenSpread(random.Random(SEED)))


WAYS = (
    Way("even spread", Strength.NONE, False),
    Way("network", Strength.NONE, True),
    Way("sharing", Strength.FULL, False),
    Way("ours", Strength.FULL, True),
    Way("ours, max", Strength.MAX, True),
)


def compare_ways(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Deploy the queries in each way; a quick run has fewer points, and no exact plan."""
    project = Project.load(PROJECT)
    catalog = load_catalog(project, star=False)
    known = load_statistics(project, catalog)
    declared = Topology.of_project(project)
    queries = queries_of_catalog(catalog)
    slowed = slow_down(declared, WAYS[1].place(queries, declared, known))
    worlds = {
        "all read six sources": (queries, slowed),
        "each reads four to six": (queries_of_catalog(name_sites(catalog)), slowed),
        "all read six sources, links as declared": (queries, declared),
    }
    report("four ways to deploy twelve queries")
    rows = [
        {"world": name, **row}
        for name, (asked, topology) in worlds.items()
        for row in _compare(asked, topology, known, exact=not quick)
    ]
    counts = (1, 6, 12) if quick else tuple(range(1, len(queries) + 1))
    report("over the number of queries, the rate of the sources, and how many queries have their input in common")
    return {
        "compared": f"in virtual time, after {AFTER_S:g} s; slowed links are asked for {ASKED:g} times what they carry "
        "by the network-aware way without sharing",
        "ways": rows,
        "queries": [{"queries": count, **row} for count in counts for row in _compare(queries[:count], slowed, known)],
        "rates": [
            {"rate": rate, **row}
            for rate in (RATES[::2] if quick else RATES)
            for row in _compare(queries, slowed, scale(known, rate))
        ],
        "common": [
            {"common": share, **row}
            for share in (COMMON[::2] if quick else COMMON)
            for row in _compare(read_apart(queries, share), slowed, with_copies(known, len(queries)))
        ],
    }


def read_apart(queries: Sequence[SharedQuery], common: float) -> list[SharedQuery]:
    """Return the queries of which a share reads the stream as declared, and each other one a copy of its own."""
    kept = round(common * len(queries))
    return [*queries[:kept], *(_reading(query, f"{COPY}{n}") for n, query in enumerate(queries[kept:]))]


def with_copies(known: Statistics, count: int) -> Statistics:
    """Return what is known, also of so many copies of its one stream."""
    (stream,) = known.streams.values()
    return replace(known, streams={**known.streams, **{f"{COPY}{n}": stream for n in range(count)}})


def _reading(query: SharedQuery, stream: str) -> SharedQuery:
    source = replace(query.demand.source, stream=stream)
    return replace(query, own=replace(query.own, stream=stream), demand=replace(query.demand, source=source))


def name_sites(catalog: Catalog) -> Catalog:
    """Return the queries over four, five or six sources each: query number i begins at source i, counted round."""
    views = dict(catalog.views)
    for number, (name, view) in enumerate(views.items()):
        (stream,) = (catalog.streams[read] for read in view.reads if read in catalog.streams)
        born = stream.sites or ()
        wanted = [born[(number + k) % len(born)] for k in range(4 + number % 3)]
        views[name] = replace(view, options=replace(view.options, sites=tuple(sorted(wanted))))
    return replace(catalog, views=views)


def slow_down(topology: Topology, unshared: WanPlacement) -> Topology:
    """Return the same links, all slowed by one factor, so that they and nothing else are the limit."""
    fullest = max(rate / topology.links[n].bandwidth_bytes_per_s for n, rate in unshared.rates.items())
    links = {
        name: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * fullest / ASKED)
        for name, link in topology.links.items()
    }
    return replace(topology, links=links, _routes={})


def scale(known: Statistics, factor: float) -> Statistics:
    """Return the same streams, sent so many times as fast."""
    streams = {
        name: replace(stream, rows_per_s={site: rate * factor for site, rate in stream.rows_per_s.items()})
        for name, stream in known.streams.items()
    }
    return replace(known, streams=streams)


def _compare(
    queries: Sequence[SharedQuery], topology: Topology, known: Statistics, *, exact: bool = False
) -> Iterator[dict[str, Any]]:
    for way in WAYS:
        yield _row(way.name, way.place(queries, topology, known))
    if exact:
        plan = plan_wan(queries, topology, known, Strength.FULL, Planner.EXACT, time_limit_s=EXACT_LIMIT_S)
        yield _row("exact (optimal)" if plan.optimal else "exact (at its time limit)", plan.placement)


def _row(way: str, placed: WanPlacement) -> dict[str, Any]:
    shares = throughput(placed.graph, placed.sites, placed.topology, placed.multicast)
    delays = sorted(answer_delays_s(placed, AFTER_S).values())
    used = [rate / placed.topology.links[name].bandwidth_bytes_per_s for name, rate in placed.rates.items()]
    return {
        "way": way,
        "wan_bytes_per_s": placed.cost.wan_bytes_per_s,
        "fullest_link": max(used, default=0.0),
        "throughput": stats.fmean(shares.values()),
        "median_delay_s": stats.median(delays),
        "worst_delay_s": delays[-1],
    }


def render_ways(told: Mapping[str, Any]) -> RenderableType:
    """Tables for a person."""
    over = [("ways", "world"), ("queries", "queries"), ("rates", "rate"), ("common", "common")]
    return Group(told["compared"], *(_table(told[part], first) for part, first in over))


def _table(rows: Sequence[Mapping[str, Any]], first: str) -> Table:
    table = Table(first, "way", "WAN MB/s", "fullest link", "throughput", "median delay", "worst delay")
    for row in rows:
        table.add_row(
            str(row[first]),
            row["way"],
            f"{row['wan_bytes_per_s'] / 1e6:.3f}",
            f"{100 * row['fullest_link']:.0f} %",
            f"{100 * row['throughput']:.0f} %",
            f"{row['median_delay_s']:.2f} s",
            f"{row['worst_delay_s']:.2f} s",
        )
    return table
