"""A burst as a picture: what arrives and what is taken, how late answers are, and by how much they are off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from catchment.errors import ConfigError
from catchment.sim.plotting import mark_zero, panels

SHOWN_TIMES = 10
COLOURS = {"planned": "tab:blue", "uniform": "tab:orange", "none": "tab:red"}
MARKERS = {"planned": "o", "uniform": "s", "none": "^"}
COMMAND = "catchment bench shed --part picture --plot FILE"
_LEAST_SHOWN = 1e-5  # on a logarithmic axis an exact answer needs a place


def plot_burst(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw one run of each kind, of the burst of ten times the capacity where there is one."""
    if not cells:
        raise ConfigError("there is no burst to draw", hint="run a part that has one: --part x10")
    times = SHOWN_TIMES if any(c["times"] == SHOWN_TIMES for c in cells) else cells[0]["times"]
    chosen = {c["how"]: c for c in reversed(cells) if c["times"] == times}
    burst = next(iter(chosen.values()))
    title = f"A burst of {times} times the capacity, {burst['burst_s']:.1f} s long (grey)"
    with panels(path, title, 3, command=COMMAND) as (rows, late, off):
        for how, cell in chosen.items():
            _draw(cell, how, rows, late, off)
        rows.hlines(
            burst["arriving_rows_per_s"] / 1e6, 0, burst["burst_s"], color="0.6", linestyle="--", label="arriving"
        )
        rows.set_ylabel("records taken,\nin millions per second")
        rows.set_ylim(bottom=0)
        late.set_ylabel("from the end of a window\nto its answer, in seconds")
        off.set_ylabel("relative error of the\nfirst answer, in %")
        off.set_yscale("log")
        off.set_xlabel("seconds since the burst began")
        mark_zero(off.yaxis, 100 * _LEAST_SHOWN)
        rows.legend(loc="upper right", frameon=False)
        for axes in (rows, late, off):
            axes.axvspan(0, burst["burst_s"], color="0.93", zorder=0)


def _draw(cell: Mapping[str, Any], how: str, rows: Any, late: Any, off: Any) -> None:
    colour = COLOURS.get(how, "0.3")
    for batch in cell["burst_batches"]:
        lasted_s = max(batch["ended_s"] - batch["began_s"], 1e-3)
        rows.hlines(batch["rows"] / lasted_s / 1e6, batch["began_s"], batch["ended_s"], color=colour, linewidth=3)
    rows.plot([], [], color=colour, linewidth=3, label=f"taken, {how}")
    answers = np.array([a for a in cell["answers"] if a[0] > -10.0]).reshape(-1, 3)
    marker = MARKERS.get(how, "x")
    late.scatter(answers[:, 0], answers[:, 1], color=colour, marker=marker, s=14)
    off.scatter(answers[:, 0], 100 * np.maximum(answers[:, 2], _LEAST_SHOWN), color=colour, marker=marker, s=14)
