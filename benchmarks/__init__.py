"""What is measured, one package per subject; `catchment bench NAME` runs a benchmark of this list.

A benchmark module has `DESCRIPTION`, `run(report, quick) -> dict` and `render(result)`. One with `PARTS` can be run in
parts, `run(report, quick, parts)`, and one with `plot(result, path)` can be drawn.
"""

BENCHMARKS = {
    "absence": "benchmarks.absence.absence",
    "backfill": "benchmarks.past.backfill",
    "bounds": "benchmarks.shedding.bounds",
    "edge": "benchmarks.edge.live",
    "edge_policies": "benchmarks.edge.policies",
    "feeds": "benchmarks.feeds.traffic",
    "join": "benchmarks.sharing.join",
    "order": "benchmarks.order.live",
    "order_traces": "benchmarks.order.traces",
    "place": "benchmarks.feeds.place",
    "place_spark": "benchmarks.feeds.place_spark",
    "placement": "benchmarks.placement.placement",
    "rounds": "benchmarks.past.rounds",
    "scale": "benchmarks.scale.scale",
    "sharing": "benchmarks.sharing.sharing",
    "shed": "benchmarks.shedding.shed",
    "throughput": "benchmarks.throughput.throughput",
    "ways": "benchmarks.ways.ways",
}
