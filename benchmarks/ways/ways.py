"""A link that changes under a running site, on real sockets.

The link of a site to the center is throttled to a tenth, and in a second run cut, while another way is there over a
site that forwards, or not. How long until what has landed is as fresh as before, within a factor of two?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.ways.loopback import BYTES_PER_S, LINK_BYTES_PER_S, measure_ways

DESCRIPTION = "a link that is throttled or cut while another way is there: when what lands is fresh again"
PARTS = ("throttle", "cut")

TITLES = {"throttle": "throttled to a tenth", "cut": "cut"}

Report = Callable[[str], None]


def run(report: Report, quick: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure the parts; quick: shorter times before and after the change."""
    measured: dict[str, Any] = {
        "data": f"segments of random numbers, {BYTES_PER_S / 1e3:g} KB/s over links of {LINK_BYTES_PER_S / 1e3:g} KB/s"
    }
    for part in parts:
        report(f"the link is {TITLES[part]}")
        measured[part] = {
            "with a way around": measure_ways(part, around=True, quick=quick),
            "without": measure_ways(part, around=False, quick=quick),
        }
    return measured


def render(result: Mapping[str, Any]) -> RenderableType:
    """Return how fresh what landed was, before and after each change."""
    table = Table("the link is", "ways", "freshness before", "worst after", "fresh again after", "lost", "twice")
    for part in (part for part in PARTS if part in result):
        for ways in ("with a way around", "without"):
            figures = result[part][ways]
            again_s = figures["fresh_again_s"]
            table.add_row(
                TITLES[part],
                ways,
                f"{figures['freshness_before_s']:.2f} s",
                f"{figures['worst_after_s']:.1f} s",
                "not while it lasted" if again_s is None else f"{again_s:.1f} s",
                str(figures["lost"]),
                str(figures["twice"]),
            )
    return table
