"""Where operators run on a WAN.

*baselines*: ours against an even spread, the network alone and sharing alone, in virtual time (`baselines.py`).
*scale*: planning for up to 1,000 sites and 10,000 queries, and greedy against exact on small worlds (`scale.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from benchmarks.placement.baselines import compare_ways, render_ways
from benchmarks.placement.scale import plan_at_scale, render_scale

DESCRIPTION = "placement on a WAN: ours against an even spread, the network alone and sharing alone (virtual time)"

PARTS: Mapping[str, Callable[[Callable[[str], None], bool], Any]] = {
    "baselines": compare_ways,
    "scale": plan_at_scale,
}
TABLES: Mapping[str, Callable[[Any], RenderableType]] = {"baselines": render_ways, "scale": render_scale}


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """The chosen parts; a quick run shows that they work."""
    chosen = parts or tuple(PARTS)
    found = {"parts": list(chosen), "data": "examples/wan_workload: 12 queries, wiki edits of one day, 14 EC2 regions"}
    return found | {part: PARTS[part](report, quick) for part in chosen}


def render(result: Mapping[str, Any]) -> RenderableType:
    """Tables for a person."""
    return Group(*(TABLES[part](result[part]) for part in result["parts"]))
