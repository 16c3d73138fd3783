"""Is a stream more than its site can take, and what should then be sampled?

Pure: it is told what each micro-batch held and what its parts cost, and says at which rate each fragment takes the
next. The load equation is that of Babcock et al. (section 2): rows a second times the seconds that a row costs, over
the parts of the pipeline. Reading and keeping the raw records, where that cannot be put off, is load that no sampler
takes away. The rates are those of `catchment.optimizer.shed` over the forest  stream -> prepare -> a fragment each
-> its aggregates: fragments share one preparation (reading, parsing), at the rate of the neediest. A fragment whose
records a reader can pick out stands beside it: only its own records are prepared for it, at a rate of its own.

Hysteresis: samplers go in as soon as the load is over `ENTER`; they go out after `CALM_BATCHES` batches in a row under
`LEAVE`. While they are in, the load is held at `TARGET`, which leaves room to work off a backlog.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from catchment.errors import PlanError
from catchment.optimizer.shed import shed_load
from catchment.optimizer.shed_forest import WHOLE, Operator, Query, ShedForest, Stream
from catchment.quality.kinds import Population
from catchment.quality.stratify import carrying, rates_within
from catchment.sampling import MAX_STRATA, GroupRates
from catchment.site.cost_model import CostModel
from catchment.site.debts import Spare

ENTER = 0.9
LEAVE = 0.6
TARGET = 0.65
CALM_BATCHES = 3
LEAST_ROWS = 4_000  # in a batch: below it the fixed cost of jobs is nearly all, and no sampler lowers that
LEAST_RATE = 0.002
LEAST_CAPACITY = 0.05  # for the samplers to divide, where what cannot be shed takes everything
DRAIN_S = 10.0  # in which a backlog should be worked off
GROUP_MASS = 0.9  # share of the records whose groups the planned error is about
PRIOR_CV = 1.0  # spread of values over their mean, until a sample has shown it
SPARE_CV = 1.5  # spread over mean above which large values are spared: a few of them are most of the error
SPARE_STDS = 2.0  # how far from the mean a value is large
FEW_SPARED = 0.003  # of the rows: until so many are spared, and while the rest is uneven, the limit goes down
MOST_SPARED = 0.01  # above it, the limit goes up
FREE_WORK = 0.05  # of a row's preparation: work that is less is no reason to sample
MORE, MORE_STEPS = 1.25, 10  # by how much more than fits is planned for, to find what does fit
GROUPS_ABOVE = 0.1  # of what a fragment takes at its rate: what its small groups may add
PICKED_ABOVE = 0.33  # of what is read for all: what the fragments that few records concern may add
RATE_STEPS = 4  # of a group's rate, to the next power of two
PREPARE, KEEP = "prepare", "keep"

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
class Arrivals:
    """A micro-batch as it comes: its rows, the seconds they took to come, and the rows that wait behind them."""

    rows: int
    interval_s: float
    backlog_rows: int = 0

    @property
    def rows_per_s(self) -> float:
        return (self.rows + self.backlog_rows * self.interval_s / DRAIN_S) / max(self.interval_s, 1e-6)


@dataclass(frozen=True)
class Decision:
    """The rate of each fragment for one micro-batch, what was expected, and why; no rates: take it whole. Records with
    a value beyond a limit in `spares` pass whatever the rate. With `groups`, rates are by group, and the fragment's is
    the share that they keep together."""

    rates: Mapping[str, float]
    load: float
    errors: Mapping[str, float]
    reason: str
    spares: Mapping[str, Spare] = field(default_factory=dict)
    groups: Mapping[str, GroupRates] = field(default_factory=dict)

    @property
    def sheds(self) -> bool:
        return any(rate < 1.0 for rate in self.rates.values())

    @property
    def highest(self) -> float:
        return max(self.rates.values(), default=1.0)


@dataclass
class Shape:
    """What a fragment's answers are made of: of the records that reach it, those of a typical group a second, and the
    mean and spread of what is aggregated."""

    selectivity: float = 1.0
    group_share: float = 1.0
    event_rows_per_s: float = 0.0
    moments: dict[str, tuple[float, float]] = field(default_factory=dict)  # aggregate -> (mean, std)
    limits: dict[str, float] = field(default_factory=dict)  # argument -> the size beyond which its records are spared
    spared_share: float = 0.0  # of the rows
    groups: dict[int | str, float] = field(default_factory=dict)  # value of the key -> records, where all are known


class LoadMonitor:
    """One stream at one site. `deferrable`: its records can be read again, so that history can wait while it sheds."""

    def __init__(self, stream: str, fragments: Sequence[Sheddable], delta: float, deferrable: bool) -> None:
        self.stream, self.fragments, self.delta, self.deferrable = stream, tuple(fragments), delta, deferrable
        self.whole = {name: CostModel() for name in (KEEP, *(f.name for f in fragments))}
        self.sampled = {name: CostModel() for name in (PREPARE, *(f.name for f in fragments))}
        self.shapes = {f.name: Shape() for f in fragments}
        self.shedding = False
        self.load = 0.0
        self.calm = 0
        self.last: Decision | None = None

    def adopt(self, known: LoadMonitor) -> None:
        """Take over what another monitor of the same stream has learned of the parts that are here too."""
        for mine, theirs in ((self.whole, known.whole), (self.sampled, known.sampled)):
            mine.update({part: model for part, model in theirs.items() if part in mine})
        self.shapes.update({name: shape for name, shape in known.shapes.items() if name in self.shapes})
        self.shedding, self.load, self.calm = known.shedding, known.load, known.calm

    # --- learning -----------------------------------------------------------------------------------------

    def learn_whole(self, rows: int, seconds: Mapping[str, float]) -> None:
        """A batch that was taken whole: the seconds of each part of it."""
        for part, took_s in seconds.items():
            self.whole[part].learn(rows, took_s)

    def learn_sampled(
        self, rows: int, rates: Mapping[str, float], seconds: Mapping[str, float], read: int | None = None
    ) -> None:
        """A batch that was sampled, `read` rows of it by anybody."""
        highest = max(rates.values(), default=1.0)
        for part, took_s in seconds.items():
            given = rows * rates.get(part, highest) if part != PREPARE or read is None else read
            self.sampled[part].learn(given, took_s)

    def read_share(self, rates: Mapping[str, float]) -> float:
        """About the share of the rows that are read at these rates."""
        shared = max((rates.get(f.name, 1.0) for f in self.fragments if not f.picked), default=0.0)
        own = (rates.get(f.name, 1.0) * self.shapes[f.name].selectivity for f in self.fragments if f.picked)
        spared = max((self.shapes[f.name].spared_share for f in self.fragments), default=0.0)
        return min(1.0, math.fsum((shared, spared, *own)))

    def learn_shape(self, name: str, rows: float, groups: Floats, event_span_s: float) -> None:
        """How many records reach a fragment (scaled), by group, of so many rows over a stretch of event time."""
        reached = float(groups.sum())
        shape = self.shapes[name]
        if rows <= 0 or reached <= 0:
            return
        shape.selectivity = reached / rows
        shape.group_share = _typical(groups) / reached
        shape.event_rows_per_s = reached / max(event_span_s, 1e-3)

    def learn_moments(self, name: str, aggregate: str, mean: float, std: float) -> None:
        """The mean and the spread of what an aggregate is over, of the records that may be left out."""
        if not (math.isfinite(mean) and math.isfinite(std)):
            return
        shape = self.shapes[name]
        shape.moments[aggregate] = (mean, std)
        argument = next((a for f in self.fragments if f.name == name for n, a in f.spareable if n == aggregate), None)
        if argument is not None and std > SPARE_CV * abs(mean) and shape.spared_share < FEW_SPARED:
            limit = abs(mean) + SPARE_STDS * std
            shape.limits[argument] = min(limit, shape.limits.get(argument, limit))

    def learn_spared(self, name: str, rows: int, spared: int) -> None:
        """So many of the rows were spared; where that is too many, the limits are too low."""
        shape = self.shapes[name]
        shape.spared_share = spared / rows if rows else 0.0
        if shape.spared_share > MOST_SPARED:
            shape.limits.update({argument: 2.0 * limit for argument, limit in shape.limits.items()})

    def learn_groups(self, name: str, groups: Mapping[int | str, float]) -> None:
        """About how many records each group had of late; too many groups are not told apart."""
        self.shapes[name].groups = dict(groups) if len(groups) <= MAX_STRATA else {}

    # --- deciding -----------------------------------------------------------------------------------------

    def decide(self, arrivals: Arrivals) -> Decision:
        """How to take the batch that comes."""
        self.load = arrivals.rows_per_s * self._seconds_per_row()
        self._follow(arrivals)
        if not self.shedding or arrivals.rows < LEAST_ROWS:
            decision = Decision({}, self.load, {}, "")
        else:
            decision = self._plan(arrivals.rows_per_s)
        self.last = decision
        return decision

    @property
    def has_room(self) -> bool:
        """Whether repairs may run beside the stream."""
        return not self.shedding and self.load <= LEAVE

    def _seconds_per_row(self) -> float:
        return math.fsum(model.seconds_per_row for model in self.whole.values())

    def _follow(self, arrivals: Arrivals) -> None:
        if self.load > ENTER and arrivals.rows >= LEAST_ROWS:
            self.shedding, self.calm = True, 0
        elif self.load < LEAVE:
            self.calm += 1
            self.shedding = self.shedding and self.calm < CALM_BATCHES
        else:
            self.calm = 0

    def _plan(self, rows_per_s: float) -> Decision:
        why = f"{rows_per_s:,.0f} rows/s are a load of {self.load:.2f}"
        room = self._room(rows_per_s)
        try:
            rates, errors = self._planned(rows_per_s, room)
            for step in range(1, MORE_STEPS):  # what is read for one is free for the others: more than planned may fit
                more = self._planned(rows_per_s, room * MORE**step)
                if rows_per_s * self._work_s(more[0]) > room:
                    break
                rates, errors = more
        except PlanError as error:
            rates = {f.name: 1.0 if f.fixed else LEAST_RATE for f in self.fragments}
            return Decision(rates, self.load, {}, f"{why}; {error.message}")
        spares = {name: tuple(sorted(self.shapes[name].limits.items())) for name, rate in rates.items() if rate < 1.0}
        spares = {name: spare for name, spare in spares.items() if spare}
        return Decision(rates, self.load, errors, why, spares, self._by_group(rates))

    def _planned(self, rows_per_s: float, room: float) -> tuple[dict[str, float], dict[str, float]]:
        """Rates and errors that the planner finds for so much load; what is read for one, all take whose own work is
        little beside the reading."""
        plan = shed_load(self._forest(rows_per_s, room), spare_free=True)
        rates = {f.name: min(1.0, max(LEAST_RATE, plan.rates[_work(f.name), WHOLE])) for f in self.fragments}
        errors = {f.name: max(plan.errors[q.name] for q in self._queries(f)) for f in self.fragments}
        rates = {name: max(rate, self._free_rate(name, rates)) for name, rate in rates.items()}
        return self._cheap_whole(rates), errors

    def _cheap_whole(self, rates: dict[str, float]) -> dict[str, float]:
        """The fragments that fewest records concern, whole, as many as add little to what is read: the bounds that the
        planner makes equal are loose at low rates, so that what is rare would be off by more than the rest."""
        allowed = PICKED_ABOVE * max((rates[f.name] for f in self.fragments if not f.picked), default=1.0)
        for fragment in sorted((f for f in self.fragments if f.picked), key=lambda f: self.shapes[f.name].selectivity):
            allowed -= self.shapes[fragment.name].selectivity * (1.0 - rates[fragment.name])
            if allowed < 0.0:
                break
            rates[fragment.name] = 1.0
        return rates

    def _free_rate(self, name: str, rates: Mapping[str, float]) -> float:
        """The rate that costs a fragment next to nothing: records that are read whatever they are."""
        if not self.deferrable or self._cost(name) > FREE_WORK * self._cost(PREPARE):
            return 0.0
        return max((rates[f.name] for f in self.fragments if not f.picked), default=0.0)

    def _work_s(self, rates: Mapping[str, float]) -> float:
        """The seconds of work that a row costs at these rates."""
        shared = max((rates[f.name] for f in self.fragments if not f.picked), default=0.0)
        own = (self.shapes[f.name].selectivity * max(rates[f.name] - shared, 0.0) for f in self.fragments if f.picked)
        prepare_s = self._cost(PREPARE) if self.deferrable else 0.0
        return prepare_s * (shared + math.fsum(own)) + math.fsum(self._cost(n) * rate for n, rate in rates.items())

    def _by_group(self, rates: Mapping[str, float]) -> dict[str, GroupRates]:
        found = {}
        for fragment in self.fragments:
            shape, rate = self.shapes[fragment.name], rates[fragment.name]
            if fragment.group_key is None or len(shape.groups) < 2 or rate >= 1.0:
                continue
            if self._free_rate(fragment.name, rates) >= rate:
                own = small_groups_whole(shape.groups, rate, GROUPS_ABOVE * rate)
            else:
                own = group_rates_within(shape.groups, rate, self.delta, GROUP_MASS)
            if any(r < 1.0 for r in own.values()):
                found[fragment.name] = GroupRates(fragment.group_key, tuple(own.items()))
        return found

    def _room(self, rows_per_s: float) -> float:
        """The load that samplers have to divide: without what no sampler takes away."""
        kept_s = 0.0 if self.deferrable else self.whole[KEEP].seconds_per_row
        spared = max((self.shapes[f.name].spared_share for f in self.fragments), default=0.0)
        spared_s = spared * self._cost(PREPARE) if self.deferrable else 0.0
        return max(TARGET - rows_per_s * (kept_s + spared_s), LEAST_CAPACITY)

    def _forest(self, rows_per_s: float, room: float) -> ShedForest:
        prepare = Operator(PREPARE, self.stream, 1.0, self._cost(PREPARE) if self.deferrable else 0.0)
        works = [self._work_of(f, prepare.seconds_per_tuple) for f in self.fragments]
        queries = tuple(q for f in self.fragments for q in self._queries(f))
        stream = Stream(self.stream, rows_per_s)
        return ShedForest(room, self.delta, (stream,), (prepare, *works), queries, f"stream {self.stream!r}")

    def _work_of(self, fragment: Sheddable, prepare_s: float) -> Operator:
        selectivity, cost = self.shapes[fragment.name].selectivity, self._cost(fragment.name)
        if not fragment.picked:
            return Operator(_work(fragment.name), PREPARE, selectivity, cost)
        return Operator(_work(fragment.name), self.stream, selectivity, cost + min(selectivity, 1.0) * prepare_s)

    def _cost(self, part: str) -> float:
        model = self.sampled[part]
        return model.seconds_per_row if model.known else self.whole[KEEP if part == PREPARE else part].seconds_per_row

    def _queries(self, fragment: Sheddable) -> tuple[Query, ...]:
        if fragment.fixed:  # no bound: no rate below 1 promises anything
            return (Query(f"{fragment.name}/whole", _work(fragment.name), "count", Population(0.0)),)
        return tuple(
            Query(f"{fragment.name}/{name}", _work(fragment.name), function, self._population(fragment, name, function),
                  fragment.weight, fragment.max_error)
            for name, function in fragment.aggregates
        )  # fmt: skip

    def _population(self, fragment: Sheddable, name: str, function: str) -> Population:
        shape = self.shapes[fragment.name]
        count = max(shape.event_rows_per_s * fragment.window_s * shape.group_share, 1.0)
        mean, std = shape.moments.get(name, (1.0, PRIOR_CV))
        return Population(count) if function == "count" or mean == 0.0 else Population(count, mean, std)


def small_groups_whole(groups: Mapping[int | str, float], rate: float, allowed: float) -> dict[int | str, float]:
    """The smallest groups whole, as many as take no more than the allowed share of all records above the rate; the
    others at the rate, where that costs nothing."""
    total, found, above = math.fsum(groups.values()), dict.fromkeys(groups, rate), 0.0
    for value in sorted(groups, key=lambda v: groups[v]):
        above += groups[value] / total * (1.0 - rate)
        if above > allowed:
            break
        found[value] = 1.0
    return found


def group_rates_within(
    groups: Mapping[int | str, float], share: float, delta: float, mass: float
) -> dict[int | str, float]:
    """Rates that keep about this share of all records and make the worst error over groups least. Where the many small
    groups would take it all, that of the groups with most of the records (`mass`) counts, and the others have the
    highest rate among these. Rates are rounded up to a few steps, so that groups can be named by their rate."""
    named = {str(value): Population(max(size, 1.0)) for value, size in groups.items()}
    everyone, rates = rates_within("count", named, share, delta)
    large = carrying(named, mass)
    alone, own = rates_within("count", {g: named[g] for g in large}, share, delta)
    if everyone > 2.0 * alone:
        rates = {g: own.get(g, max(own.values())) for g in named}
    return {value: _stepped(rates[str(value)]) for value in groups}


def _stepped(rate: float) -> float:
    return float(min(1.0, 2.0 ** (math.ceil(math.log2(max(rate, LEAST_RATE)) * RATE_STEPS) / RATE_STEPS)))


def _work(fragment: str) -> str:
    return f"work:{fragment}"


def _typical(groups: Floats) -> float:
    """The size of the smallest of the groups that carry the mass."""
    ordered = np.sort(groups)[::-1]
    held = np.cumsum(ordered)
    return float(ordered[min(int(np.searchsorted(held, GROUP_MASS * held[-1])), len(ordered) - 1)])
