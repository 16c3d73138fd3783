"""Random worlds for the planner: WANs with queries to place, and many queries over one stream.

The same seed gives the same world.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from catchment.optimizer.placement.operators import OperatorGraph, WanOperator
from catchment.optimizer.placement.topology import Topology, WanLink

MB = 1e6
MBIT = MB / 8

# Table 1 of Sana (Jonathan et al., SoCC'18) over Wikipedia edits: each bracketed list of a category, entry by entry.
# tweet: an edit; hashtag: a page; retweet: a minor edit; language: the edition (channel); location: the country;
# topic: the namespace; gender and age group: whether a robot, whether anonymous; sentiment: the category by look-up.
RATE = "count(*) / {seconds}.0D AS rate"
COUNT = "count(*) AS total"
USE = "sum(added) AS bytes"
REQUESTS = "count(*) AS requests"
TABLE_1: tuple[tuple[str, int, tuple[tuple[str, ...], ...]], ...] = (
    (
        "statistics",
        3,
        ((RATE, COUNT), ("", "approx_count_distinct(page) AS pages"), ("country", "channel", "namespace")),
    ),
    (
        "users",
        3,
        (
            (RATE, COUNT),
            ("", "approx_count_distinct(page) AS pages", "count(*) FILTER (WHERE minor) AS minor"),
            ("robot", "anonymous"),
            ("country", "channel"),
        ),
    ),
    ("top", 2, (("approx_top_k(page, 10) AS best", "approx_top_k(user, 10) AS best"), ("channel", "country"))),
    (
        "sentiment",
        2,
        (("sum(added) AS added", "count(*) AS edits"), ("category",), ("channel", "country", "namespace")),
    ),
    ("load", 2, ((USE, REQUESTS), ("channel", "country"))),
)
TABLE_1_WINDOWS = (10, 30, 60, 300)  # seconds
TABLE_1_FILTERS = ("", "", "NOT robot", "", "", "anonymous", "", "", "edits.namespace = 'Main'")

KEYS = ("channel", "namespace", "country", "robot")
CALLS = ("count(*)", "sum(added)", "avg(added)", "max(added)", "sum(delta)", "count(delta)", "stddev_pop(delta)")
CONDITIONS = ("NOT robot", "anonymous", "country = 'US'", "namespace = 'Main'", "namespace IN ('Main', 'Talk')")
WINDOWS = ("10 seconds", "30 seconds", "1 minute", "5 minutes")


def random_instance(
    rng: np.random.Generator, sites: int = 5, queries: int = 4, sources: int = 3
) -> tuple[Topology, OperatorGraph]:
    """Return queries over some sources of a random WAN: reductions, some of them common, a union, an answer, a sink."""
    computing = [f"c{i}" for i in range(sites)]
    hosts = [f"h{i}" for i in range(sources)]
    links = [
        WanLink(a, b, float(rng.uniform(20, 280)) * MBIT, float(rng.uniform(0.01, 0.25)))
        for a in (*hosts, *computing)
        for b in computing
        if a != b
    ]
    raw = {h: float(rng.uniform(0.5, 5)) * MB for h in hosts}
    kinds = [float(rng.uniform(0.05, 1.5)) for _ in range(3)]
    asked: dict[str, list[WanOperator]] = {}
    for q in range(queries):
        read = sorted(rng.choice(hosts, int(rng.integers(1, sources + 1)), replace=False))
        kind = int(rng.integers(len(kinds)))
        made = [WanOperator(f"read {h}", (), raw[h], h) for h in read]
        made += [WanOperator(f"map {kind} of {h}", (f"read {h}",), raw[h] * kinds[kind]) for h in read]
        total = sum(raw[h] for h in read) * kinds[kind]
        union = f"union {kind} of {','.join(read)}"
        made += [WanOperator(union, tuple(f"map {kind} of {h}" for h in read), total * 0.8)]
        made += [WanOperator(f"answer {q}", (union,), total * float(rng.uniform(0.01, 0.5)))]
        asked[f"q{q}"] = [*made, WanOperator(f"sink {q}", (f"answer {q}",), 0, str(rng.choice(computing)))]
    return Topology.of(links, tuple(hosts)), OperatorGraph.of(asked)


def random_views(rng: np.random.Generator, count: int, sinks: tuple[str, ...]) -> list[str]:
    """Return CREATE MATERIALIZED VIEW statements over the edits of examples/wan_workload."""
    return [_random_view(rng, f"v{i}", str(rng.choice(sinks))) for i in range(count)]


def _random_view(rng: np.random.Generator, name: str, sink: str) -> str:
    keys = rng.choice(KEYS, int(rng.integers(0, 3)), replace=False)
    calls = rng.choice(CALLS, int(rng.integers(1, 4)), replace=False)
    where = rng.choice(CONDITIONS, int(rng.integers(0, 3)), replace=False)
    grouped = ", ".join([f"window(time, '{rng.choice(WINDOWS)}')", *keys])
    columns = ", ".join(["window.start", *keys, *(f"{call} AS c{i}" for i, call in enumerate(calls))])
    filtered = f" WHERE {' AND '.join(where)}" if len(where) else ""
    head = f"CREATE MATERIALIZED VIEW {name} WITH (sink = '{sink}')"
    return f"{head} AS SELECT {columns} FROM edits{filtered} GROUP BY {grouped};"


Choose = Callable[[int, int], int]  # (length of a list, number of the query) -> which entry


def table_views(sinks: tuple[str, ...], rng: np.random.Generator | None = None) -> list[str]:
    """Return twelve queries of the five categories of Table 1, three of each of the first two and two of each other.

    Without a generator, the query of number i takes entry i (modulo the length) of every list: of its category, of the
    windows, the filters and the sinks. With one, every entry is drawn, each with equal chance.
    """
    choose: Choose = (lambda n, i: i % n) if rng is None else (lambda n, i: int(rng.integers(n)))
    names = [(kind, lists) for kind, count, lists in TABLE_1 for _ in range(count)]
    return [_table_view(f"{kind}_{i}", lists, i, sinks, choose) for i, (kind, lists) in enumerate(names)]


def _table_view(name: str, lists: tuple[tuple[str, ...], ...], i: int, sinks: tuple[str, ...], choose: Choose) -> str:
    seconds = TABLE_1_WINDOWS[choose(len(TABLE_1_WINDOWS), i)]
    chosen = [entry for entries in lists if (entry := entries[choose(len(entries), i)])]
    calls = [c.format(seconds=seconds) for c in chosen if " AS " in c]
    looks_up = "category" in chosen
    keys = [f"edits.{k}" if looks_up and k == "namespace" else k for k in chosen if " AS " not in k]
    where = TABLE_1_FILTERS[choose(len(TABLE_1_FILTERS), i)]
    joined = " JOIN categories ON edits.namespace = categories.namespace" if looks_up else ""
    head = f"CREATE MATERIALIZED VIEW {name} WITH (sink = '{sinks[choose(len(sinks), i)]}')"
    columns = ", ".join(["window.start", *keys, *calls])
    filtered = f" WHERE {where}" if where else ""
    grouped = ", ".join([f"window(time, '{seconds} seconds')", *keys])
    return f"{head} AS\n  SELECT {columns}\n  FROM edits{joined}{filtered} GROUP BY {grouped};"
