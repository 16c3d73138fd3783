"""What work costs: seconds of a job as a fixed part and a part per row, learned from what jobs took.

A line through the last jobs by least squares, in which a job counts `KEPT` times as much as the next. The first jobs of
a kind are left out: they pay for what is compiled once. Until jobs of different sizes were seen nothing is known of the
cost of a row. Small jobs tell little of it, for jobs of one size take different times by far more than their rows
cost: then it is, as far as they are not sure, what is believed for other reasons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COLD_JOBS = 2
KEPT = 0.9  # of what was known when the next job is learned from
LEAST_NOISE = 0.2  # of a job's seconds: how evenly jobs go is not told by a few of them
MISBELIEF = 0.5  # by how much of itself a cost that is believed for other reasons may be off
USUAL_ROW_S = 3e-6  # to read, parse and keep a row, on the machines that this was tried on: believed until it shows
SPREAD_ROWS = 1_000  # by which the sizes of jobs must differ (one standard deviation) to tell anything


@dataclass
class RowCost:
    """Work that has no fixed part: its seconds over its rows, the last jobs counting most. Before there were any, it is
    as if so many rows had cost what is believed."""

    rows: float
    seconds: float

    def learn(self, rows: float, seconds: float) -> None:
        self.rows, self.seconds = self.rows / 2 + rows, self.seconds / 2 + seconds

    @property
    def seconds_per_row(self) -> float:
        return self.seconds / self.rows


@dataclass
class CostModel:
    """One kind of job: sums over jobs of 1, rows, seconds, their squares and products."""

    seen: int = 0
    _jobs: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _rows_rows: float = 0.0
    _rows_seconds: float = 0.0
    _seconds_seconds: float = 0.0

    def learn(self, rows: float, seconds: float) -> None:
        """A job over so many rows took so long."""
        self.seen += 1
        if self.seen <= COLD_JOBS:
            return
        self._jobs = KEPT * self._jobs + 1.0
        self._rows = KEPT * self._rows + rows
        self._seconds = KEPT * self._seconds + seconds
        self._rows_rows = KEPT * self._rows_rows + rows * rows
        self._rows_seconds = KEPT * self._rows_seconds + rows * seconds
        self._seconds_seconds = KEPT * self._seconds_seconds + seconds * seconds

    @property
    def known(self) -> bool:
        return self._jobs > 0 and self._spread > self._jobs * SPREAD_ROWS**2

    @property
    def seconds_per_row(self) -> float:
        """0 until it is known; never more than if nothing were fixed."""
        if not self.known:
            return 0.0
        return min(max(self._together / self._spread, 0.0), self._rows_seconds / self._rows_rows)

    def given(self, believed: float, misbelief: float = MISBELIEF) -> float:
        """What a row costs, between what these jobs show and what is believed for other reasons, by how sure each is:
        jobs of few rows tell next to nothing of it, and chance may even say that rows are free."""
        if not self.known or believed <= 0.0:
            return self.seconds_per_row if self.known else believed
        noise = LEAST_NOISE * self._seconds / self._jobs / math.sqrt(self._spread)
        doubt = max(self._error, noise) / (misbelief * believed)
        return (self.seconds_per_row + believed * doubt**2) / (1.0 + doubt**2)

    @property
    def _error(self) -> float:
        """The standard error of the line's slope."""
        around = self._seconds_seconds - self._seconds**2 / self._jobs - self._together**2 / self._spread
        return math.sqrt(max(around, 0.0) / max(self._jobs - 2.0, 0.5) / self._spread)

    @property
    def _spread(self) -> float:
        return self._rows_rows - self._rows**2 / self._jobs

    @property
    def _together(self) -> float:
        return self._rows_seconds - self._rows * self._seconds / self._jobs
