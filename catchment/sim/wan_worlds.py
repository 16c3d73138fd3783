"""Random worlds for the planner: WANs with queries to place, and many queries over one stream.

The same seed gives the same world.
"""

from __future__ import annotations

import numpy as np

from catchment.optimizer.operators import Operator, OperatorGraph
from catchment.optimizer.topology import Topology, WanLink

MB = 1e6
MBIT = MB / 8

KEYS = ("channel", "namespace", "country", "robot")
CALLS = ("count(*)", "sum(added)", "avg(added)", "max(added)", "sum(delta)", "count(delta)", "stddev_pop(delta)")
CONDITIONS = ("NOT robot", "anonymous", "country = 'US'", "namespace = 'Main'", "namespace IN ('Main', 'Talk')")
WINDOWS = ("10 seconds", "30 seconds", "1 minute", "5 minutes")


def random_instance(
    rng: np.random.Generator, sites: int = 5, queries: int = 4, sources: int = 3
) -> tuple[Topology, OperatorGraph]:
    """Queries over some of the sources of a random WAN: reductions, some of them common, a union, an answer, a sink."""
    computing, hosts = [f"c{i}" for i in range(sites)], [f"h{i}" for i in range(sources)]
    links = [
        WanLink(a, b, float(rng.uniform(20, 280)) * MBIT, float(rng.uniform(0.01, 0.25)))
        for a in (*hosts, *computing)
        for b in computing
        if a != b
    ]
    raw = {h: float(rng.uniform(0.5, 5)) * MB for h in hosts}
    kinds = [float(rng.uniform(0.05, 1.5)) for _ in range(3)]
    asked: dict[str, list[Operator]] = {}
    for q in range(queries):
        read = sorted(rng.choice(hosts, int(rng.integers(1, sources + 1)), replace=False))
        kind = int(rng.integers(len(kinds)))
        made = [Operator(f"read {h}", (), raw[h], h) for h in read]
        made += [Operator(f"map {kind} of {h}", (f"read {h}",), raw[h] * kinds[kind]) for h in read]
        total = sum(raw[h] for h in read) * kinds[kind]
        union = f"union {kind} of {','.join(read)}"
        made += [Operator(union, tuple(f"map {kind} of {h}" for h in read), total * 0.8)]
        made += [Operator(f"answer {q}", (union,), total * float(rng.uniform(0.01, 0.5)))]
        asked[f"q{q}"] = [*made, Operator(f"sink {q}", (f"answer {q}",), 0, str(rng.choice(computing)))]
    return Topology.of(links, tuple(hosts)), OperatorGraph.of(asked)


def random_views(rng: np.random.Generator, count: int, sinks: tuple[str, ...]) -> list[str]:
    """CREATE MATERIALIZED VIEW statements over the edits of examples/wan_workload."""
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
