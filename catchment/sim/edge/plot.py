"""The frontier as a picture: what each policy sends against how late it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catchment.sim.edge.simulate import EdgeOutcome
from catchment.sim.plotting import picture

_LEAST_SHOWN_S = 1e-6  # where 0 is drawn on a logarithmic axis


def frontier(outcomes: Sequence[EdgeOutcome]) -> list[EdgeOutcome]:
    """Return the outcomes that no other beats on one metric without losing on the other, by rising traffic."""
    best: list[EdgeOutcome] = []
    for outcome in sorted(outcomes, key=lambda o: (o.traffic_ratio, o.staleness_mean_s)):
        if not best or outcome.staleness_mean_s < best[-1].staleness_mean_s:
            best.append(outcome)
    return best


def plot_frontier(outcomes: Sequence[EdgeOutcome], path: Path, title: str) -> None:
    """Draw traffic against staleness, one point per policy, the frontier of the online ones as a line."""
    front = frontier([o for o in outcomes if not o.name.endswith("-optimal")])
    with picture(path, title, (8, 5.5)) as axes:
        axes.plot([o.traffic_ratio for o in front], [_plotted_staleness_s(o) for o in front], color="0.75", zorder=1)
        for outcome in outcomes:
            at = (outcome.traffic_ratio, _plotted_staleness_s(outcome))
            axes.scatter(*at, zorder=2)
            # Neighbours lie side by side: level names would cover each other.
            axes.annotate(outcome.name, at, xytext=(3, 6), textcoords="offset points", fontsize=8, rotation=40)
        axes.set_yscale("log")
        axes.set_xlabel("updates sent / updates needed")
        axes.set_ylabel("mean staleness in seconds")


def _plotted_staleness_s(outcome: EdgeOutcome) -> float:
    return max(outcome.staleness_mean_s, _LEAST_SHOWN_S)
