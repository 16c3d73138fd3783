"""The frontier as a picture: what each policy sends against how late it is.

Both axes are logarithmic, because the policies that matter lie close together near the ideal corner, and the ones that
do not may be a thousand times further away. What is 0 is drawn at the end of its axis, where a tick says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from catchment.sim.edge.simulate import EdgeOutcome
from catchment.sim.plotting import mark_zero, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_STALENESS_S = 1e-3  # where 0, and what is less, is drawn
LEAST_EXCESS = 1e-3
_MARKERS = "osD^v<>Pphd8X"


def frontier(outcomes: Sequence[EdgeOutcome]) -> list[EdgeOutcome]:
    """Return the outcomes that no other beats on one metric without losing on the other, by rising traffic."""
    best: list[EdgeOutcome] = []
    for outcome in sorted(outcomes, key=lambda o: (o.traffic_ratio, o.staleness_mean_s)):
        if not best or outcome.staleness_mean_s < best[-1].staleness_mean_s:
            best.append(outcome)
    return best


def plot_frontier(outcomes: Sequence[EdgeOutcome], path: Path, title: str, command: str = "") -> None:
    """Draw traffic against staleness, one mark per policy, and the frontier of those that do not know the future."""
    front = frontier([o for o in outcomes if not o.name.endswith("-optimal")])
    with picture(path, title, (9.5, 5.5), command) as axes:
        line = [_place(o) for o in front]
        axes.plot(*zip(*line, strict=True), color="0.75", zorder=1, label="frontier of online policies")
        for number, outcome in enumerate(sorted(outcomes, key=lambda o: (o.staleness_mean_s, o.traffic_ratio))):
            marker = _MARKERS[number % len(_MARKERS)]
            colour = f"C{number % 10}"
            face = "none" if outcome.name.endswith("-optimal") else colour
            axes.scatter(*_place(outcome), marker=marker, s=55, facecolors=face, edgecolors=colour, zorder=2)
            axes.scatter([], [], marker=marker, s=55, facecolors=face, edgecolors=colour, label=_name(outcome))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("updates sent beyond those needed, in %")
        axes.set_ylabel("mean staleness, in seconds")
        mark_zero(axes.xaxis, 100 * LEAST_EXCESS)
        mark_zero(axes.yaxis, LEAST_STALENESS_S)
        axes.grid(True, which="major", color="0.92", zorder=0)
        _mark_ideal(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False, title="by staleness")


def _place(outcome: EdgeOutcome) -> tuple[float, float]:
    excess = max(outcome.traffic_ratio - 1.0, LEAST_EXCESS)
    return 100 * excess, max(outcome.staleness_mean_s, LEAST_STALENESS_S)


def _name(outcome: EdgeOutcome) -> str:
    return f"{outcome.name} (knows the future)" if outcome.name.endswith("-optimal") else outcome.name


def _mark_ideal(axes: Axes) -> None:
    """Mark the corner where nothing is late and nothing is sent twice."""
    axes.annotate(
        "ideal",
        xy=(0.005, 0.005),
        xytext=(0.09, 0.12),
        xycoords="axes fraction",
        color="0.35",
        arrowprops={"arrowstyle": "->", "color": "0.35"},
    )
