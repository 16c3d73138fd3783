"""The accuracy of published answers as time goes on: with repair it rises to 1, without it stays where it was.

As in Figure 5 of Yang et al. (HPM): the accuracy of a window is 1 - its error (never below 0), and the accumulated
accuracy at a moment is the mean over all windows published by then, each in its newest revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from catchment.arrays import Floats
from catchment.sim.order.answers import answers, errors
from catchment.sim.order.simulate import Run, Simulation
from catchment.sim.plotting import mark_zero, picture
from catchment.timeline import SECOND_US

SAMPLES = 60  # moments at which the accuracy is drawn
LEAST_PERCENT = 0.01  # where an error of 0, and what is less, is drawn
_MARKERS = "osD^v"


@dataclass(frozen=True)
class Course:
    """Accumulated accuracy at moments (seconds since the first window ended), with and without repair."""

    name: str
    at_s: Floats
    repaired: Floats
    unrepaired: Floats


def course(simulation: Simulation, run: Run, samples: int = SAMPLES) -> Course:
    """Return the accuracy of one controller's answers over time, a while beyond the end of the trace."""
    begin = int(run.replay.closed_at_us[0])
    end = max(int(run.replay.closed_at_us[-1]), int(run.repair.repaired_at_us.max()))
    moments = np.linspace(begin, end, samples).astype(np.int64)
    first = 1.0 - np.minimum(run.errors, 1.0)
    both = [_accuracies(simulation, run, first, int(at)) for at in moments]
    return Course(
        run.name, (moments - begin) / SECOND_US, np.array([b[0] for b in both]), np.array([b[1] for b in both])
    )


def _accuracies(simulation: Simulation, run: Run, first: Floats, at_us: int) -> tuple[float, float]:
    """Return the mean accuracy of what is published at a moment: in its newest revision, and as first published."""
    shown = run.replay.closed_at_us <= at_us
    known = run.repair.known | (run.repair.repaired_at_us <= at_us)
    mended = np.zeros(len(shown), dtype=bool)
    mended[simulation.windows.window[known & ~run.repair.known]] = True
    measure = simulation.question.measure
    revised = answers(simulation.trace, simulation.windows, measure, known)
    now = errors(simulation.trace, simulation.windows, measure, revised.value, simulation.truth)
    newest = np.where(mended, 1.0 - np.minimum(now, 1.0), first)
    return float(newest[shown].mean()), float(first[shown].mean())


def plot_accuracy(courses: Sequence[Course], max_error: float, path: Path, title: str, command: str = "") -> None:
    """Draw the mean error of all published windows: solid with repair, dashed without, from 0 to the contract's.

    The axis is logarithmic, so that errors far below the contract can be told apart.
    """
    with picture(path, title, (8.5, 5), command) as axes:
        for number, one in enumerate(courses):
            marker = _MARKERS[number % len(_MARKERS)]
            style: dict[str, Any] = {"color": f"C{number}", "marker": marker, "markersize": 4, "markevery": 5}
            axes.plot(one.at_s, _error_percent(one.repaired), label=f"{one.name}, repaired", **style)
            axes.plot(one.at_s, _error_percent(one.unrepaired), "--", label=f"{one.name}, as first published", **style)
        axes.set_yscale("log")
        axes.axhspan(100 * max_error, 1_000 * max_error, color="0.94", zorder=0)
        axes.axhline(100 * max_error, color="0.4", linewidth=1, label=f"the contract: {max_error:.0%}")
        axes.set_xlabel("seconds since the first window closed")
        axes.set_ylabel("mean error of all published windows, in %")
        mark_zero(axes.yaxis, LEAST_PERCENT)
        axes.set_ylim(top=200 * max_error)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def _error_percent(accuracy: Floats) -> Floats:
    return np.maximum(100 * (1 - accuracy), LEAST_PERCENT)
