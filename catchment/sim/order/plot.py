"""The accuracy of published answers as time goes on: with repair it rises to 1, without it stays where it was.

As in Figure 5 of Yang et al. (HPM): the accuracy of a window is 1 - its error (never below 0), and the accumulated
accuracy at a moment is the mean over all windows published by then, each in its newest revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from catchment.arrays import Floats
from catchment.sim.order.answers import answers, errors
from catchment.sim.order.simulate import Run, Simulation
from catchment.sim.plotting import picture
from catchment.timeline import SECOND_US

SAMPLES = 60  # moments at which the accuracy is drawn


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


def plot_accuracy(courses: Sequence[Course], max_error: float, path: Path, title: str) -> None:
    """Draw the courses: solid with repair, dashed without."""
    with picture(path, title) as axes:
        for one in courses:
            (line,) = axes.plot(one.at_s, 100 * one.repaired, label=f"{one.name}, repaired")
            label = f"{one.name}, as first published"
            axes.plot(one.at_s, 100 * one.unrepaired, "--", color=line.get_color(), label=label)
        axes.axhline(100 * (1 - max_error), color="0.7", linewidth=1, label="the contract's error")
        axes.set_xlabel("seconds since the first window closed")
        axes.set_ylabel("accumulated accuracy in %")
        axes.legend(loc="lower right", fontsize=8)
