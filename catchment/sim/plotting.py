"""Plots in files: drawn without a screen, with the command that made them below, and a clear error where that fails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from catchment.errors import SimulationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


@contextmanager
def panels(
    path: Path, title: str, count: int, size: tuple[float, float] = (8, 8), command: str = ""
) -> Iterator[list[Axes]]:
    """Yield this many axes, one below another, with one horizontal axis; save the drawing to the file afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(count, 1, figsize=size, sharex=True, squeeze=False)
    try:
        yield list(axes[:, 0])
        axes[0, 0].set_title(title)
        if command:
            figure.text(0.01, -0.03, command, fontsize=7, color="0.45", family="monospace")
        figure.savefig(path, dpi=140, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"cannot write the plot: {error}", where=str(path), hint="name a .png, .svg or .pdf"
        ) from None
    finally:
        pyplot.close(figure)


@contextmanager
def picture(path: Path, title: str, size: tuple[float, float] = (8, 5), command: str = "") -> Iterator[Axes]:
    """Yield axes to draw on; save the drawing to the file afterwards."""
    with panels(path, title, 1, size, command) as (axes,):
        yield axes


def mark_zero(axis: Axis, floor: float) -> None:
    """Let a logarithmic axis begin where 0 is drawn, with a tick that says so."""
    high = axis.get_view_interval()[1]
    first = math.floor(math.log10(floor))
    powers = range(first + 1, max(first + 2, math.ceil(math.log10(max(high, 10 * floor)))) + 1)
    ticks = [10.0**power for power in powers]
    axis.set_ticks([floor, *ticks], ["0", *(f"{tick:g}" for tick in ticks)])
    axis.set_ticks([], minor=True)
    axis.set_view_interval(floor / 1.6, 1.2 * ticks[-1], ignore=True)
