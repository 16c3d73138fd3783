"""What is measured, one package per subject; `catchment bench NAME` runs a benchmark of this list.

A benchmark module has `DESCRIPTION`, `run(report, quick) -> dict` and `render(result)`. One with `PARTS` can be run in
parts, `run(report, quick, parts)`, and one with `plot(result, path)` can be drawn.
"""

# Those whose short forms show together, in less than five minutes on an idle machine, where it stands.
QUICK = ("center", "footprint", "throughput")

BENCHMARKS = {
    "absence": "benchmarks.absence.absence",
    "backfill": "benchmarks.past.backfill",
    "bounds": "benchmarks.shedding.bounds",
    "center": "benchmarks.center.center",
    "edge": "benchmarks.edge.live",
    "edge_policies": "benchmarks.edge.policies",
    "feeds": "benchmarks.feeds.feeds",
    "footprint": "benchmarks.footprint.footprint",
    "join": "benchmarks.sharing.join",
    "many_queries": "benchmarks.throughput.many_queries",
    "order": "benchmarks.order.live",
    "order_traces": "benchmarks.order.traces",
    "peers": "benchmarks.peers.peers",
    "place": "benchmarks.feeds.place",
    "place_spark": "benchmarks.feeds.place_spark",
    "placement": "benchmarks.placement.placement",
    "rounds": "benchmarks.past.rounds",
    "center_scale": "benchmarks.scale.center",
    "scale": "benchmarks.scale.scale",
    "sharing": "benchmarks.sharing.sharing",
    "shed": "benchmarks.shedding.shed",
    "throughput": "benchmarks.throughput.throughput",
    "topic": "benchmarks.throughput.topic",
    "ways": "benchmarks.ways.ways",
    "wire": "benchmarks.wire.wire",
}
