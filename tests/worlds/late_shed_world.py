"""Sites whose records are late and whose batches are sampled, and the center that answers from them: cores alone.

Site cores with slack controllers and the center core are the real ones, without journals, files or a wire; the records
of every window are kept, so that each published row can be held against the truth. Sources keep their own order and
stall now and then; every micro-batch is sampled at a rate of its own, and some are repaired while the run goes on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.aggregates import make_aggregate, partials
from catchment.aggregates.shed_terms import ShedTerms, terms_in, with_terms
from catchment.center.core import CenterCore
from catchment.center.events import Publish, QueryAdded, Recalled
from catchment.center.query import CenterQuery
from catchment.center.results.bounds import ResultBounds, law_of_aggregate
from catchment.progress.consumer import gather
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.quality.contract import Contract, per_site_contract, share_contract, watched_quantities
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key
from catchment.relay.core import RelayCore
from catchment.relay.events import Carried
from catchment.shedding.debts import BatchRepaired, BatchShed, FragmentSample
from catchment.shedding.sampler import Sampler
from catchment.shedding.terms import add_terms, negate_terms
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, Event, FragmentAdded, LowMarkRaised, Observed
from catchment.site.policies.registry import policy_by_name
from catchment.site.slack import SlackPlan, watched_values
from catchment.timeline import END_OF_TIME_US, SECOND_US, WindowSpec
from catchment.wire.messages import Segment
from tests.worlds.world import Tables

WINDOW = WindowSpec.tumbling(SECOND_US)
CONTRACT = Contract(0.1, 0.9)
SITES = ("a", "b", "c")
RECORDS_PER_S = 12  # of each source
DAY_US = 24 * 3600 * SECOND_US
RATES = (1.0, 0.6, 0.3)
Row = tuple[str, int, str, int]  # source, event time, key, value


def make_fragment(keyed: bool) -> Fragment:
    aggregates = [
        make_aggregate("count", None, None, name="n"),
        make_aggregate("sum", "v", pa.int64(), name="total"),
    ]
    if not keyed:
        aggregates.append(make_aggregate("avg", "v", pa.int64(), name="mean"))
    keys = (Key("k", "k", pa.string()),) if keyed else ()
    return Fragment("q", "s", "ts", keys, with_terms(tuple(aggregates)), (WINDOW,))


@dataclass
class LateShedSite:
    """One site: what it is given is observed, sampled, sent and, when it is asked to, repaired."""

    name: str
    fragment: Fragment
    slack: SlackPlan | None
    core: SiteCore = field(default_factory=SiteCore)
    raw: dict[int, tuple[list[Row], np.ndarray, float]] = field(default_factory=dict)
    batches: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        slacks = (self.slack,) if self.slack is not None else ()
        self.core.handle(FragmentAdded(self.fragment, policy_by_name("batching"), slacks=slacks), 0)

    def take(self, rows: list[Row], rate: float, chance: np.random.Generator, now_us: int) -> list[Segment]:
        """Take a micro-batch, sampled at a rate."""
        keep = chance.random(len(rows)) < rate
        self.raw[self.batches] = rows, keep, rate
        table = lift_rows(self.fragment, [r for r, k in zip(rows, keep, strict=True) if k], rate)
        events: list[Event] = [Absorbed("q", table, _counts([r for r, k in zip(rows, keep, strict=True) if k]))]
        if rate < 1.0 and rows:
            kept = dict(_counts([r for r, k in zip(rows, keep, strict=True) if k]))
            touched = sorted({at // SECOND_US * SECOND_US for _, at, _, _ in rows})
            lacking = tuple((s, round(kept.get(s, 0) * (1 / rate - 1))) for s in touched)
            events.append(BatchShed("s", self.batches, (FragmentSample("q", Sampler(rate), lacking),)))
        if self.slack is not None:
            events.append(Observed("q", "q", _observe(rows, self.slack)))
        else:
            newest = max((at for _, at, _, _ in rows), default=None)
            events += [LowMarkRaised("s", newest)] if newest is not None else []
        self.batches += 1
        return self._send(events, now_us)

    def repair(self, now_us: int) -> list[Segment]:
        """Send what was left out of the oldest batch that is owed."""
        owed = self.core.debts.of("s")
        if not owed:
            return []
        rows, keep, rate = self.raw[owed[0].batch]
        left = [r for r, k in zip(rows, keep, strict=True) if not k]
        sampled = [r for r, k in zip(rows, keep, strict=True) if k]
        back = negate_terms(lift_rows(self.fragment, sampled, rate), self.fragment.aggregates)
        tables = pa.concat_tables([lift_rows(self.fragment, left, 1.0), back])
        both = partials.combine(tables, [SLICE_COLUMN, *self.fragment.key_names], self.fragment.aggregates)
        repaired = BatchRepaired("s", owed[0].batch, ("q",))
        return self._send([Absorbed("q", both, _counts(left)), repaired], now_us)

    def end(self, now_us: int) -> list[Segment]:
        return self._send([LowMarkRaised("s", END_OF_TIME_US, ended=True)], now_us)

    def tick(self, now_us: int) -> list[Segment]:
        return self._send([Ticked()], now_us) if self.core.is_waiting(now_us) else []

    def _send(self, events: list[Event], now_us: int) -> list[Segment]:
        segments = []
        for action in self.core.handle_all(events, now_us):
            segments.append(Segment(self.name, "e", self.sequence, action.messages))
            self.sequence += 1
        return segments


def lift_rows(fragment: Fragment, rows: list[Row], rate: float) -> pa.Table:
    """Return the partials of records that passed at a rate."""
    raw = pa.table(
        {
            SLICE_COLUMN: pa.array([at // SECOND_US * SECOND_US for _, at, _, _ in rows], pa.int64()),
            "k": pa.array([k for _, _, k, _ in rows], pa.string()),
            "v": pa.array([v for _, _, _, v in rows], pa.int64()),
        }
    )
    own = [a for a in fragment.aggregates if not isinstance(a, ShedTerms)]
    moments = [m for t in terms_in(fragment.aggregates) if (m := t.moments) is not None]
    lifted = partials.lift(raw, [SLICE_COLUMN, *fragment.key_names], [*own, *moments])
    full = add_terms(lifted, fragment.aggregates, partials.one_array(lifted["n__count"]), rate)
    return full.select(fragment.schema.names).cast(fragment.schema)


def _counts(rows: list[Row]) -> tuple[tuple[int, int], ...]:
    counts: dict[int, int] = defaultdict(int)
    for _, at, _, _ in rows:
        counts[at // SECOND_US * SECOND_US] += 1
    return tuple(sorted(counts.items()))


def _observe(rows: list[Row], slack: SlackPlan) -> pa.Table:
    groups: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for source, at, _, value in rows:
        groups[source, at // SECOND_US * SECOND_US].append((at, value))
    found = list(groups.values())
    columns = {
        "source": pa.array([s for s, _ in groups], pa.string()),
        "slice_us": pa.array([s for _, s in groups], pa.int64()),
        "newest_us": pa.array([max(at for at, _ in g) for g in found], pa.int64()),
        "oldest_us": pa.array([min(at for at, _ in g) for g in found], pa.int64()),
        "count": pa.array([len(g) for g in found], pa.int64()),
    }
    for index, _ in enumerate(watched_values(slack)):
        columns[f"total_{index}"] = pa.array([float(sum(v for _, v in g)) for g in found])
        columns[f"square_{index}"] = pa.array([float(sum(v * v for _, v in g)) for g in found])
    return pa.table(columns)


@dataclass(frozen=True)
class StatedBound:
    """One published value: how far it was off, what was stated, and when."""

    column: str
    status: str
    error: float
    bound: float | None
    kind: str


class LateShedWorld:
    """Three sites and a center; without `contract` windows close by the newest event time."""

    def __init__(
        self, seed: int, keyed: bool, shed: bool = True, contract: bool = True, early: bool = False, relay: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.fragment = make_fragment(keyed)
        self.rates = RATES if shed else (1.0,)
        late = share_contract(CONTRACT, sampled=shed, sketched=False)
        part, watched = per_site_contract(late, watched_quantities(self.fragment.aggregates), len(SITES))
        slack = SlackPlan("q", "adaptive", WINDOW, watched, part, DAY_US) if contract else None
        query = CenterQuery("q", self.fragment, WINDOW, SITES, DAY_US, contract=CONTRACT if contract else None)
        self.query = replace(query, late_delta=late.delta, early_us=SECOND_US // 2 if early else None)
        self.sites = {name: LateShedSite(name, self.fragment, slack) for name in SITES}
        self.center = CenterCore()
        self.center.handle(QueryAdded(self.query), 0)
        self.tables = Tables(self.fragment) if keyed else KeylessTables(self.fragment)
        own = [a for a in self.fragment.aggregates if not isinstance(a, ShedTerms)]
        laws = tuple(law_of_aggregate(a.name, a) for a in own)
        self.bounds = ResultBounds(self.fragment, laws, CONTRACT.delta, late.delta, None)
        self.relay = RelayCore(SECOND_US) if relay else None
        self._relayed = 0
        if self.relay is not None:
            behind = tuple((name, name) for name in SITES[:2])
            self.relay.handle(Carried(self.fragment, policy_by_name("batching"), behind), 0)
        self.truth: dict[tuple[int, str | None], list[int]] = defaultdict(list)
        self.now_us = 0

    def run(self, seconds: int, sources: int = 4) -> None:
        """Let time pass, with what arrives in it, and then bring everything to its end."""
        arriving = {name: sorted(self._records(name, seconds, sources)) for name in SITES}
        steps = 2 * (seconds + 8)
        for step in range(1, steps + 1):
            self.now_us = step * SECOND_US // 2
            segments = []
            for name, site in self.sites.items():
                queue = arriving[name]
                count = next((i for i, (at, _) in enumerate(queue) if at > self.now_us), len(queue))
                rows = [row for _, row in queue[:count]]
                del queue[:count]
                rate = self.chance.choice(self.rates)
                segments += site.take(rows, rate, self.numbers, self.now_us) if rows else site.tick(self.now_us)
                if self.chance.random() < 0.1:
                    segments += site.repair(self.now_us)
            self._bring(segments)
        self._end()

    def stated(self) -> Iterator[StatedBound]:
        """Yield every value that was published before its window was exact, with its bound and its error."""
        for published in self.tables.published:
            if published.rows.num_rows and published.status not in ("exact", "final"):
                yield from self._judge(published)

    def _judge(self, published: Publish) -> Iterator[StatedBound]:
        own = [a for a in self.fragment.aggregates if not isinstance(a, ShedTerms)]
        lowered = partials.lower(published.rows, self.fragment.key_names, own)
        lowered, sampled = self.bounds.scale(published, lowered)
        found = self.bounds.row_bounds(published, lowered, sampled)
        rows = zip(lowered.to_pylist(), found.bound.to_pylist(), found.kind.to_pylist(), strict=True)
        for row, bound, kind in rows:
            values = self.truth[published.window.start_us, row.get("k")]
            truths = {"n": len(values), "total": sum(values), "mean": sum(values) / len(values) if values else 0.0}
            for column in bound:
                error = abs(float(row[column] or 0.0) - truths[column]) / truths[column]
                yield StatedBound(column, published.status, error, bound[column], kind[column])

    def _records(self, site: str, seconds: int, sources: int) -> Iterator[tuple[int, Row]]:
        until = seconds * SECOND_US
        for source in range(sources):
            begins = [self.chance.randrange(until) for _ in range(max(seconds // 12, 1))]
            stalls = [(b, b + round(min(self.chance.paretovariate(1.5), 5.0) * SECOND_US)) for b in begins]
            arrived = 0
            for at in range(0, until, SECOND_US // RECORDS_PER_S):
                arrived = max([arrived, at + 10_000, *(end for begin, end in stalls if begin <= at < end)])
                row = f"{site}{source}", at, self.chance.choice("xyz"), self.chance.randrange(1, 10)
                for key in (None, row[2]) if self.fragment.keys else (None,):
                    self.truth[at // SECOND_US * SECOND_US, key].append(row[3])
                yield arrived, row

    def _end(self) -> None:
        for site in self.sites.values():
            self._bring(site.end(self.now_us))
            while site.core.debts.of("s"):
                self._bring(site.repair(self.now_us))
        self.now_us += 60 * SECOND_US
        self._bring([])
        self._bring([])

    def _bring(self, segments: list[Segment]) -> None:
        if self.relay is not None:
            through = [s for s in segments if s.origin in SITES[:2]]
            segments = [s for s in segments if s.origin not in SITES[:2]] + self._pass_on(self.relay, through)
        events = [*gather(segments, {"q": self.fragment}), *(Landed.of(s) for s in segments), Ticked()]
        self._handle(events)
        due = self.center.repairs(self.now_us)
        if due:
            recalled = [Recalled(r.query, r.windows, self.tables.recall(r.wanted), r.reason) for r in due]
            self._handle([*recalled, Ticked()])

    def _pass_on(self, relay: RelayCore, segments: list[Segment]) -> list[Segment]:
        """Return what the relay sends on when these segments have landed there."""
        landed: list[Gathered | Landed | Ticked] = [*gather(segments, {"q": self.fragment})]
        sent = []
        for action in relay.handle_all([*landed, *map(Landed.of, segments), Ticked()], self.now_us):
            sent.append(Segment("hub", "e", self._relayed, (*action.updates, *action.facts)))
            self._relayed += 1
        return sent

    def _handle(self, events: list[Any]) -> None:
        self.tables.published += [a for a in self.center.handle_all(events, self.now_us) if isinstance(a, Publish)]


class KeylessTables(Tables):
    """Result tables of a query without keys."""

    def latest(self) -> dict[tuple[int, str], dict[str, Any]]:
        return {(p.window.start_us, ""): row for p in self.published for row in p.rows.to_pylist()}

    def recall(self, wanted: pa.Table) -> pa.Table:
        known = self.latest()
        starts = sorted(set(wanted["window_start_us"].to_pylist()))
        fields = [pa.field("window_start_us", pa.int64()), *(f for f in self.fragment.schema if f.name != SLICE_COLUMN)]
        rows = [{"window_start_us": s, **known[s, ""]} for s in starts if (s, "") in known]
        return pa.Table.from_pylist(rows, pa.schema(fields))
