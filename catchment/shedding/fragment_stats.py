"""What is known of a fragment's records, and what its answers therefore need.

A fragment is planned for in portions: one, or, where the reader can distinguish its groups, one per size of group. A
portion knows the share of the stream's records that it wants and how many records a window of it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from catchment.arrays import Floats
from catchment.quality.populations import Population
from catchment.shedding.forest import QueryNode
from catchment.shedding.laws import spare_limit
from catchment.shedding.sampler import SparedValues
from catchment.shedding.strata import size_classes
from catchment.wire.frames.limits import MAX_STRATA

PRIOR_CV = 1.0  # prior coefficient of variation of values
_DECAY = 0.7  # weight of all earlier batches, per batch
_MIN_GROUP_RECORDS = 0.5  # groups with fewer (decayed) records are forgotten


@dataclass(frozen=True)
class SheddableFragment:
    """A fragment as the planner sees it, its aggregates as (name, function).

    `fixed`: it is never sampled. `filterable`: the reader can tell which records concern it. `spareable`: the
    aggregates whose argument, as Spark SQL, is visible where records are sampled, so that records with large values can
    all be taken. `group_key`: its only key, as Spark SQL, where that is visible there.
    """

    name: str
    aggregates: tuple[tuple[str, str], ...]
    window_s: float
    max_error: float | None = None
    weight: float = 1.0
    fixed: bool = False
    filterable: bool = False
    spareable: tuple[tuple[str, str], ...] = ()
    group_key: str | None = None


@dataclass(frozen=True)
class ValueMoments:
    """The number, mean and mean square of the values that may be left out, and the mean of all values.

    `spared`: large values are not among those that may be left out.
    """

    count: float
    mean: float
    square: float
    mean_of_all: float
    spared: bool = False

    @property
    def known(self) -> bool:
        return self.count > 0 and all(math.isfinite(x) for x in (self.mean, self.square, self.mean_of_all))

    @property
    def square_about_mean(self) -> float:
        """Return the mean square, about the mean of all, of what may be left out."""
        return max(self.square - 2.0 * self.mean * self.mean_of_all + self.mean_of_all**2, 0.0)

    def after(self, known: ValueMoments | None) -> ValueMoments:
        """Return the moments merged with earlier ones, which count for less; without them if they are of other values.

        Moments with and without large values are of different values.
        """
        if known is None or known.spared != self.spared:
            return self
        before = _DECAY * known.count
        weight = before / (before + self.count)

        def mix(old: float, new: float) -> float:
            return weight * old + (1.0 - weight) * new

        return ValueMoments(
            before + self.count,
            mix(known.mean, self.mean),
            mix(known.square, self.square),
            mix(known.mean_of_all, self.mean_of_all),
            self.spared,
        )

    def once_spared(self, rate: float) -> ValueMoments:
        """Return an upper estimate of the moments when large values will be spared at about this rate.

        Values of one sign that are at most L have a mean square of at most L times their mean.
        """
        limit = spare_limit("sum", self.square, self.mean_of_all, rate)
        if self.spared or math.isinf(limit):
            return self
        return replace(self, square=max(min(self.square, limit * abs(self.mean_of_all)), self.mean**2))

    def population(self, count: float, function: str) -> Population:
        """Return a population of this many values, with the mean of all and the spread of what may be left out.

        An error is relative to the whole answer.
        """
        if function == "avg":
            variance = self.square_about_mean
        else:
            variance = max(self.square - self.mean_of_all**2, 0.0)
        return Population(count, self.mean_of_all, math.sqrt(variance))


_PRIOR_MOMENTS = ValueMoments(0.0, 1.0, 1.0 + PRIOR_CV**2, 1.0)
MomentsByArgument = Mapping[str, ValueMoments]


@dataclass
class FragmentStats:
    """What the answers of a fragment are made of; earlier batches decay, and large batches count more than small ones.

    Of the rows, `reached` concern the fragment, and `typical` of these are of a typical group. `pace` is how many rows
    a second of event time has per row that arrives in a second.
    """

    rows: float = 0.0
    reached: float = 0.0
    rows_per_reached: float = 0.0  # rows / records that reached it, summed with weight rows
    typical: float = 0.0
    pace: float = 1.0
    moments: dict[str, ValueMoments] = field(default_factory=dict)  # by aggregate
    groups: dict[int | str, float] = field(default_factory=dict)  # value of the key -> records, if all are known
    spared_share: float = 0.0  # share of the rows of the last batch that were spared
    limits: dict[str, float] = field(default_factory=dict)  # argument -> the limit beyond which values are spared

    @property
    def selectivity(self) -> float:
        return self.reached / self.rows if self.rows else 1.0

    @property
    def least_selectivity(self) -> float:
        """Return the selectivity of batches with few records of the fragment.

        Variances are proportional to 1 / N, and the mean of 1 / N is that of the harmonic mean of N.
        """
        if not self.rows_per_reached:
            return self.selectivity
        return min(self.rows / self.rows_per_reached, self.selectivity)

    @property
    def group_share(self) -> float:
        return self.typical / self.reached if self.reached else 1.0

    def learn_sizes(self, rows: float, groups: Floats, mass: float) -> None:
        """Learn how many records (scaled) of each group reached the fragment, of this many rows."""
        reached = float(groups.sum())
        self.rows = _DECAY * self.rows + rows
        self.reached = _DECAY * self.reached + reached
        self.rows_per_reached = _DECAY * self.rows_per_reached + rows * rows / (reached + 1.0)
        self.typical = _DECAY * self.typical + (typical_size(groups, mass) if groups.any() else 0.0)

    def learn_groups(self, groups: Mapping[int | str, float]) -> None:
        """Learn how many records (scaled) each group had; more than `MAX_STRATA` groups are not distinguished."""
        decayed = ((value, _DECAY * size) for value, size in self.groups.items())
        known = {value: size for value, size in decayed if size >= _MIN_GROUP_RECORDS}
        known |= {value: size + known.get(value, 0.0) for value, size in groups.items()}
        self.groups = known if len(known) <= MAX_STRATA else {}

    def learn_moments(self, aggregate: str, moments: ValueMoments) -> None:
        """Learn the moments of the argument of an aggregate."""
        if moments.known:
            self.moments[aggregate] = moments.after(self.moments.get(aggregate))

    def learn_spared(self, rows: int, spared: int) -> None:
        """Learn how many of the rows of the last batch were spared."""
        self.spared_share = spared / rows if rows else 0.0

    def spared_values(self, fragment: SheddableFragment, rate: float, others: MomentsByArgument) -> SparedValues:
        """Return the limits beyond which records are all taken, by the argument in which they are seen.

        Where more records were spared than are sampled, the moments were wrong, and the limit grows by as much: values
        with a mean exceed twice a limit at most half as often.
        """
        sampled = rate * min(self.selectivity, 1.0)
        excess = self.spared_share / sampled if sampled else 0.0
        limits = {
            argument: max(limit, excess * self.limits.get(argument, 0.0))
            for argument, limit in self._worthwhile_limits(fragment, rate, others).items()
        }
        self.limits = {argument: limit for argument, limit in limits.items() if math.isfinite(limit)}
        return tuple(sorted(self.limits.items()))

    def _worthwhile_limits(
        self, fragment: SheddableFragment, rate: float, others: MomentsByArgument
    ) -> dict[str, float]:
        """Return by argument the least limit beyond which a record is worth what it costs."""
        limits: dict[str, float] = {}
        functions = dict(fragment.aggregates)
        for aggregate, argument in fragment.spareable:
            moments = self.moments.get(aggregate, others.get(argument))
            if moments is None:
                continue
            function = functions[aggregate]
            square = moments.square_about_mean if function == "avg" else moments.square
            limit = spare_limit(function, square, moments.mean_of_all, rate)
            limits[argument] = min(limit, limits.get(argument, math.inf))
        return limits


@dataclass(frozen=True)
class Portion:
    """A fragment, or its groups of about one size (`values`), which hold this share of its records."""

    fragment: SheddableFragment
    stats: FragmentStats
    name: str
    share: float = 1.0
    group_share: float = 1.0  # share of the records of the smallest group that counts
    values: tuple[int | str, ...] = ()
    others: MomentsByArgument = field(default_factory=dict)  # what is known of the same values in other fragments

    @property
    def operator(self) -> str:
        """Return the name of its operator in the forest."""
        return f"work:{self.name}"

    @property
    def picks(self) -> float:
        """Return the share of the rows that have to be read for it."""
        return min(1.0, self.stats.selectivity if self.fragment.filterable else 1.0) * self.share

    def queries(self, arriving_per_s: float, rate: float) -> tuple[QueryNode, ...]:
        """Return its queries while this many rows arrive, about this share of which can be taken."""
        fragment = self.fragment
        unseen = self.stats.rows > 0 and not self.stats.reached
        if fragment.fixed or (unseen and fragment.filterable):  # an unseen fragment costs nothing if it is filtered
            return (QueryNode(f"{self.name}/whole", self.operator, "count", Population(0.0)),)
        # A fragment that cannot be filtered at the reader must not dominate the plan before its records were seen.
        reached = 1.0 if unseen else self.stats.least_selectivity
        count = arriving_per_s * self.stats.pace * reached * self.group_share * fragment.window_s
        return tuple(
            QueryNode(
                f"{self.name}/{name}",
                self.operator,
                function,
                self._population(max(count, 1.0), name, function, rate),
                fragment.weight,
                fragment.max_error,
            )
            for name, function in fragment.aggregates
        )

    def _population(self, count: float, name: str, function: str, rate: float) -> Population:
        argument = dict(self.fragment.spareable).get(name, "")
        moments = self.stats.moments.get(name, self.others.get(argument, _PRIOR_MOMENTS))
        if function == "count" or moments.mean_of_all == 0.0:
            return Population(count)
        return (moments.once_spared(rate) if argument else moments).population(count, function)


def known_values(fragments: Sequence[SheddableFragment], stats: Mapping[str, FragmentStats]) -> dict[str, ValueMoments]:
    """Return the moments of each argument, of the fragment that has seen most of it.

    A fragment that has not seen its own values yet is planned for by these.
    """
    found: dict[str, ValueMoments] = {}
    for fragment in fragments:
        for aggregate, argument in fragment.spareable:
            moments = stats[fragment.name].moments.get(aggregate)
            if moments is not None and (argument not in found or moments.count > found[argument].count):
                found[argument] = moments
    return found


def portions_of(
    fragment: SheddableFragment, stats: FragmentStats, mass: float, others: MomentsByArgument
) -> Iterator[Portion]:
    """Yield the portions that a fragment is planned for in; of its groups, those that carry the mass count."""
    if fragment.fixed or fragment.group_key is None or len(stats.groups) < 2:
        yield Portion(fragment, stats, fragment.name, group_share=stats.group_share, others=others)
        return
    for number, found in enumerate(size_classes(stats.groups, mass)):
        name = f"{fragment.name}/{number}"
        yield Portion(fragment, stats, name, found.share, found.least_share, found.names, others)


def typical_size(groups: Floats, mass: float) -> float:
    """Return the size of the smallest of the groups that carry the mass."""
    ordered = np.sort(groups)[::-1]
    cumulative = np.cumsum(ordered)
    last = int(np.searchsorted(cumulative, mass * cumulative[-1]))
    return float(ordered[min(last, len(ordered) - 1)])
