"""How good the published answers of a view have been: how soon they came, and whether their bounds held.

Everything is computed from the result tables, which keep every revision and survive restarts: what was published of a
window before it was exact is compared with its exact answer. At most `max_windows` windows are looked at, the newest.
Errors of rank and share cannot be read from values, and are not judged. A row that is taken back in the end, as one of
an outer join whose partner came late, was wrong as a whole: if it had a bound, that was missed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.compute as pc

from catchment.center.results.read import read_results, read_windows
from catchment.center.statuses import EARLY, EXACT, FINAL, ON_TIME

MAX_WINDOWS = 1000
_TOLERANCE = 1e-9
Row = Mapping[str, Any]


@dataclass
class ColumnQuality:
    """What was promised of one column in one status, against what it turned out to be."""

    column: str
    status: str
    values: int = 0  # published before their windows were exact
    promised: int = 0  # of these, with a bound
    missed: int = 0  # of these, further off than the bound
    mean_bound: float = 0.0
    mean_error: float = 0.0
    largest_error: float = 0.0
    taken_back: int = 0  # values of rows that are not there in the end, which are in no mean

    def add(self, error: float, bound: float | None) -> None:
        """Add one value that is known to be off by this much; infinite: its row was taken back."""
        self.values += 1
        if math.isinf(error):
            self.taken_back += 1
        else:
            self.largest_error = max(self.largest_error, error)
            self.mean_error += (error - self.mean_error) / (self.values - self.taken_back)
        if bound is not None:
            self.promised += 1
            self.missed += error > bound + _TOLERANCE
            self.mean_bound += (bound - self.mean_bound) / self.promised


def view_quality(folder: Path, query: str, confidence: float, max_windows: int = MAX_WINDOWS) -> dict[str, Any]:
    """Return how soon windows were answered and exact, and how often bounds were missed."""
    log = read_windows(folder, query).to_pylist()
    starts = sorted({row["window_start"] for row in log})[-max_windows:]
    recent = [row for row in log if row["window_start"] in set(starts)]
    by_window: dict[Any, list[Row]] = {}
    for row in recent:
        by_window.setdefault(row["window_start"], []).append(row)
    whole = {start for start, rows in by_window.items() if rows[-1]["status"] in (EXACT, FINAL)}
    columns = list(_judge_columns(folder, query, starts[0], whole)) if starts else []
    promised = sum(c.promised for c in columns)
    missed = sum(c.missed for c in columns)
    return {
        "query": query,
        "windows": len(starts),
        "exact_windows": len(whole),
        "revisions": len(recent),
        "rows": sum(row["rows_changed"] for row in recent),
        "latency_s": _spread(_seconds_after_end(by_window, (ON_TIME, EXACT, FINAL))),
        "staleness_s": _spread(_seconds_after_end(by_window, (EXACT, FINAL))),
        "promised": promised,
        "missed": missed,
        "missed_share": missed / promised if promised else None,
        "stated_share": 1.0 - confidence,
        "columns": [vars(c) for c in columns],
    }


def _seconds_after_end(by_window: Mapping[Any, Sequence[Row]], statuses: Sequence[str]) -> list[float]:
    """Return how long after the end of each window it was first published in one of these statuses."""
    waits = []
    for rows in by_window.values():
        first = next((row for row in rows if row["status"] in statuses), None)
        if first is not None:
            waits.append((first["published_at"] - first["window_end"]).total_seconds())
    return waits


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return the median, the 95th percentile and the most; None where there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {"median": median(ordered), "p95": ordered[math.ceil(0.95 * len(ordered)) - 1], "most": ordered[-1]}


def _judge_columns(folder: Path, query: str, first_start: Any, whole: set[Any]) -> Iterator[ColumnQuality]:
    table = read_results(folder, query, revisions="all", state=True)
    rows = table.filter(pc.greater_equal(table["window_start"], first_start)).to_pylist()
    places = [(row["window_start"], json.dumps(row["state"]["key"], default=str)) for row in rows]
    final = {place: row for place, row in zip(places, rows, strict=True) if place[0] in whole}  # later ones win
    found: dict[tuple[str, str], ColumnQuality] = {}
    for place, row in zip(places, rows, strict=True):
        if place in final and row["status"] in (EARLY, ON_TIME):
            for column, bound in (row["bound"] or {}).items():
                error = _relative_error(row, final[place], column)
                if error is not None:
                    known = found.setdefault((column, row["status"]), ColumnQuality(column, row["status"]))
                    known.add(error, bound)
    yield from (found[place] for place in sorted(found))


def _relative_error(row: Row, final: Row, column: str) -> float | None:
    """Return how far a value was off; None where its error is not relative to the value, or there is none."""
    kind = str((row.get("bound_kind") or {}).get(column) or "")
    value, truth = row.get(column), final.get(column)
    if final["retracted"] and truth is None and not row["retracted"] and isinstance(value, int | float):
        return math.inf if value else 0.0
    if " " in kind or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, truth)):
        return None
    distance = abs(float(value) - float(truth))  # type: ignore[arg-type]
    if not distance:
        return 0.0
    return distance / abs(float(truth)) if truth else None
