"""Rates per group, so that the smallest group does not prevent shedding.

Under one sampler, an answer GROUP BY key is as wrong as its smallest group, and the rate that this group needs is
forced on all. But the rate that a group needs falls with the root of its size, so with a rate of its own each group can
have the same error, and few records of the large groups are taken. All records of an unknown group are taken: a new
group is small.

Where even that takes too much (very many tiny groups), a contract may be on the groups that carry the mass: the largest
that together hold a given share of the records. The others are then sampled as the largest is, and their answers carry
the bounds that follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from catchment.errors import QualityError
from catchment.quality.populations import Population
from catchment.shedding.laws import AnyNeed, Law, make_need
from catchment.shedding.water_filling import Piece, solve_by_bisection, solve_capacity

SIZE_STEPS = 2  # groups whose sizes differ by less than 2 ** (1 / SIZE_STEPS) may share a rate

Name = TypeVar("Name", int, str, int | str)


@dataclass(frozen=True)
class SizeClass(Generic[Name]):
    """Groups of about one size: the share of all records that they hold together, and that of the smallest."""

    names: tuple[Name, ...]
    share: float
    least_share: float


def size_classes(sizes: Mapping[Name, float], mass: float = 1.0) -> tuple[SizeClass[Name], ...]:
    """Return groups by size, largest first, so that many groups need few rates.

    Only those that carry the mass count; the others join the smallest of these.
    """
    total = math.fsum(sizes.values())
    rows = {str(name): Population(size) for name, size in sizes.items()}
    chosen = frozenset(largest_groups(rows, mass))
    by_step: dict[int, list[Name]] = {}
    for name, size in sizes.items():
        if str(name) in chosen:
            by_step.setdefault(math.floor(SIZE_STEPS * math.log2(max(size, 1.0))), []).append(name)
    by_step[min(by_step)] += [name for name in sizes if str(name) not in chosen]
    return tuple(_size_class(by_step[step], sizes, chosen, total) for step in sorted(by_step, reverse=True))


def _size_class(
    names: list[Name], sizes: Mapping[Name, float], chosen: frozenset[str], total: float
) -> SizeClass[Name]:
    least = min(sizes[name] for name in names if str(name) in chosen)
    return SizeClass(tuple(names), math.fsum(sizes[name] for name in names) / total, least / total)


def largest_groups(groups: Mapping[str, Population], mass: float) -> tuple[str, ...]:
    """Return the fewest groups that together hold at least the share `mass` of all records, largest first."""
    if not 0.0 < mass <= 1.0:
        raise QualityError(f"the mass that groups carry is a share above 0 and at most 1, not {mass!r}")
    ordered = sorted(groups, key=lambda name: (-groups[name].count, name))
    chosen: list[str] = []
    wanted = mass * math.fsum(g.count for g in groups.values())
    held = 0.0
    for name in ordered:
        if held >= wanted * (1 - 1e-12) and chosen:
            break
        chosen.append(name)
        held += groups[name].count
    return tuple(chosen)


def group_needs(
    aggregate: str, groups: Mapping[str, Population], delta: float, mass: float = 1.0, law: Law = Law.HOEFFDING
) -> dict[str, AnyNeed]:
    """Return what each group needs; one that is not among those that carry the mass needs what the largest does."""
    chosen = largest_groups(groups, mass)
    return {name: make_need(law, aggregate, groups[name if name in chosen else chosen[0]], delta) for name in groups}


def group_rates(
    aggregate: str, groups: Mapping[str, Population], max_error: float, delta: float, mass: float = 1.0
) -> dict[str, float]:
    """Return the rate of each group at which its answer is off by more than `max_error` with chance at most delta."""
    return {name: need.rate(max_error) for name, need in group_needs(aggregate, groups, delta, mass).items()}


def single_rate(aggregate: str, groups: Mapping[str, Population], max_error: float, delta: float) -> float:
    """Return the rate that one sampler for all groups needs: that of the neediest."""
    return max(group_rates(aggregate, groups, max_error, delta).values(), default=1.0)


def kept_share(groups: Mapping[str, Population], rates: Mapping[str, float]) -> float:
    """Return the share of all records that the rates keep."""
    total = math.fsum(g.count for g in groups.values())
    return math.fsum(g.count * rates[name] for name, g in groups.items()) / total if total else 1.0


def rates_within(
    aggregate: str,
    groups: Mapping[str, Population],
    share: float,
    delta: float,
    mass: float = 1.0,
    law: Law = Law.HOEFFDING,
) -> tuple[float, dict[str, float]]:
    """Return the least worst error over groups, and their rates, when at most `share` of the records may be kept."""
    if not 0.0 < share <= 1.0:
        raise QualityError(f"the share of records to keep is above 0 and at most 1, not {share!r}")
    needs = group_needs(aggregate, groups, delta, mass, law)
    capacity = share * math.fsum(g.count for g in groups.values())
    error = _least_error(needs, groups, capacity)
    if error is None:
        raise QualityError(
            f"keeping a share of {share} of the records cannot give every group a bound",
            hint="groups with a mean of 0, and aggregates without a bound, need every record",
        )
    rates = {name: need.rate(error) for name, need in needs.items()}
    return max((need.error(rates[name]) for name, need in needs.items()), default=0.0), rates


def _least_error(needs: Mapping[str, AnyNeed], groups: Mapping[str, Population], capacity: float) -> float | None:
    pieces = list(_pieces(needs, groups))
    if len(pieces) == len(needs):
        pressure = solve_capacity(pieces, capacity)
        return None if pressure is None else 1.0 / pressure
    return solve_by_bisection(
        lambda e: math.fsum(groups[n].count * need.rate(e) for n, need in needs.items()), capacity
    )


def _pieces(needs: Mapping[str, AnyNeed], groups: Mapping[str, Population]) -> Iterable[Piece]:
    for name, need in needs.items():
        if need.slope is not None:
            yield Piece(groups[name].count, need.slope, 1.0 if need.needs_every_record else 0.0)
