"""What work costs: the seconds of a job as a fixed part and a part per row, learned from past jobs.

A least-squares line goes through the last jobs, whose weights decay. The first jobs of a kind are left out, because
they pay for compilation. Until jobs of different sizes were seen, the cost per row is unknown. Timing noise dominates
small jobs, so the slope is shrunk towards a prior (a precision-weighted mean).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

COLD_JOBS = 2  # the first jobs of a kind, which are not learned from
DECAY = 0.9  # the weight of all earlier jobs, per job
MIN_REL_NOISE = 0.2  # least relative standard deviation of a job's seconds: a few jobs do not show how noisy they are
PRIOR_REL_STD = 0.5  # relative standard deviation of the prior cost per row
PRIOR_ROW_S = 3e-6  # prior seconds to read, parse and write a row, as measured on a few machines
MIN_SPREAD_ROWS = 1_000  # the standard deviation of job sizes below which the slope is unknown


@dataclass
class RowCost:
    """The seconds per row of work without a fixed part; half of the weight is that of the last job.

    The initial rows and seconds are the prior.
    """

    rows: float
    seconds: float

    def learn(self, rows: float, seconds: float) -> None:
        """Learn from a job over this many rows that took this many seconds."""
        self.rows = self.rows / 2 + rows
        self.seconds = self.seconds / 2 + seconds

    @property
    def seconds_per_row(self) -> float:
        return self.seconds / self.rows


@dataclass
class CostModel:
    """The cost of one kind of job: weighted sums over jobs of 1, rows, seconds, their squares and products."""

    seen: int = 0
    _jobs: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _rows_rows: float = 0.0
    _rows_seconds: float = 0.0
    _seconds_seconds: float = 0.0

    def learn(self, rows: float, seconds: float) -> None:
        """Learn from a job over this many rows that took this many seconds."""
        self.seen += 1
        if self.seen <= COLD_JOBS:
            return
        self._jobs = DECAY * self._jobs + 1.0
        self._rows = DECAY * self._rows + rows
        self._seconds = DECAY * self._seconds + seconds
        self._rows_rows = DECAY * self._rows_rows + rows * rows
        self._rows_seconds = DECAY * self._rows_seconds + rows * seconds
        self._seconds_seconds = DECAY * self._seconds_seconds + seconds * seconds

    @property
    def known(self) -> bool:
        return self._jobs > 0 and self._spread > self._jobs * MIN_SPREAD_ROWS**2

    @property
    def seconds_per_row(self) -> float:
        """Return the slope of the line: 0 until it is known, and never more than if nothing were fixed."""
        if not self.known:
            return 0.0
        return min(max(self._covariance / self._spread, 0.0), self._rows_seconds / self._rows_rows)

    def estimate(self, prior_s: float, prior_rel_std: float = PRIOR_REL_STD) -> float:
        """Return the seconds per row, shrunk towards a prior by how precise the slope is."""
        if not self.known:
            return prior_s
        if prior_s <= 0.0:
            return self.seconds_per_row
        min_error = MIN_REL_NOISE * self._seconds / self._jobs / math.sqrt(self._spread)
        doubt = max(self._slope_error, min_error) / (prior_rel_std * prior_s)
        return (self.seconds_per_row + prior_s * doubt**2) / (1.0 + doubt**2)

    @property
    def _slope_error(self) -> float:
        """Return the standard error of the slope."""
        residual = self._seconds_seconds - self._seconds**2 / self._jobs - self._covariance**2 / self._spread
        return math.sqrt(max(residual, 0.0) / max(self._jobs - 2.0, 0.5) / self._spread)

    @property
    def _spread(self) -> float:
        """Return the weighted sum of squares of rows about their mean."""
        return self._rows_rows - self._rows**2 / self._jobs

    @property
    def _covariance(self) -> float:
        """Return the weighted sum of products of rows and seconds about their means."""
        return self._rows_seconds - self._rows * self._seconds / self._jobs
