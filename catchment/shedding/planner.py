"""Where to sample, and how much, so that the load fits and the worst query is least wrong.

Babcock et al. in two steps. First the targets: for an error that all queries share, each needs the rate of its need
(`catchment.quality.needs`), **capped at 1** (the paper's equation 2 is not, and would then shed the siblings of a query
that cannot be shed); the error is the least whose load fits, found exactly. Then the placement (Algorithm 1,
SetSamplingRate): an operator runs at the rate of its neediest query, so a sampler stands where a branch needs less than
what comes in. For given rates no placement costs less (Theorem 1).

Beyond the paper: a query's `weight` (the worst *weighted* error is minimal), contracts (a query with max_error exceeds
it only once queries without a contract have rate 0), rates per stratum for GROUP BY, operators that no query reads
(they are shed first, at no error), aggregates other than COUNT and SUM, readers that pick (an operator runs on what
some reader wants, not on all tuples at the rate of the neediest), and errors by the variance of the answers
(`ShedForest.law`). The least error is then found by bisection: the load falls as the error grows, whatever the needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from catchment.errors import PlanError
from catchment.shedding.demand import RateDemands, contracted_demands, ordinary_demands
from catchment.shedding.forest import WHOLE, OperatorNode, ShedForest, StreamNode
from catchment.shedding.water_filling import Piece, solve_by_bisection, solve_capacity

# (node, stratum) -> the share of the node's tuples, in this stratum, that reach it.
Rates = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class PlacedSampler:
    """A sampler in front of an operator or a query: the share that it lets pass of what comes to it.

    `effective` is the share of the stream's tuples that it lets pass: samplers decide by one hash, so this is the
    threshold that the tuple's hash is compared with. `strata` has (stratum, rate, effective) where there are strata.
    """

    before: str
    rate: float
    effective: float
    strata: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class ShedPlan:
    """The samplers, what they leave of the load, and the error that each query may then have.

    The rate of a query on a stratified stream is its mean over the stream's tuples. An error is infinite where nothing
    can be promised.
    """

    forest: ShedForest
    samplers: tuple[PlacedSampler, ...]
    rates: Rates
    effective_rates: Mapping[str, float]
    errors: Mapping[str, float]

    @property
    def max_error(self) -> float:
        return max(self.errors.values())

    @property
    def load_before(self) -> float:
        return self.forest.load

    @property
    def load_after(self) -> float:
        return load_at(self.forest, self.rates)


def shed_load(forest: ShedForest, *, spare_free: bool = False) -> ShedPlan:
    """Return the plan of least worst error whose load fits the capacity.

    `spare_free` leaves out samplers that save no load (in front of queries that cost nothing): the worst error is the
    same, and the other queries are less wrong than their share.
    """
    if forest.load <= forest.capacity:
        return make_plan(forest, {(name, s): 1.0 for name in forest.downward for s, _ in forest.strata(name)})
    rates = _least_rates(forest, ordinary_demands(forest)) or _least_rates(forest, contracted_demands(forest))
    if rates is None:
        raise _cannot_fit(forest)
    return make_plan(forest, _without_free_samplers(forest, rates) if spare_free else rates)


def make_plan(forest: ShedForest, rates: Rates) -> ShedPlan:
    """Return the plan that runs every node at its rate."""
    effective = {q.name: _mean_rate(forest, rates, q.name) for q in forest.queries}
    errors = {q.name: _error(forest, rates, q.name) for q in forest.queries}
    return ShedPlan(forest, set_sampling_rates(forest, rates), rates, effective, errors)


def load_at(forest: ShedForest, rates: Rates) -> float:
    """Return the left side of the load equation."""
    return math.fsum(
        weight * share * _run_share(forest, rates, name, stratum)
        for name, weight in forest.weights.items()
        for stratum, share in forest.strata(name)
        if weight
    )


def _run_share(forest: ShedForest, rates: Rates, name: str, stratum: str) -> float:
    """Return the share of its tuples that a node runs on: at its rate, and what its readers want."""
    if name not in forest.picked_from:
        return rates[name, stratum]
    return wanted_share((rates[child, stratum], forest.picks(child)) for child in forest.children[name])


def wanted_share(readers: Iterable[tuple[float, float]]) -> float:
    """Return at most which share of all tuples is wanted, of readers with (rate, share that it picks).

    What two readers pick may be the same tuples. Samplers decide by one hash, so what passes at a rate passes at all
    higher ones, and of the tuples between two rates those are wanted that the readers above pick.
    """
    picked = 0.0
    wanted = 0.0
    above = 0.0
    for rate, picks in sorted(readers, reverse=True):
        wanted += min(1.0, picked) * (above - rate)
        picked += picks
        above = rate
    return wanted + min(1.0, picked) * above


def targets(forest: ShedForest, wanted: Rates) -> dict[tuple[str, str], float]:
    """Return the rate of every node, given those of queries: an operator's is the largest below it, a stream's is 1."""
    rates = dict(wanted)
    for name in reversed(forest.downward):
        for stratum, _ in forest.strata(name):
            if isinstance(forest.nodes[name], OperatorNode):
                rates[name, stratum] = max((rates[c, stratum] for c in forest.children[name]), default=0.0)
            elif isinstance(forest.nodes[name], StreamNode):
                rates[name, stratum] = 1.0
    return rates


def set_sampling_rates(forest: ShedForest, rates: Rates) -> tuple[PlacedSampler, ...]:
    """Return the samplers by Algorithm 1: one, of the quotient, before each child that needs less than what comes in.

    A child whose rate is that of its input gets none, so samplers stand only where shared segments start.
    """
    samplers = []
    for node in forest.readers:
        strata = forest.strata(node.name)
        found = [(s, share, rates[node.input, s], rates[node.name, s]) for s, share in strata]
        if all(below >= above for _, _, above, below in found):
            continue
        arriving = math.fsum(share * above for _, share, above, _ in found)
        passing = math.fsum(share * below for _, share, _, below in found)
        each = tuple((s, below / above if above else 0.0, below) for s, _, above, below in found)
        named = each if strata[0][0] != WHOLE else ()
        samplers.append(PlacedSampler(node.name, passing / arriving if arriving else 0.0, passing, named))
    return tuple(samplers)


def _least_rates(forest: ShedForest, demands: RateDemands) -> Rates | None:
    """Return the rates of least worst error that fit the capacity; None if not even the lowest rates do."""

    def rates_for(error: float) -> Rates:
        return targets(forest, demands.rates(error))

    if demands.linear and not forest.picked_from:
        error = _exact_error(forest, demands)
    else:
        error = solve_by_bisection(lambda shared: load_at(forest, rates_for(shared)), forest.capacity)
    return None if error is None else rates_for(error)


def _exact_error(forest: ShedForest, demands: RateDemands) -> float | None:
    slopes = targets(forest, demands.slopes())
    floors = targets(forest, demands.floors())
    pieces = [
        Piece(weight * share, slopes[name, stratum], floors[name, stratum])
        for name, weight in forest.weights.items()
        for stratum, share in forest.strata(name)
        if weight * share > 0.0
    ]
    pressure = solve_capacity(pieces, forest.capacity)
    if pressure is None:
        return None
    return 1.0 / pressure if pressure else math.inf


def _without_free_samplers(forest: ShedForest, rates: Rates) -> Rates:
    """Return the rates without samplers on branches that cost nothing."""
    cost: dict[str, float] = {}
    for name in reversed(forest.downward):
        cost[name] = forest.weights[name] + math.fsum(cost[child] for child in forest.children[name])
    spared = dict(rates)
    for node in forest.downward:
        for child in forest.children[node]:
            for stratum, _ in forest.strata(child) if cost[child] == 0.0 else ():
                spared[child, stratum] = max(spared[child, stratum], _arriving_rate(forest, spared, node, stratum))
    return spared


def _arriving_rate(forest: ShedForest, rates: Rates, name: str, stratum: str) -> float:
    """Return the rate at which all tuples come through a node, beside those that readers pick."""
    if name not in forest.picked_from:
        return rates[name, stratum]
    return max((rates[c, stratum] for c in forest.children[name] if forest.picks(c) >= 1.0), default=0.0)


def _mean_rate(forest: ShedForest, rates: Rates, query: str) -> float:
    return math.fsum(share * rates[query, stratum] for stratum, share in forest.strata(query))


def _error(forest: ShedForest, rates: Rates, query: str) -> float:
    strata = [stratum for stratum, _ in forest.strata(query)]
    return max((n.error(rates[query, s]) for s in strata for n in forest.needs[query, s]), default=0.0)


def _cannot_fit(forest: ShedForest) -> PlanError:
    unsheddable = sorted(
        {name for (name, _), needs in forest.needs.items() if any(n.needs_every_record for n in needs)}
    )
    return PlanError(
        f"no shedding brings the load of {forest.load:g} down to the capacity of {forest.capacity:g}: "
        f"no rate below 1 promises anything for {', '.join(unsheddable)}",
        where=forest.where,
        hint="a mean of 0, no tuples in the window, and aggregates without a bound need every tuple: "
        "give them a sink of their own, or more capacity",
    )
