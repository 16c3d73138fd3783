"""What is known of a fragment's records, and what its answers therefore need.

A fragment is planned for in portions: one, or, where whoever reads can tell its groups apart, one for each size of
group. A portion knows the share of the stream's records that it wants and how large a window of it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from catchment.quality.populations import Population
from catchment.shedding.debts import Spare
from catchment.shedding.forest import Query
from catchment.shedding.strata import size_classes
from catchment.shedding.variance_need import spare_limit

PRIOR_CV = 1.0  # spread of values over their mean, until records have shown it
_KEPT = 0.7  # of what was known when the next batch is learned from
_LEAST_GROUP = 0.5  # records: a group with less has not been seen for long

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sheddable:
    """A fragment as the planner sees it, its aggregates as (name, function). `fixed`: it is never sampled.
    `picked`: the reader can tell which records concern it. `spareable`: of which aggregates the reader sees the
    argument, as Spark SQL, so that records with large values can all be taken. `group_key`: its only key, as Spark SQL,
    where the reader sees that."""

    name: str
    aggregates: tuple[tuple[str, str], ...]
    window_s: float
    max_error: float | None = None
    weight: float = 1.0
    fixed: bool = False
    picked: bool = False
    spareable: tuple[tuple[str, str], ...] = ()
    group_key: str | None = None


@dataclass(frozen=True)
class Moments:
    """Of so many values, the mean and the mean square of those that may be left out, and the mean of all; `spared`:
    large ones may not be left out."""

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
        """The mean square of what may be left out about the mean of all."""
        return max(self.square - 2.0 * self.mean * self.mean_of_all + self.mean_of_all**2, 0.0)

    def after(self, known: Moments | None) -> Moments:
        """With what was known before, which counts for less; nothing if that was of other values."""
        if known is None or known.spared != self.spared:
            return self
        before = _KEPT * known.count
        part = before / (before + self.count)

        def mixed(old: float, new: float) -> float:
            return part * old + (1.0 - part) * new

        return Moments(
            before + self.count,
            mixed(known.mean, self.mean),
            mixed(known.square, self.square),
            mixed(known.mean_of_all, self.mean_of_all),
            self.spared,
        )

    def once_spared(self, rate: float) -> Moments:
        """As they will be when large values are spared at about this rate, before that was seen: of values of one sign
        that are at most L, the mean square is at most L times the mean."""
        limit = spare_limit("sum", self.square, self.mean_of_all, rate)
        if self.spared or math.isinf(limit):
            return self
        return replace(self, square=max(min(self.square, limit * abs(self.mean_of_all)), self.mean**2))

    def population(self, count: float, function: str) -> Population:
        """As many values, whose spread is that of what may be left out, beside the mean of all: an error is a share
        of the whole answer."""
        rest = self.square_about_mean if function == "avg" else max(self.square - self.mean_of_all**2, 0.0)
        return Population(count, self.mean_of_all, math.sqrt(rest))


ByArgument = Mapping[str, Moments]


@dataclass
class Shape:
    """What a fragment's answers are made of: of the rows, those that reach it; of these, those of a typical group; and
    the moments of what is aggregated. The last batches count most, and large ones more than small ones. `pace` is how
    many rows a second of event time has for one that arrives a second."""

    rows: float = 0.0
    reached: float = 0.0
    per_reached: float = 0.0  # rows for one that reaches it, times rows
    typical: float = 0.0
    pace: float = 1.0
    moments: dict[str, Moments] = field(default_factory=dict)  # by aggregate
    groups: dict[int | str, float] = field(default_factory=dict)  # value of the key -> records, where all are known
    spared_share: float = 0.0  # of the rows of the last batch
    limits: dict[str, float] = field(default_factory=dict)  # argument -> the size beyond which its records were spared

    @property
    def selectivity(self) -> float:
        return self.reached / self.rows if self.rows else 1.0

    @property
    def least_selectivity(self) -> float:
        """That of batches with few records of it: variances are shares of 1 / N, whose mean is that of the harmonic
        mean of N."""
        return min(self.rows / self.per_reached, self.selectivity) if self.per_reached else self.selectivity

    @property
    def group_share(self) -> float:
        return self.typical / self.reached if self.reached else 1.0

    def learn(self, rows: float, groups: Floats, mass: float) -> None:
        """So many records (scaled) of each group reached the fragment, of so many rows."""
        reached = float(groups.sum())
        self.rows = _KEPT * self.rows + rows
        self.reached = _KEPT * self.reached + reached
        self.per_reached = _KEPT * self.per_reached + rows * rows / (reached + 1.0)
        self.typical = _KEPT * self.typical + (typical_size(groups, mass) if groups.any() else 0.0)

    def learn_groups(self, groups: Mapping[int | str, float], most: int) -> None:
        """So many records (scaled) had each group; more than `most` groups are not told apart."""
        known = {value: _KEPT * size for value, size in self.groups.items() if _KEPT * size >= _LEAST_GROUP}
        known |= {value: size + known.get(value, 0.0) for value, size in groups.items()}
        self.groups = known if len(known) <= most else {}

    def spare(self, fragment: Sheddable, rate: float, others: ByArgument) -> Spare:
        """The sizes beyond which records are all taken, by the argument that they are seen in. Where more were spared
        than are sampled, what was known of the values was wrong, and the limit goes up by as much: of values with a
        mean, twice the size is found at most half as often."""
        limits: dict[str, float] = {}
        functions = dict(fragment.aggregates)
        for aggregate, argument in fragment.spareable:
            if (seen := self.moments.get(aggregate, others.get(argument))) is not None:
                square = seen.square_about_mean if functions[aggregate] == "avg" else seen.square
                limit = spare_limit(functions[aggregate], square, seen.mean_of_all, rate)
                limits[argument] = min(limit, limits.get(argument, math.inf))
        sampled = rate * min(self.selectivity, 1.0)
        excess = self.spared_share / sampled if sampled else 0.0
        limits = {a: max(limit, excess * self.limits.get(a, 0.0)) for a, limit in limits.items()}
        self.limits = {argument: limit for argument, limit in limits.items() if math.isfinite(limit)}
        return tuple(sorted(self.limits.items()))


@dataclass(frozen=True)
class Portion:
    """A fragment, or its groups of about one size (`values`), which hold this share of its records."""

    fragment: Sheddable
    shape: Shape
    name: str
    share: float = 1.0
    group_share: float = 1.0  # that of the smallest group that counts
    values: tuple[int | str, ...] = ()
    others: ByArgument = field(default_factory=dict)  # what is known of the same values in other fragments

    @property
    def work(self) -> str:
        return f"work:{self.name}"

    @property
    def picks(self) -> float:
        """The share of the rows that have to be read for it."""
        return min(1.0, self.shape.selectivity if self.fragment.picked else 1.0) * self.share

    def queries(self, arriving_per_s: float, rate: float) -> tuple[Query, ...]:
        """What is asked of it while so many rows arrive, about this share of which can be taken."""
        fragment = self.fragment
        unseen = self.shape.rows > 0 and not self.shape.reached
        if fragment.fixed or (unseen and fragment.picked):  # no rate below 1 says anything; what is not there is free
            return (Query(f"{self.name}/whole", self.work, "count", Population(0.0)),)
        reached = (
            1.0 if unseen else self.shape.least_selectivity
        )  # who cannot be picked must not rule before he is seen
        count = arriving_per_s * self.shape.pace * reached * self.group_share * fragment.window_s
        return tuple(
            Query(f"{self.name}/{name}", self.work, function, self._population(max(count, 1.0), name, function, rate),
                  fragment.weight, fragment.max_error)
            for name, function in fragment.aggregates
        )  # fmt: skip

    def _population(self, count: float, name: str, function: str, rate: float) -> Population:
        argument = dict(self.fragment.spareable).get(name, "")
        seen = self.shape.moments.get(name, self.others.get(argument, _PRIOR))
        if function == "count" or seen.mean_of_all == 0.0:
            return Population(count)
        return (seen.once_spared(rate) if argument else seen).population(count, function)


_PRIOR = Moments(0.0, 1.0, 1.0 + PRIOR_CV**2, 1.0)


def known_values(fragments: Sequence[Sheddable], shapes: Mapping[str, Shape]) -> dict[str, Moments]:
    """The moments of each argument, of the fragment that has seen most of it: until a fragment has seen values of its
    own, they are taken to be like those."""
    found: dict[str, Moments] = {}
    for fragment in fragments:
        for aggregate, argument in fragment.spareable:
            seen = shapes[fragment.name].moments.get(aggregate)
            if seen is not None and (argument not in found or seen.count > found[argument].count):
                found[argument] = seen
    return found


def portions_of(fragment: Sheddable, shape: Shape, mass: float, others: ByArgument) -> Iterator[Portion]:
    """What a fragment is planned for in; of its groups, those that carry the mass count."""
    if fragment.fixed or fragment.group_key is None or len(shape.groups) < 2:
        yield Portion(fragment, shape, fragment.name, group_share=shape.group_share, others=others)
        return
    for place, found in enumerate(size_classes(shape.groups, mass)):
        name = f"{fragment.name}/{place}"
        yield Portion(fragment, shape, name, found.share, found.least_share, found.names, others)


def typical_size(groups: Floats, mass: float) -> float:
    """The size of the smallest of the groups that carry the mass."""
    ordered = np.sort(groups)[::-1]
    held = np.cumsum(ordered)
    return float(ordered[min(int(np.searchsorted(held, mass * held[-1])), len(ordered) - 1)])
