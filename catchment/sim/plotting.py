"""Plots in files: drawn without a screen, with a clear error where the file cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from catchment.errors import SimulationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@contextmanager
def panels(path: Path, title: str, count: int, size: tuple[float, float] = (8, 8)) -> Iterator[list[Axes]]:
    """Yield this many axes, one below another, with one horizontal axis; save the drawing to the file afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(count, 1, figsize=size, sharex=True, squeeze=False)
    try:
        yield list(axes[:, 0])
        axes[0, 0].set_title(title)
        figure.savefig(path, dpi=140, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"cannot write the plot: {error}", where=str(path), hint="name a .png, .svg or .pdf"
        ) from None
    finally:
        pyplot.close(figure)


@contextmanager
def picture(path: Path, title: str, size: tuple[float, float] = (8, 5)) -> Iterator[Axes]:
    """Yield axes to draw on; save the drawing to the file afterwards."""
    with panels(path, title, 1, size) as (axes,):
        yield axes
