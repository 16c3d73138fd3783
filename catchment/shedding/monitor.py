"""Is a stream more than its site can take, and what should then be sampled?

Pure: it is told what each micro-batch held and what its parts cost, and says at which rate each fragment takes the
next. The load equation is that of Babcock et al. (section 2): rows a second times the seconds that a row costs, over
the parts of the pipeline. Reading and keeping the raw records is load that no sampler takes away, unless it can be
put off; to look at every row that comes, whether anybody wants it, is so then. The rates are those of
`catchment.shedding.planner` over the forest  stream -> prepare -> a fragment each -> its aggregates: all share one
preparation (reading, parsing), which runs on the records that some fragment wants. A fragment whose records a reader
can pick out has only those prepared for it; one whose groups a reader can tell apart is a fragment for each size of
group. Errors are by the variance of the answers (`catchment.shedding.variance_need`): what will be seen, not what
could be promised.

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
from catchment.shedding.allocation import Law
from catchment.shedding.debts import Spare
from catchment.shedding.forest import WHOLE, Operator, Query, ShedForest, Stream
from catchment.shedding.fragment_stats import Moments, Portion, Shape, Sheddable, known_values, portions_of
from catchment.shedding.places import GroupRates
from catchment.shedding.planner import ShedPlan, make_plan, shed_load, wanted_share
from catchment.shedding.row_cost import USUAL_ROW_S, CostModel, RowCost
from catchment.wire.limits import MAX_STRATA

ENTER = 0.9
LEAVE = 0.6
TARGET = 0.65
CALM_BATCHES = 3
LEAST_ROWS = 4_000  # in a batch: below it the fixed cost of jobs is nearly all, and no sampler lowers that
LEAST_RATE = 0.002
LEAST_CAPACITY = 0.05  # for the samplers to divide, where what cannot be shed takes everything
USUAL_SIFT = (4e6, 0.2)  # rows that come, and the seconds to look at them, before any were
DRAIN_S = 10.0  # in which a backlog should be worked off
GROUP_MASS = 0.9  # share of the records whose groups the planned error is about, where the small ones are too many
SMALL_GROUPS_COST = 1.1  # times the error: what it may cost that the small groups count too
FREE_WORK = 0.05  # of a row's preparation: work that is less is counted with it, and no reason to sample
LOOK_ROWS = 100_000  # in a batch: of a larger one that is taken whole, moments are not asked for
SPARED_MOST = 0.5  # of the load that samplers have to divide: what is spared may take no more
PREPARE, KEEP, SIFT = "prepare", "keep", "sift"

Floats = NDArray[np.float64]


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


class LoadMonitor:
    """One stream at one site. `deferrable`: its records can be read again, so that history can wait while it sheds."""

    def __init__(self, stream: str, fragments: Sequence[Sheddable], delta: float, deferrable: bool) -> None:
        self.stream, self.fragments, self.delta, self.deferrable = stream, tuple(fragments), delta, deferrable
        self.whole = {name: CostModel() for name in (KEEP, *(f.name for f in fragments))}
        self.sampled = {name: CostModel() for name in (PREPARE, *(f.name for f in fragments))}
        self.shapes = {f.name: Shape() for f in fragments}
        self.sifted = RowCost(*USUAL_SIFT)
        self.shedding = False
        self.load = 0.0
        self.calm = 0
        self.arriving_per_s = 0.0
        self.common_rate = 1.0  # about what could be taken of all, were all views taken alike
        self.last: Decision | None = None

    def adopt(self, known: LoadMonitor) -> None:
        """Take over what another monitor of the same stream has learned of the parts that are here too."""
        for mine, theirs in ((self.whole, known.whole), (self.sampled, known.sampled)):
            mine.update({part: model for part, model in theirs.items() if part in mine})
        self.shapes.update({name: shape for name, shape in known.shapes.items() if name in self.shapes})
        self.shedding, self.load, self.calm, self.sifted = known.shedding, known.load, known.calm, known.sifted

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
        if seconds.get(SIFT):  # of a batch that all want, nobody looks at the rows
            self.sifted.learn(rows, seconds[SIFT])
        for part, took_s in ((part, took_s) for part, took_s in seconds.items() if part != SIFT):
            given = rows * rates.get(part, highest) if part != PREPARE or read is None else read
            self.sampled[part].learn(given, took_s)

    def learn_shape(self, name: str, rows: float, groups: Floats, event_span_s: float) -> None:
        """How many records reach a fragment (scaled), by group, of so many rows over a stretch of event time."""
        if rows <= 0:
            return
        shape, event_rows_per_s = self.shapes[name], rows / max(event_span_s, 1e-3)
        shape.learn(rows, groups, GROUP_MASS)
        shape.pace = event_rows_per_s / self.arriving_per_s if self.arriving_per_s else 1.0

    def wants_moments(self, rows: int) -> bool:
        """Whether the means and spreads of values should be looked at in a batch that is taken whole: when shedding
        begins they have to be known, and nothing tells them but records."""
        return rows <= LOOK_ROWS

    def learn_moments(self, name: str, aggregate: str, moments: Moments) -> None:
        """The moments of what an aggregate is over."""
        if moments.known:
            known = self.shapes[name].moments
            known[aggregate] = moments.after(known.get(aggregate))

    def learn_spared(self, name: str, rows: int, spared: int) -> None:
        """So many of the rows were spared."""
        self.shapes[name].spared_share = spared / rows if rows else 0.0

    def learn_groups(self, name: str, groups: Mapping[int | str, float]) -> None:
        """About how many records each group had of late; too many groups are not told apart."""
        self.shapes[name].learn_groups(groups, MAX_STRATA)

    # --- deciding -----------------------------------------------------------------------------------------

    def decide(self, arrivals: Arrivals) -> Decision:
        """How to take the batch that comes."""
        self.load = arrivals.rows_per_s * self._seconds_per_row()
        self.arriving_per_s = arrivals.rows / max(arrivals.interval_s, 1e-6)
        self._follow(arrivals)
        if not self.shedding or arrivals.rows < LEAST_ROWS:
            decision = Decision({}, self.load, {}, "")
        else:
            decision = self._plan(arrivals.rows_per_s)
        self.last = decision
        return decision

    def rehearse(self, rate: float) -> Decision:
        """A decision that is none: one rate for all that may be sampled."""
        return Decision({f.name: 1.0 if f.fixed else rate for f in self.fragments}, self.load, {}, "")

    @property
    def has_room(self) -> bool:
        """Whether repairs may run beside the stream."""
        return not self.shedding and self.load <= LEAVE

    def _seconds_per_row(self) -> float:
        own = math.fsum(self.whole[f.name].seconds_per_row for f in self.fragments)
        return self._keep_s + own

    @property
    def _keep_s(self) -> float:
        """To read, parse and keep a row."""
        return self.whole[KEEP].given(USUAL_ROW_S, 1.0)

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
        whole_s = (self._cost(PREPARE) if self.deferrable else 0.0) + math.fsum(
            self._cost(f.name) for f in self.fragments
        )
        self.common_rate = min(1.0, max(LEAST_RATE, self._room(rows_per_s) / max(rows_per_s * whole_s, 1e-12)))
        try:
            plan, portions = self._least_wrong(rows_per_s)
        except PlanError as error:
            rates = {f.name: 1.0 if f.fixed else LEAST_RATE for f in self.fragments}
            return Decision(rates, self.load, {}, f"{why}; {error.message}")
        own = {p.name: plan.rates[p.work, WHOLE] for p in portions}
        rates = {f.name: _kept_share([(p.share, own[p.name]) for p in portions if p.fragment is f])
                 for f in self.fragments}  # fmt: skip
        errors = {p.fragment.name: 0.0 for p in portions}
        for p in portions:
            errors[p.fragment.name] = max(errors[p.fragment.name], *(plan.errors[q.name] for q in self._queries(p)))
        return Decision(rates, self.load, errors, why, self._spares(rates), _by_group(portions, own))

    def _least_wrong(self, rows_per_s: float) -> tuple[ShedPlan, list[Portion]]:
        """The plan of least worst error: over all groups, or, where the small ones would cost the others much, over
        those that carry the mass."""
        everyone, every = self._planned(rows_per_s, 1.0)
        carrying, large = self._planned(rows_per_s, GROUP_MASS)
        fair = everyone.max_error <= SMALL_GROUPS_COST * carrying.max_error
        return (everyone, every) if fair else (carrying, large)

    def _planned(self, rows_per_s: float, mass: float) -> tuple[ShedPlan, list[Portion]]:
        others = known_values(self.fragments, self.shapes)
        portions = [p for f in self.fragments for p in portions_of(f, self.shapes[f.name], mass, others)]
        plan = shed_load(self._forest(rows_per_s, portions), spare_free=True)
        return make_plan(plan.forest, {at: max(rate, LEAST_RATE) for at, rate in plan.rates.items()}), portions

    def _forest(self, rows_per_s: float, portions: Sequence[Portion]) -> ShedForest:
        free = math.fsum(self._cost(f.name) for f in self.fragments if self._is_free(f.name))
        prepare = Operator(PREPARE, self.stream, 1.0, self._cost(PREPARE) + free if self.deferrable else 0.0)
        works = [Operator(p.work, PREPARE, 1.0, self._own_cost(p), p.picks) for p in portions]
        queries = tuple(q for p in portions for q in self._queries(p))
        stream, where = Stream(self.stream, rows_per_s), f"stream {self.stream!r}"
        room = self._room(rows_per_s)
        return ShedForest(room, self.delta, (stream,), (prepare, *works), queries, where, Law.VARIANCE)

    def _is_free(self, name: str) -> bool:
        """Whether a fragment's own work is next to nothing beside the reading."""
        return self.deferrable and self._cost(name) <= FREE_WORK * self._cost(PREPARE)

    def _own_cost(self, portion: Portion) -> float:
        name = portion.fragment.name
        return 0.0 if self._is_free(name) else self._cost(name) * portion.share

    def _queries(self, portion: Portion) -> tuple[Query, ...]:
        return portion.queries(self.arriving_per_s, self.common_rate)

    def _room(self, rows_per_s: float) -> float:
        """The load that samplers have to divide: without what no sampler takes away."""
        kept_s = self.sifted.seconds_per_row if self.deferrable else self._keep_s
        spared_s = self._spared_share() * self._cost(PREPARE) if self.deferrable else 0.0
        room = max(TARGET - rows_per_s * kept_s, LEAST_CAPACITY)
        return max(room - rows_per_s * spared_s, (1.0 - SPARED_MOST) * room)

    def _spared_share(self) -> float:
        return max((shape.spared_share for shape in self.shapes.values()), default=0.0)

    def _spares(self, rates: Mapping[str, float]) -> dict[str, Spare]:
        others, sampled = known_values(self.fragments, self.shapes), [f for f in self.fragments if rates[f.name] < 1.0]
        found = {f.name: self.shapes[f.name].spare(f, rates[f.name], others) for f in sampled}
        return {name: spare for name, spare in found.items() if spare}

    def _cost(self, part: str) -> float:
        """Of a row that is read, or that a fragment takes, in a sampled batch; whole ones tell about what that is."""
        return self.sampled[part].given(self._keep_s if part == PREPARE else self.whole[part].seconds_per_row)

    # --- what a decision means ----------------------------------------------------------------------------

    def read_share(self, decision: Decision) -> float:
        """About the share of the rows that are read."""
        wanted: list[tuple[float, float]] = []
        for f in self.fragments:
            shape, groups = self.shapes[f.name], decision.groups.get(f.name)
            picks = min(shape.selectivity, 1.0) if f.picked else 1.0
            if groups is None:
                wanted.append((decision.rates.get(f.name, 1.0), picks))
            else:
                total = math.fsum(shape.groups.values()) or 1.0
                wanted += [(rate, picks * shape.groups.get(value, 0.0) / total) for value, rate in groups.rates]
        return min(1.0, wanted_share(wanted) + (self._spared_share() if decision.spares else 0.0))

    def seconds_per_row_at(self, decision: Decision) -> float:
        """The seconds of work that a row costs as decided, beside what no sampler takes away."""
        prepare_s = self._cost(PREPARE) if self.deferrable else 0.0
        own = math.fsum(self._cost(f.name) * decision.rates.get(f.name, 1.0) for f in self.fragments)
        return prepare_s * self.read_share(decision) + own


def _kept_share(portions: Sequence[tuple[float, float]]) -> float:
    """What (share, rate) of portions keep together: 1 only if all of it is kept."""
    if all(rate >= 1.0 for _, rate in portions):
        return 1.0
    return min(math.fsum(share * rate for share, rate in portions), math.nextafter(1.0, 0.0))


def _by_group(portions: Sequence[Portion], rates: Mapping[str, float]) -> dict[str, GroupRates]:
    """The rates of those fragments whose groups have rates of their own."""
    found: dict[str, list[tuple[int | str, float]]] = {}
    keys: dict[str, str] = {}
    for portion in (p for p in portions if p.values and p.fragment.group_key is not None):
        keys[portion.fragment.name] = portion.fragment.group_key or ""
        found.setdefault(portion.fragment.name, []).extend((v, rates[portion.name]) for v in portion.values)
    return {
        name: GroupRates(keys[name], tuple(own)) for name, own in found.items() if any(rate < 1.0 for _, rate in own)
    }
