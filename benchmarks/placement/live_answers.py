"""What a query of a live run has answered: right or wrong against a recomputation, how late, and how much of its input.

Only windows that lie wholly within what its stream was given are held against the recomputation, from the first that
the query began with. Distinct counts from sketches may be off by what their documentation says.
"""

from __future__ import annotations

import math
import statistics as stats
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from benchmarks.placement.fourteen_sites import BEGIN, SPEED, LiveEdit, LiveQuery, LiveWay
from benchmarks.sharing.arrivals import oracle, plain_row
from catchment.center.results.read import read_results, read_windows
from catchment.errors import CenterError

SKETCH_ERROR = 0.05  # of approx_count_distinct, relative; its standard error is a third of that
ESTIMATED = ("pages",)  # columns from sketches of distinct values


class Fed(Protocol):
    """Which records a stream was given, and when queries were submitted."""

    began_s: float
    submitted_s: dict[str, float]

    def fed_to(self, stream: str) -> list[LiveEdit]:
        """Return the records that were written to a stream."""


@dataclass(frozen=True)
class QueryAnswers:
    """What a query has answered in a run; seconds are of the wall clock."""

    query: str
    sink: str
    rows: int  # that were compared
    wrong: int
    latencies_s: Sequence[float]  # of the windows that ended while sources ran; how long it waited, if not answered
    unanswered: int  # of these windows when the run was over
    begins_after_s: float  # from the submission to the start of the first window
    answered: float  # share of the records of these windows that were answered when the sources ended
    records_per_s: float  # of these, from the submission to the end of the sources

    def told(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            "query": self.query,
            "sink": self.sink,
            "windows": len(self.latencies_s),
            "unanswered": self.unanswered,
            "begins_after_s": self.begins_after_s,
            "median_latency_s": stats.median(self.latencies_s) if self.latencies_s else None,
            "worst_latency_s": max(self.latencies_s, default=None),
            "answered": self.answered,
            "records_per_s": self.records_per_s,
            "compared_rows": self.rows,
        }


def judge_query(folder: Path, deployment: Any, query: LiveQuery, way: LiveWay, fed: Fed, took_s: float) -> QueryAnswers:
    """Hold what a query has answered against a recomputation from what its stream was given."""
    edits = fed.fed_to(query.stream(way))
    submitted_s = fed.submitted_s[query.name]
    sources_s = edits[-1].born_s
    state = deployment.of_view(query.name).project.state_folder
    answered_s: dict[datetime, float] = {}
    for row in _read(read_windows, state, query.name):
        answered_s.setdefault(row["window_start"], row["published_at"].timestamp() - fed.began_s)
    starts = ended_windows(min(answered_s, default=None), submitted_s, sources_s, query.window_s)
    columns, wanted = oracle(query.statement, _by_site(edits), folder / "categories.csv")
    given = [plain_row(row, columns) for row in _read(read_results, state, query.name)]
    compared = {start.replace(tzinfo=None) for start in starts if start in answered_s}
    expected = [row for row in wanted if row[0] in compared]
    records = _count_records(edits, starts, query.window_s)
    in_time = sum(records[start] for start in starts if answered_s.get(start, math.inf) <= sources_s)
    ends_s = {start: wall_s(start) + query.window_s / SPEED for start in starts}
    return QueryAnswers(
        query.name,
        query.sink,
        len(expected),
        count_wrong([row for row in given if row[0] in compared], expected, columns),
        [answered_s.get(start, took_s) - ends_s[start] for start in starts],
        sum(start not in answered_s for start in starts),
        (wall_s(starts[0]) if starts else sources_s) - submitted_s,
        in_time / max(1, sum(records.values())),
        in_time / max(1e-9, sources_s - submitted_s),
    )


def wall_s(instant: datetime) -> float:
    """Return when an instant of event time is, by the wall clock since the sources began."""
    return (instant - BEGIN).total_seconds() / SPEED


def ended_windows(first: datetime | None, submitted_s: float, sources_s: float, window_s: int) -> list[datetime]:
    """Return the windows of a query that ended while the sources ran.

    They are those from its first answer on; without any, from the first that starts after the query was submitted.
    """
    if first is None:
        number = math.ceil(submitted_s * SPEED / window_s)
        first = BEGIN + timedelta(seconds=number * window_s)
    starts = []
    while wall_s(first) + window_s / SPEED <= sources_s:
        starts.append(first)
        first += timedelta(seconds=window_s)
    return starts


def count_wrong(given: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> int:
    """Return how many rows are too many, missing or other than expected; estimates may be off by their error."""
    estimated = [place for place, column in enumerate(columns) if column in ESTIMATED]

    def split(row: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        return tuple(v for n, v in enumerate(row) if n not in estimated), tuple(float(row[n]) for n in estimated)

    left = Counter(split(row)[0] for row in expected)
    left.subtract(split(row)[0] for row in given)
    wrong = sum(abs(count) for count in left.values())
    right = dict(split(row) for row in expected)
    for exact, estimates in (split(row) for row in given):
        pairs = zip(estimates, right.get(exact, estimates), strict=True)
        wrong += any(abs(estimate - value) > max(1.0, SKETCH_ERROR * value) for estimate, value in pairs)
    return wrong


def _read(read: Callable[[Path, str], pa.Table], state: Path, view: str) -> list[dict[str, Any]]:
    """Return the rows of a table of results; none if nothing was published."""
    try:
        rows: list[dict[str, Any]] = read(state, view).to_pylist()
    except CenterError:
        return []
    return rows


def _by_site(edits: Sequence[LiveEdit]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for edit in edits:
        found.setdefault(edit.site, []).append(edit.row)
    return found


def _count_records(edits: Sequence[LiveEdit], starts: Sequence[datetime], window_s: int) -> dict[datetime, int]:
    """Return how many records were born in each window."""
    born_s = [edit.born_s for edit in edits]
    return {
        start: bisect_left(born_s, wall_s(start) + window_s / SPEED) - bisect_left(born_s, wall_s(start))
        for start in starts
    }
