"""Whether stated bounds were missed no more often than they say: one verdict over all rows of all seeds.

Judged is every revision of a view with a contract: each value that has a bound, if that is a share of the value, is
compared with the oracle over all records. Such a bound may be missed with chance delta = 1 - `confidence`. A bound of
0 is the claim to be exact. Claims that hold are many, because every window ends exact; so they are judged apart, each
of the two kinds by its own rate, and neither hides the other. A stream with a source that broke its word (it stated
progress, and sent something older afterwards) is not judged: such a statement is believed.

Rows of a run depend on each other, runs of different seeds do not. So the verdict is about seeds: of seed i let d(i) be
the bounds that were missed less those that may be, the sum of their deltas. If bounds keep their rate, d has a mean of
at most 0. With n seeds, its sum and its standard error s, the mean lies above (sum d - z s) / n with the confidence
that z belongs to (normal limit of a sum of independent terms); a campaign fails if that is more than 0. It shows that
the rate is kept if also (sum d + z s) / n is at most 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from catchment.aggregates.shed_terms import terms_in
from catchment.center.results.bounds import is_indirect
from catchment.center.results.layout import key_columns
from catchment.quality.published import BoundKind
from catchment.query.plan import QueryPlan
from catchment.testing.simulated.tables import MemoryStore

CONFIDENCE = 0.999  # of the verdict, one-sided
Z = 3.0902  # the normal quantile of that confidence
FEW_SEEDS = 30  # below which the normal limit says nothing
_TOLERANCE = 1e-9
_JUDGED = (str(BoundKind.EXACT), str(BoundKind.PROVED), str(BoundKind.ESTIMATED))  # shares of the value, not of ranks

Truth = Mapping[int, Mapping[tuple[Any, ...], tuple[Any, ...]]]  # values by window and key


@dataclass
class BoundTally:
    """How many bounds of one kind a run has stated, how many of them were missed, and how many may be."""

    stated: int = 0
    missed: int = 0
    allowed: float = 0.0

    def add(self, other: BoundTally) -> None:
        self.stated += other.stated
        self.missed += other.missed
        self.allowed += other.allowed

    def count(self, *, is_missed: bool, delta: float) -> None:
        """Count one bound that may be missed with chance delta."""
        self.stated += 1
        self.missed += is_missed
        self.allowed += delta


@dataclass
class RunTally:
    """The bounds that one run has stated: those above 0, and claims to be exact."""

    bounds: BoundTally = field(default_factory=BoundTally)
    exact: BoundTally = field(default_factory=BoundTally)

    def add(self, other: RunTally) -> None:
        self.bounds.add(other.bounds)
        self.exact.add(other.exact)


@dataclass
class BoundVerdict:
    """The tallies of many seeds for one kind of bound, and what follows from them."""

    total: BoundTally
    seeds: int = 0  # that have stated a bound
    squares: float = 0.0  # of missed - allowed, per seed

    @classmethod
    def of(cls, tallies: Iterable[BoundTally]) -> BoundVerdict:
        """Return the verdict over seeds."""
        verdict = cls(BoundTally())
        for tally in tallies:
            verdict.add(tally)
        return verdict

    def add(self, tally: BoundTally) -> None:
        """Count one more seed."""
        if tally.stated:
            self.seeds += 1
            self.total.add(tally)
            self.squares += (tally.missed - tally.allowed) ** 2

    @property
    def missed_share(self) -> float:
        return self.total.missed / max(self.total.stated, 1)

    @property
    def allowed_share(self) -> float:
        return self.total.allowed / max(self.total.stated, 1)

    @property
    def margin(self) -> float:
        """By how much the missed share may be off, with the confidence of the verdict."""
        return Z * math.sqrt(self.squares) / max(self.total.stated, 1)

    @property
    def is_refuted(self) -> bool:
        """Whether more bounds were missed than chance explains."""
        return self.seeds >= FEW_SEEDS and self.missed_share - self.margin > self.allowed_share

    @property
    def is_shown(self) -> bool:
        """Whether no more bounds are missed than may be, with the confidence of the verdict."""
        return self.seeds >= FEW_SEEDS and self.missed_share + self.margin <= self.allowed_share

    def describe(self) -> str:
        """Return the verdict in one line."""
        if not self.total.stated:
            return "no bound was stated"
        total = self.total
        rate = (
            f"{self.missed_share:.2%} missed, {self.missed_share + self.margin:.2%} at most (confidence {CONFIDENCE})"
        )
        return f"{total.stated} in {self.seeds} seeds: {rate}; {self.allowed_share:.2%} may be"


@dataclass
class Verdicts:
    """The verdict over bounds above 0, and the one over claims to be exact."""

    bounds: BoundVerdict = field(default_factory=lambda: BoundVerdict(BoundTally()))
    exact: BoundVerdict = field(default_factory=lambda: BoundVerdict(BoundTally()))

    def add(self, tally: RunTally) -> None:
        """Count one more seed."""
        self.bounds.add(tally.bounds)
        self.exact.add(tally.exact)

    @property
    def is_refuted(self) -> bool:
        """Whether more bounds of either kind were missed than chance explains."""
        return self.bounds.is_refuted or self.exact.is_refuted

    @property
    def is_shown(self) -> bool:
        """Whether both rates are kept, with the confidence of the verdict."""
        return self.bounds.is_shown and self.exact.is_shown

    def describe(self) -> str:
        """Return both verdicts in one line."""
        return f"bounds above 0: {self.bounds.describe()} | claims to be exact: {self.exact.describe()}"


def tally_bounds(store: MemoryStore, plan: QueryPlan, truth: Truth) -> RunTally:
    """Return how the bounds of a view have held; `truth` has the values of its aggregates by window and key."""
    tally = RunTally()
    if plan.options.max_error is None or plan.lower is not None:
        return tally  # without a contract a bound is about what was received, which the oracle does not know
    delta = 1.0 - plan.options.confidence
    is_learned = is_indirect(plan)  # whether it is exact is what its streams state, which views of one stream judge
    for bound, error in _statements(store, plan, truth):
        kind = tally.bounds if bound else tally.exact
        if bound or not is_learned:
            kind.count(is_missed=error > bound + _TOLERANCE, delta=delta)
    return tally


def _statements(store: MemoryStore, plan: QueryPlan, truth: Truth) -> Iterator[tuple[float, float]]:
    """Yield the bound and the error of each value that was published with a bound, as amounts."""
    rows = store.rows("results", plan.name)
    if rows is None:
        return
    terms = terms_in(plan.fragment.aggregates)
    places = {name: i for i, name in enumerate(a.name for a in plan.fragment.aggregates if a not in terms)}
    columns = {c.name: places[c.source] for c in plan.columns if c.source in places}
    takes_back = plan.join is not None and plan.join.gives_alone
    nothing = (0,) * len(places)
    starts_us = rows["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    keys = [column.to_pylist() for column in key_columns(rows).values()]
    for number, row in enumerate(rows.to_pylist()):
        right = truth.get(starts_us[number], {}).get(tuple(key[number] for key in keys))
        if right is None and takes_back:
            right = nothing  # a row that a late partner takes back is off by all that it has
        if right is None or row["retracted"]:
            continue
        for column, place in columns.items():
            if row["bound_kind"][column] in _JUDGED and row[column] is not None and right[place] is not None:
                yield row["bound"][column] * abs(right[place]), abs(row[column] - right[place])
