"""What work costs: seconds of a job as a fixed part and a part per row, learned from what jobs took.

The quickest job is remembered (and slowly forgotten); what a larger one took more is put down to the rows that it had
more. Until batches of different sizes were seen nothing is known of the cost of a row, and it is said to be 0; nor is
what is lost in a few percent of the fixed part.
"""

from __future__ import annotations

from dataclasses import dataclass

LEARN_FROM_ROWS = 4_000
LARGER = 1.5  # times the rows of the quickest job
_KEEP = 0.7  # of what was known when the next batch is learned from
_FORGET = 1.01  # by which the time of the quickest job grows with each job of its size
_FORGET_LARGER = 1.001  # and with a larger one, which tells little of it


@dataclass
class CostModel:
    """One kind of job."""

    quickest_s: float | None = None
    quickest_rows: float = 0.0
    _seconds: float = 0.0
    _rows: float = 0.0

    def learn(self, rows: float, seconds: float) -> None:
        """A job over so many rows took so long."""
        larger = rows > LARGER * self.quickest_rows
        if self.quickest_s is None or seconds <= self.quickest_s * (1.0 if larger else _FORGET):
            self.quickest_s, self.quickest_rows = seconds, rows
            return
        self.quickest_s *= _FORGET_LARGER if larger else _FORGET
        if rows >= LEARN_FROM_ROWS and larger:
            self._seconds = _KEEP * self._seconds + max(seconds - self.quickest_s, 0.0)
            self._rows = _KEEP * self._rows + rows - self.quickest_rows

    @property
    def known(self) -> bool:
        return self._rows > 0

    @property
    def seconds_per_row(self) -> float:
        """0 until it is known."""
        return self._seconds / self._rows if self._rows else 0.0
