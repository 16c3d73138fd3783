"""What the answers of a burst turned out to be: freshness, errors, missed bounds, and whether the end is exact.

Freshness is from the end of a window to its first answer; errors are those of the windows that end within the burst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shedding.world import MAIN_CODES, VIEWS, Truth, columns_of


@dataclass(frozen=True)
class Clock:
    """When the burst is, by the log's clock, and how far the wall clock is before that."""

    burst_start_s: float
    burst_end_s: float
    ahead_s: float

    def in_burst(self, log_s: float) -> bool:
        return self.burst_start_s < log_s <= self.burst_end_s


@dataclass
class Verdict:
    """What the answers of a run turned out to be; `course` has the end of each answered window from the start of the
    burst on, how late its first answer was, and by how much it was off."""

    usual_s: list[float] = field(default_factory=list)
    burst_s: list[float] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)  # of the windows of the burst
    worst_error: float = 0.0  # of all windows
    bounds: int = 0
    missed: int = 0
    rows: int = 0
    exact: int = 0
    course: list[tuple[float, float, float]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "windows": len(self.usual_s) + len(self.burst_s),
            "usual_freshness_s": float(np.median(self.usual_s)) if self.usual_s else None,
            "freshness_median_s": float(np.median(self.burst_s)) if self.burst_s else None,
            "freshness_worst_s": max(self.burst_s, default=None),
            "error": max(self.errors.values(), default=None),
            "errors": self.errors,
            "error_of_all_windows": self.worst_error,
            "bounds": self.bounds,
            "missed": self.missed,
            "rows_answered": self.rows,
            "rows_exact": self.exact,
            "exact_in_the_end": self.exact == self.rows > 0,
            "answers": sorted(self.course),
        }


def judge(folder: Path, truth: Truth, clock: Clock) -> dict[str, Any]:
    """Freshness, errors of what was first published, how many miss their bound, and whether the end is exact."""
    from catchment.center.results.read import read_results
    from catchment.errors import CenterError

    verdict = Verdict()
    for view in truth:
        try:
            published = read_results(folder / "state", view, revisions="all").to_pylist()
        except CenterError:
            continue
        for row in (r for r in published if r["revision"] == 1):
            judge_first(verdict, view, row, truth[view].get(_place(row)), clock)
        for row in read_results(folder / "state", view).to_pylist():
            judge_last(verdict, row, truth[view].get(_place(row)))
    return verdict.figures()


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return int(row["window_start"].timestamp() * 1e6), row.get("code") or 0


def judge_first(
    verdict: Verdict, view: str, row: Mapping[str, Any], wanted: Mapping[str, float] | None, clock: Clock
) -> None:
    """A row as it was first published."""
    if wanted is None:
        return
    end_s = row["window_end"].timestamp()
    late_s = row["published_at"].timestamp() - clock.ahead_s - end_s
    if end_s <= clock.burst_start_s:
        verdict.usual_s.append(late_s)
    elif clock.in_burst(end_s):
        verdict.burst_s.append(late_s)
    if view == "by_code" and row["code"] not in MAIN_CODES:
        return
    worst = 0.0
    for column, bound in row["bound"].items():
        off = abs(row[column] - wanted[column]) / wanted[column] if wanted[column] else 0.0
        worst = max(worst, off)
        verdict.worst_error = max(verdict.worst_error, off)
        if clock.in_burst(end_s):
            verdict.errors[view] = max(verdict.errors.get(view, 0.0), off)
        if row["status"] == "on_time" and bound:
            verdict.bounds, verdict.missed = verdict.bounds + 1, verdict.missed + (off > bound)
    verdict.course.append((end_s - clock.burst_start_s, late_s, worst))


def judge_last(verdict: Verdict, row: Mapping[str, Any], wanted: Mapping[str, float] | None) -> None:
    """A row as it stands in the end."""
    verdict.rows += 1
    verdict.exact += (
        row["status"] in ("exact", "final")
        and wanted is not None
        and all(math.isclose(row[c], wanted[c], rel_tol=1e-12) for c in row["bound"])
    )


def worst_error(
    view: str, truth: Mapping[Any, Mapping[str, float]], found: Mapping[Any, Mapping[str, float]], clock: Clock
) -> float:
    """How far answers are off at most in windows of the burst."""
    columns = columns_of(view)
    nothing = dict.fromkeys(columns, 0.0)
    errors = (
        abs(found.get(place, nothing)[c] - wanted[c]) / wanted[c]
        for place, wanted in truth.items()
        if clock.in_burst(place[0] / 1e6 + VIEWS[view][2]) and (view != "by_code" or place[1] in MAIN_CODES)
        for c in columns
        if wanted[c]
    )
    return max(errors, default=0.0)
