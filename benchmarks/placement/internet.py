"""A made-up internet to plan for: hubs in a mesh, sites behind them, streams of some regions, thousands of queries.

Queries are those of examples/wan_workload, over many streams, with other windows, sites and sinks. Everything follows
from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from catchment.optimizer.placement.planner import queries_of_catalog
from catchment.optimizer.placement.topology import Topology, WanLink
from catchment.optimizer.sharing.demand import SharedQuery
from catchment.optimizer.sharing.statistics import Statistics, load_statistics
from catchment.project.config import Project
from catchment.query.catalog import load_catalog
from catchment.timeline import SECOND_US, WindowSpec

Item = TypeVar("Item")

PROJECT = Path(__file__).parents[2] / "examples" / "wan_workload"
WINDOWS_S = (10, 30, 60, 300)
SITES_PER_HUB = 49  # beside the hub itself
QUERIES_PER_STREAM = 250
REGIONS_PER_STREAM = 4  # of hubs, whose sites a stream is born at
SITES_PER_QUERY = (5, 25)
HUB_BANDWIDTH = 25e6  # bytes per second
SITE_BANDWIDTHS = (125e3, 625e3, 1.25e6)  # up-links: 1, 5 and 10 Mbit/s
ROWS_PER_S = (1.0, 10.0, 100.0)  # of a stream at a site, by the same classes
POPULAR = 1.1  # exponent of the popularity of streams and templates


@dataclass(frozen=True)
class Internet:
    """Sites and links, what streams send, and queries in the order in which they come."""

    topology: Topology
    statistics: Statistics
    queries: tuple[SharedQuery, ...]


def make_internet(sites: int, queries: int, seed: int) -> Internet:
    """Return an internet of about so many sites, and exactly so many queries."""
    chance = random.Random(seed)
    hubs = [f"hub{n}" for n in range(max(2, sites // (SITES_PER_HUB + 1)))]
    members = {hub: [f"{hub}s{n}" for n in range(SITES_PER_HUB)] for hub in hubs}
    edges = [site for names in members.values() for site in names]
    sizes = {site: chance.randrange(len(SITE_BANDWIDTHS)) for site in edges}
    topology = _make_topology(chance, hubs, members, sizes)
    project = Project.load(PROJECT)
    catalog = load_catalog(project, star=False)
    templates = queries_of_catalog(catalog)
    known = load_statistics(project, catalog).of("edits")
    streams = [f"edits{n}" for n in range(max(1, queries // QUERIES_PER_STREAM))]
    born = {
        s: [e for hub in chance.sample(hubs, min(len(hubs), REGIONS_PER_STREAM)) for e in members[hub]] for s in streams
    }
    statistics = Statistics(
        {s: replace(known, rows_per_s={site: ROWS_PER_S[sizes[site]] for site in born[s]}) for s in streams}
    )
    asked = tuple(_draw_query(chance, number, templates, streams, born, hubs) for number in range(queries))
    return Internet(topology, statistics, asked)


def _make_topology(
    chance: random.Random, hubs: Sequence[str], members: dict[str, list[str]], sizes: dict[str, int]
) -> Topology:
    """Return hubs that are linked with each other, and sites with their hub; one in ten has a second one."""
    links = [WanLink(a, b, HUB_BANDWIDTH, round(chance.uniform(0.01, 0.12), 3)) for a in hubs for b in hubs if a != b]
    for hub, names in members.items():
        for site in names:
            second = [chance.choice([h for h in hubs if h != hub])] if chance.random() < 0.1 else []
            for to in (hub, *second):
                links.append(WanLink(site, to, SITE_BANDWIDTHS[sizes[site]], round(chance.uniform(0.002, 0.03), 3)))
    return Topology.of(links)


def _draw_query(
    chance: random.Random,
    number: int,
    templates: Sequence[SharedQuery],
    streams: Sequence[str],
    born: dict[str, list[str]],
    hubs: Sequence[str],
) -> SharedQuery:
    template = _popular(chance, templates)
    stream = _popular(chance, streams)
    size_us = chance.choice(WINDOWS_S) * SECOND_US
    window = WindowSpec(size_us, size_us)
    sites = tuple(sorted(chance.sample(born[stream], chance.randint(*SITES_PER_QUERY))))
    source = replace(template.demand.source, stream=stream, sites=sites, comes_by=())
    return replace(
        template,
        name=f"q{number}",
        sink=chance.choice(hubs),
        own=replace(template.own, stream=stream, windows=(window,)),
        demand=replace(template.demand, source=source, windows=(window,)),
    )


def _popular(chance: random.Random, items: Sequence[Item]) -> Item:
    return chance.choices(items, [1 / (rank + 1) ** POPULAR for rank in range(len(items))])[0]
