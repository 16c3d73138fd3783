"""How the fragments of an overloaded stream are sampled, so that the load fits and the worst answer is least wrong.

The rates are those of `catchment.shedding.planner` over the forest  stream -> prepare -> one operator per fragment ->
its aggregates: all fragments share one preparation (reading, parsing), which runs on the records that some fragment
wants. A fragment whose records a reader can filter has only those prepared for it; a fragment whose groups a reader can
distinguish is planned as one operator per size of group. Errors are by the variance of the answers
(`catchment.shedding.laws`): an estimate of what will be seen, not a promise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from catchment.errors import PlanError
from catchment.shedding.cost_book import PREPARE, CostBook
from catchment.shedding.forest import WHOLE, OperatorNode, QueryNode, ShedForest, StreamNode
from catchment.shedding.fragment_stats import FragmentStats, Portion, SheddableFragment, known_values, portions_of
from catchment.shedding.laws import Law
from catchment.shedding.planner import ShedPlan, make_plan, shed_load, wanted_share
from catchment.shedding.sampler import TAKE_ALL, GroupRates, Sampler

TARGET_LOAD = 0.65  # the load that samplers hold, which leaves room to work off a backlog
MIN_RATE = 0.002  # the rate of every fragment where no plan fits the load
MIN_CAPACITY = 0.05  # load for the samplers to divide, where what cannot be shed takes everything
GROUP_MASS = 0.9  # share of the records whose groups the planned error is about, where small groups are too many
SMALL_GROUPS_MAX_COST = 1.1  # factor by which the error may grow so that small groups count too
MAX_SPARED_SHARE = 0.5  # share of the load to divide that spared records may take


@dataclass(frozen=True)
class PlannedSamplers:
    """The samplers of all fragments, the errors that are expected of them, and a note where nothing fits."""

    samplers: Mapping[str, Sampler]
    errors: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True)
class _Traffic:
    """What arrives: rows per second with and without the backlog, and about the share of them that can be taken."""

    rows_per_s: float
    arriving_per_s: float
    common_rate: float


class ShedPlanner:
    """Chooses the samplers of one stream at one site, by what rows cost and what is known of each fragment."""

    def __init__(
        self,
        stream: str,
        fragments: Sequence[SheddableFragment],
        delta: float,
        costs: CostBook,
        stats: Mapping[str, FragmentStats],
    ) -> None:
        self.stream = stream
        self.fragments = tuple(fragments)
        self.delta = delta
        self.costs = costs
        self.stats = stats

    def plan(self, rows_per_s: float, arriving_per_s: float) -> PlannedSamplers:
        """Return the samplers of least worst error whose load is the target."""
        affordable = self._room(rows_per_s) / max(rows_per_s * self.costs.all_work_row_s, 1e-12)
        traffic = _Traffic(rows_per_s, arriving_per_s, min(1.0, max(MIN_RATE, affordable)))
        try:
            plan, portions = self._least_wrong(traffic)
        except PlanError as error:
            return PlannedSamplers(self.uniform(MIN_RATE), {}, error.message)
        rates = {p.name: plan.rates[p.operator, WHOLE] for p in portions}
        errors = {p.fragment.name: 0.0 for p in portions}
        for portion in portions:
            worst = max(plan.errors[query.name] for query in _queries(portion, traffic))
            errors[portion.fragment.name] = max(errors[portion.fragment.name], worst)
        return PlannedSamplers(self._samplers(portions, rates), errors)

    def uniform(self, rate: float) -> dict[str, Sampler]:
        """Return one rate for every fragment that may be sampled."""
        return {f.name: TAKE_ALL if f.fixed else Sampler(rate) for f in self.fragments}

    def read_share(self, samplers: Mapping[str, Sampler]) -> float:
        """Return about the share of the rows that are read."""
        wanted: list[tuple[float, float]] = []
        for fragment in self.fragments:
            stats = self.stats[fragment.name]
            sampler = samplers.get(fragment.name, TAKE_ALL)
            share = min(stats.selectivity, 1.0) if fragment.filterable else 1.0
            if sampler.groups is None:
                wanted.append((sampler.rate, share))
                continue
            total = math.fsum(stats.groups.values()) or 1.0
            wanted += [(rate, share * stats.groups.get(value, 0.0) / total) for value, rate in sampler.groups.rates]
        spares = any(sampler.spared for sampler in samplers.values())
        return min(1.0, wanted_share(wanted) + (self._spared_share() if spares else 0.0))

    def seconds_per_row_at(self, samplers: Mapping[str, Sampler]) -> float:
        """Return the seconds of work that a row costs under these samplers, beside what no sampler saves."""
        work_s = math.fsum(self.costs.work_row_s(f.name) * samplers.get(f.name, TAKE_ALL).rate for f in self.fragments)
        return self.costs.prepare_row_s * self.read_share(samplers) + work_s

    def _least_wrong(self, traffic: _Traffic) -> tuple[ShedPlan, list[Portion]]:
        """Return the plan of least worst error.

        It is over all groups, or, where the small ones would cost the others much, over those that carry the mass.
        """
        over_all, all_portions = self._plan_for(traffic, 1.0)
        over_large, large_portions = self._plan_for(traffic, GROUP_MASS)
        if over_all.max_error <= SMALL_GROUPS_MAX_COST * over_large.max_error:
            return over_all, all_portions
        return over_large, large_portions

    def _plan_for(self, traffic: _Traffic, mass: float) -> tuple[ShedPlan, list[Portion]]:
        values = known_values(self.fragments, self.stats)
        portions = [p for f in self.fragments for p in portions_of(f, self.stats[f.name], mass, values)]
        plan = shed_load(self._forest(traffic, portions), spare_free=True)
        rates = {node: max(rate, MIN_RATE) for node, rate in plan.rates.items()}
        return make_plan(plan.forest, rates), portions

    def _forest(self, traffic: _Traffic, portions: Sequence[Portion]) -> ShedForest:
        costs = self.costs
        free_s = math.fsum(costs.work_row_s(f.name) for f in self.fragments if costs.is_free(f.name))
        prepare_s = costs.prepare_row_s + free_s if costs.deferrable else 0.0
        prepare = OperatorNode(PREPARE, self.stream, 1.0, prepare_s)
        operators = [OperatorNode(p.operator, PREPARE, 1.0, self._work_s(p), p.picks) for p in portions]
        return ShedForest(
            self._room(traffic.rows_per_s),
            self.delta,
            (StreamNode(self.stream, traffic.rows_per_s),),
            (prepare, *operators),
            tuple(query for p in portions for query in _queries(p, traffic)),
            f"stream {self.stream!r}",
            Law.VARIANCE,
        )

    def _work_s(self, portion: Portion) -> float:
        name = portion.fragment.name
        return 0.0 if self.costs.is_free(name) else self.costs.work_row_s(name) * portion.share

    def _room(self, rows_per_s: float) -> float:
        """Return the load that samplers have to divide: the target without what no sampler saves."""
        room = max(TARGET_LOAD - rows_per_s * self.costs.unavoidable_row_s, MIN_CAPACITY)
        spared = rows_per_s * self._spared_share() * self.costs.prepare_row_s
        return max(room - spared, (1.0 - MAX_SPARED_SHARE) * room)

    def _spared_share(self) -> float:
        return max((stats.spared_share for stats in self.stats.values()), default=0.0)

    def _samplers(self, portions: Sequence[Portion], rates: Mapping[str, float]) -> dict[str, Sampler]:
        """Return the sampler of each fragment, from the rates of its portions."""
        values = known_values(self.fragments, self.stats)
        samplers: dict[str, Sampler] = {}
        for fragment in self.fragments:
            own = [p for p in portions if p.fragment is fragment]
            rate = _kept_share([(p.share, rates[p.name]) for p in own])
            spared = self.stats[fragment.name].spared_values(fragment, rate, values) if rate < 1.0 else ()
            samplers[fragment.name] = Sampler(rate, spared, _group_rates(fragment, own, rates))
        return samplers


def _queries(portion: Portion, traffic: _Traffic) -> tuple[QueryNode, ...]:
    return portion.queries(traffic.arriving_per_s, traffic.common_rate)


def _kept_share(portions: Sequence[tuple[float, float]]) -> float:
    """Return what portions of (share, rate) keep together: 1 only if all of it is kept."""
    if all(rate >= 1.0 for _, rate in portions):
        return 1.0
    return min(math.fsum(share * rate for share, rate in portions), math.nextafter(1.0, 0.0))


def _group_rates(
    fragment: SheddableFragment, portions: Sequence[Portion], rates: Mapping[str, float]
) -> GroupRates | None:
    """Return the rates by group, where groups have rates of their own and any is sampled."""
    by_value = tuple((value, rates[p.name]) for p in portions for value in p.values)
    if fragment.group_key is None or all(rate >= 1.0 for _, rate in by_value):
        return None
    return GroupRates(fragment.group_key, by_value)
