"""What a whole window lacks, from what each of its sites is believed to lack.

A site closes a window with an estimate: the share of its records that are in, the relative error that its own answer
stays under, and the records and total it holds. Sums, counts and ranks of several sites err by at most the weighted
mean of their bounds, the weights being what each site's whole answer is expected to be. An average errs in addition by
what the missing shares shift between sites whose averages differ. Sums and averages must be of values of one sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.errors import QualityError
from catchment.quality.contract import Measure
from catchment.storage.codec import stored


@stored()
@dataclass(frozen=True, slots=True)
class SiteEstimate:
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
        """The records expected in the end."""
        return self.count / self.coverage if self.coverage else self.count

    @property
    def whole_total(self) -> float:
        """The total expected in the end."""
        return self.total / self.coverage if self.coverage else self.total


def expected_count(parts: Sequence[SiteEstimate]) -> float:
    """Return the records that the window is expected to have in the end."""
    return sum(part.whole_count for part in parts)


def whole_bound(measure: Measure, parts: Sequence[SiteEstimate]) -> float | None:
    """Return the relative error (for a quantile: of rank) of the window's answer; None where a site's is unknown."""
    if any(part.bound is None for part in parts):
        return None
    if measure.name == "avg":
        return _average_bound(parts)
    by_total = measure.name == "sum"
    weights = [abs(part.whole_total) if by_total else part.whole_count for part in parts]
    size = abs(sum(part.whole_total for part in parts)) if by_total else sum(weights)
    if not size:
        return 0.0 if all(not part.bound for part in parts) else None
    return sum(w * (part.bound or 0.0) for w, part in zip(weights, parts, strict=True)) / size


def _average_bound(parts: Sequence[SiteEstimate]) -> float | None:
    """Return the bound of an average over all parts.

    With a_s the average that a site holds, A_s its true one, W_s its share of all records: the whole is off by the
    sum of W_s (a_s - A_s), at most a weighted mean of the bounds, and by what the missing shares shift.
    """
    count = sum(p.count for p in parts)
    whole = expected_count(parts)
    if not count or not whole:
        return 0.0 if all(not part.bound for part in parts) else None
    held_average = sum(p.total for p in parts) / count
    whole_average = sum(p.whole_total for p in parts) / whole
    if not whole_average:
        return 0.0 if all(not part.bound for part in parts) and not held_average else None
    largest = max(part.bound or 0.0 for part in parts)
    return _largest_mean(parts) + (1.0 + largest) * abs(held_average - whole_average) / abs(whole_average)


def _largest_mean(parts: Sequence[SiteEstimate]) -> float:
    """Return the most that the mean of the bounds can be, weighted by totals that are only known within the bounds."""
    known = sorted(((p.bound or 0.0, abs(p.whole_total)) for p in parts), reverse=True)
    if known[0][0] >= 1.0:
        return known[0][0]
    high = [w / (1.0 - b) for b, w in known]
    low = [w / (1.0 + b) for b, w in known]
    means = []
    for k in range(1, len(known) + 1):
        weights = high[:k] + low[k:]
        size = sum(weights)
        means.append(sum(w * b for w, (b, _) in zip(weights, known, strict=True)) / size if size else 0.0)
    return max(means)
