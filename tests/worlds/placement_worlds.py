"""The world of the paper's Figure 1."""

from __future__ import annotations

from catchment.optimizer.placement.operators import OperatorGraph, WanOperator
from catchment.optimizer.placement.topology import Topology, WanLink

MB = 1e6


def figure_one(*, as_drawn: bool = True) -> tuple[Topology, OperatorGraph]:
    """Two queries over three sources of 10 MB/s each; selection and projection together halve the bytes.

    Sources are beside compute sites but not in them; trends are wanted in London, campaigns where AdInfo is. As drawn,
    records are reduced at the site beside their source and united in London; otherwise that is left to the planner.
    """
    near = {"host-us": "virginia", "host-eu": "london", "host-asia": "tokyo"}
    computing = (*near.values(), "california")
    links = [WanLink(a, b, 100 * MB, 0.1) for a in computing for b in computing if a != b]
    links += [WanLink(h, s, 100 * MB, 0.005 if near[h] == s else 0.15) for h in near for s in computing]

    def reduced(host: str) -> list[WanOperator]:
        beside = near[host] if as_drawn else None
        return [
            WanOperator(f"read {host}", (), 10 * MB, host),
            WanOperator(f"reduce {host}", (f"read {host}",), 5 * MB, beside),
        ]

    united = "london" if as_drawn else None
    trends = [o for host in near for o in reduced(host)]
    trends += [WanOperator("union 3", tuple(f"reduce {h}" for h in near), 15 * MB, united)]
    campaigns = [o for host in ("host-us", "host-eu") for o in reduced(host)]
    campaigns += [WanOperator("union 2", ("reduce host-us", "reduce host-eu"), 10 * MB, united)]
    graph = OperatorGraph.of(
        {
            "trends": [*trends, WanOperator("publish trends", ("union 3",), 0, "london")],
            "campaigns": [*campaigns, WanOperator("join AdInfo", ("union 2",), 0, "california")],
        }
    )
    return Topology.of(links, tuple(near)), graph
