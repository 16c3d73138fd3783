"""What a whole window lacks, from what each of its sites is believed to lack.

A site closes a window with an estimate: the share of its records that are in, the relative error that its own answer
stays under, and the records and total it holds. From an error b of a site that holds h follows what it lacks at most:
h b / (1 - b), because b is relative to the whole. These amounts add up over sites, and they bound every part of the
window too: a group cannot lack more records than its window. Sums must be of values of one sign.

An average errs by its sites' bounds, and in addition by what the missing shares shift between sites whose averages
differ; of a group it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from catchment.errors import QualityError
from catchment.storage.codec import stored

if TYPE_CHECKING:  # whoever only carries estimates need not load all aggregates
    from catchment.quality.contract import Measure, WatchedQuantity


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


@stored()
@dataclass(frozen=True, slots=True)
class ColumnLateness:
    """What late records may change of one aggregate, over the whole window; None where it is not known.

    `error` is relative to the whole answer (for a quantile: of rank), `amount` the most that is missing of a sum.
    """

    column: str
    error: float | None
    amount: float | None = None


@stored()
@dataclass(frozen=True, slots=True)
class Lateness:
    """What a window lacks because records are late: at most `records` of them, beside those `received`.

    None where that is not known. `is_counted`: the records are registered and were counted; otherwise their number is
    what the sites are believed to lack, or what windows usually have.
    """

    records: float | None
    received: float
    columns: tuple[ColumnLateness, ...] = ()
    is_counted: bool = False

    def of(self, column: str) -> ColumnLateness:
        """Return what is known of one aggregate."""
        return next((c for c in self.columns if c.column == column), ColumnLateness(column, None))


def merge_lateness(watched: Sequence[WatchedQuantity], parts: Sequence[Sequence[SiteEstimate]]) -> Lateness:
    """Return what a window lacks, from the estimates of its sites per watched quantity."""
    records: list[float] = []
    columns: list[ColumnLateness] = []
    for quantity, estimates in zip(watched, parts, strict=True):
        measure = quantity.measure
        amount = missing_amount(measure, estimates)
        if measure.name in ("count", "quantile") and amount is not None:
            records.append(amount)
        error = whole_bound(measure, estimates) if quantity.bounded else None
        columns += [ColumnLateness(c, error, amount if measure.name == "sum" else None) for c in quantity.columns]
    received = max((sum(part.count for part in estimates) for estimates in parts), default=0.0)
    return Lateness(max(records, default=None), received, tuple(columns))


def missing_amount(measure: Measure, parts: Sequence[SiteEstimate]) -> float | None:
    """Return how many records, or how much of a sum, the sites lack at most; None where that is not known."""
    by_total = measure.name == "sum"
    if measure.name == "avg" or (by_total and len({part.total > 0 for part in parts if part.total}) > 1):
        return None
    factor = measure.rank_factor if measure.name == "quantile" else 1.0
    amount = 0.0
    for part in parts:
        if part.bound is None or part.bound >= factor:
            return None
        error = part.bound / factor
        held = abs(part.total) if by_total else part.count
        if error and not held:
            return None
        amount += held * error / (1.0 - error)
    return amount


def whole_bound(measure: Measure, parts: Sequence[SiteEstimate]) -> float | None:
    """Return the relative error (for a quantile: of rank) of the window's answer; None where it is not known."""
    if any(part.bound is None for part in parts):
        return None
    if measure.name == "avg":
        return _average_bound(parts)
    amount = missing_amount(measure, parts)
    if amount is None:
        return None
    held = abs(sum(part.total for part in parts)) if measure.name == "sum" else sum(part.count for part in parts)
    if not amount:
        return 0.0
    factor = measure.rank_factor if measure.name == "quantile" else 1.0
    return factor * amount / (held + amount)


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
