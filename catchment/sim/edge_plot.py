"""The frontier as a picture: what each policy sends against how late it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catchment.errors import SimulationError
from catchment.sim.edge import EdgeOutcome

_LEAST_SHOWN_S = 1e-6  # on a logarithmic axis zero needs a place


def frontier(outcomes: Sequence[EdgeOutcome]) -> list[EdgeOutcome]:
    """The outcomes that no other beats on one metric without losing on the other, by rising traffic."""
    best: list[EdgeOutcome] = []
    for outcome in sorted(outcomes, key=lambda o: (o.traffic_ratio, o.staleness_mean_s)):
        if not best or outcome.staleness_mean_s < best[-1].staleness_mean_s:
            best.append(outcome)
    return best


def plot_frontier(outcomes: Sequence[EdgeOutcome], path: Path, title: str) -> None:
    """Draw traffic against staleness, one point a policy, the frontier of the online ones as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    front = frontier([o for o in outcomes if not o.name.endswith("-optimal")])
    axes.plot([o.traffic_ratio for o in front], [_shown(o) for o in front], color="0.75", zorder=1)
    for outcome in outcomes:
        axes.scatter(outcome.traffic_ratio, _shown(outcome), zorder=2)
        axes.annotate(
            outcome.name,
            (outcome.traffic_ratio, _shown(outcome)),
            xytext=(3, 6),
            textcoords="offset points",
            fontsize=8,
            rotation=40,  # neighbours lie side by side: level names would cover each other
        )
    axes.set_yscale("log")
    axes.set_xlabel("updates sent / updates needed")
    axes.set_ylabel("mean staleness in seconds")
    axes.set_title(title)
    try:
        figure.savefig(path, dpi=140, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"cannot write the plot: {error}", where=str(path), hint="name a .png, .svg or .pdf"
        ) from None
    finally:
        pyplot.close(figure)


def _shown(outcome: EdgeOutcome) -> float:
    return max(outcome.staleness_mean_s, _LEAST_SHOWN_S)
