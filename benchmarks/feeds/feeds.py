"""Feeds: a live run over a broker, and fleets of several sizes in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from benchmarks.feeds import clients, cost, growth, traffic

DESCRIPTION = (
    "Feeds: 500 devices over MQTT against a cloud on Spark; fleets of 100 to 500, one that grows, 5,000 devices; what "
    "both kinds of cloud cost, and how soon notices come."
)
PARTS: Mapping[str, Callable[[Callable[[str], None], bool], Any]] = {
    "live": traffic.run,
    "clients": clients.run,
    "many": clients.run_many,
    "growth": growth.run,
    "cost": cost.run,
}
TABLES: Mapping[str, Callable[[Any], RenderableType]] = {
    "live": traffic.render,
    "clients": clients.render,
    "many": clients.render,
    "growth": growth.render,
    "cost": cost.render,
}


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """The chosen parts; a quick run shows that they work."""
    chosen = parts or tuple(PARTS)
    return {"parts": list(chosen), **{part: PARTS[part](report, quick) for part in chosen}}


def render(result: Mapping[str, Any]) -> RenderableType:
    """A table per part."""
    return Group(*(TABLES[part](result[part]) for part in result["parts"]))
