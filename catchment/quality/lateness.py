"""What a whole window lacks, from what each of its sites believes it lacks.

A site lets a window go with an estimate: the share of its records that are in, the relative error that its own answer
stays under, and the records and total it holds. Sums, counts and ranks of several sites err by at most the weighted
mean of their bounds, the weights being what each site's whole answer is expected to be. An average errs besides by
what the shares that are missing shift between sites whose averages differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.errors import QualityError
from catchment.quality.coverage import Measure


@dataclass(frozen=True, slots=True)
class Estimate:
    """One site's part of one quantity of a window; `bound` is None where it is not known."""

    coverage: float
    bound: float | None
    count: float
    total: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.coverage <= 1.0 or self.count < 0 or not (self.bound is None or self.bound >= 0.0):
            raise QualityError(f"an estimate has a coverage from 0 to 1, and no negative bound or count: {self}")

    @property
    def whole_count(self) -> float:
        """Records expected in all."""
        return self.count / self.coverage if self.coverage else self.count

    @property
    def whole_total(self) -> float:
        return self.total / self.coverage if self.coverage else self.total


def expected_count(parts: Sequence[Estimate]) -> float:
    """Records that the window is expected to have in the end."""
    return sum(part.whole_count for part in parts)


def whole_bound(measure: Measure, parts: Sequence[Estimate]) -> float | None:
    """The relative error (for a quantile: of rank) of the window's answer; None where a site's is not known."""
    if any(part.bound is None for part in parts):
        return None
    by_total = measure.name in ("sum", "avg")
    weights = [abs(part.whole_total) if by_total else part.whole_count for part in parts]
    size = abs(sum(part.whole_total for part in parts)) if by_total else sum(weights)
    if not size:
        return 0.0 if all(not part.bound for part in parts) else None
    inside = sum(w * (part.bound or 0.0) for w, part in zip(weights, parts, strict=True)) / size
    return inside + (_shift(parts) if measure.name == "avg" else 0.0)


def _shift(parts: Sequence[Estimate]) -> float:
    """How far the average of what is in is from the expected average of all, because sites lack different shares."""
    count, whole = sum(p.count for p in parts), expected_count(parts)
    if not count or not whole:
        return 0.0
    here = sum(p.total for p in parts) / count
    there = sum(p.whole_total for p in parts) / whole
    return abs(here - there) / abs(there) if there else 0.0
