"""Where operators run on a WAN.

*baselines*: ours against an even spread, the network alone and sharing alone, in virtual time (`baselines.py`).
*scale*: planning for up to 1,000 sites and 10,000 queries, and greedy against exact on small worlds (`scale.py`).
*live*: the fourteen sites of the same example run on this machine, links shaped, in the same four ways (`live.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from benchmarks.placement.baselines import compare_ways, render_ways
from benchmarks.placement.live import render_live, run_live
from benchmarks.placement.scale import plan_at_scale, render_scale

DESCRIPTION = "placement on a WAN, in virtual time and live: ours against an even spread, the network and sharing alone"

PARTS: Mapping[str, Callable[[Callable[[str], None], bool], Any]] = {
    "baselines": compare_ways,
    "scale": plan_at_scale,
    "live": run_live,
}
TABLES: Mapping[str, Callable[[Any], RenderableType]] = {
    "baselines": render_ways,
    "scale": render_scale,
    "live": render_live,
}


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """The chosen parts; a quick run shows that they work."""
    chosen = parts or tuple(PARTS)
    found = {"parts": list(chosen), "data": "examples/wan_workload: 12 queries, wiki edits of one day, 14 EC2 regions"}
    return found | {part: PARTS[part](report, quick) for part in chosen}


def join_parts(earlier: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the parts that an earlier run of the same commit has measured."""
    known = {part: earlier[part] for part in earlier["parts"]} | {part: result[part] for part in result["parts"]}
    return {**result, **known, "parts": [part for part in PARTS if part in known]}


def render(result: Mapping[str, Any]) -> RenderableType:
    """Tables for a person."""
    return Group(*(TABLES[part](result[part]) for part in result["parts"]))
