"""What work costs: seconds of a job as a fixed part and a part per row, learned from what jobs took.

The fixed part is the least that a job ever took, forgotten slowly; the rest is put down to the rows. Small batches tell
nothing about the cost of a row and are not learned from.
"""

from __future__ import annotations

from dataclasses import dataclass

LEARN_FROM_ROWS = 4_000
_KEEP = 0.7  # of what was known when the next batch is learned from
_FORGET = 1.01  # by which the least time grows with each job


@dataclass
class CostModel:
    """One kind of job."""

    fixed_s: float | None = None
    _seconds: float = 0.0
    _rows: float = 0.0

    def learn(self, rows: float, seconds: float) -> None:
        """A job over so many rows took so long."""
        self.fixed_s = seconds if self.fixed_s is None else min(self.fixed_s * _FORGET, seconds)
        if rows >= LEARN_FROM_ROWS:
            self._seconds = _KEEP * self._seconds + max(seconds - self.fixed_s, 0.0)
            self._rows = _KEEP * self._rows + rows

    @property
    def known(self) -> bool:
        return self._rows > 0

    @property
    def seconds_per_row(self) -> float:
        """0 until it is known."""
        return self._seconds / self._rows if self._rows else 0.0
