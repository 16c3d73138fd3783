"""One fragment at a site: its cache, its release gate, and the slacks of its queries.

The gate decides about slots and the cache holds what they stand for; a `SiteFragment` is the one owner of both, so that
their slot numbers cannot come apart.

Queries of one fragment may wait unequally long for late records: each has a mark of its own. A slice leaves when it is
due for the query that waits least, and what comes for it after that leaves at once: every partial is sent once, as it
would be for that query alone. A query that waits longer merges what it waited for at the center, before its own mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from catchment.errors import SiteError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.site.account import FragmentAccount
from catchment.site.backfill import Backfill, PastAbsorbed
from catchment.site.cache import PartialCache
from catchment.site.event_clock import EventClock
from catchment.site.events import Absorbed, FragmentAdded
from catchment.site.looked_up import VersionsInUse
from catchment.site.policies.base import LinkView, Policy
from catchment.site.release import Release, ReleaseGate
from catchment.site.retry import RecordsRetried, Retry
from catchment.site.room import Fits, Room
from catchment.site.slack import QuerySlack, SlackPlan
from catchment.site.slot_table import Slots
from catchment.site.suspension import BatchSkipped, FragmentResumed, Suspension
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US
from catchment.wire.messages import BackfillFact, LookedUp, MarkFact, Progress, QueryMark, Standing, Updates

BY_STREAM = ""  # stands for the queries without a contract, which wait as long as their stream says


@dataclass(frozen=True)
class RunningFragment:
    """How a fragment runs at a site, to be compared with what is deployed."""

    fragment: Fragment
    policy: Policy
    weight: float
    slacks: tuple[SlackPlan, ...]
    until_us: int
    goes_by_stream: bool
    from_us: int


def _add_stated_mark(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 4 of version 3, in which the mark of the gate was that of every query."""
    return fields | {"stated_us": fields["gate"].announced_us}


# Version 2 has suspension and account, 3 backfill, 4 marks per query, 5 from_us, 6 sink, 7 versions, 8 retry.
@stored(version=8, migrations={1: dict, 2: dict, 3: _add_stated_mark, 4: dict, 5: dict, 6: dict, 7: dict})
@dataclass(eq=False)
class SiteFragment:
    """Takes partials in and gives updates and progress out, for one fragment."""

    policy: Policy
    cache: PartialCache
    gate: ReleaseGate
    weight: float = 1.0  # its share of the link among its peers
    slacks: tuple[QuerySlack, ...] = ()
    begin_us: int | None = None  # the first mark, until it is stated; None where the stream is read from its beginning
    until_us: int = END_OF_TIME_US  # slices that start here or later are not wanted
    suspension: Suspension = field(default_factory=Suspension)
    account: FragmentAccount = field(default_factory=FragmentAccount)
    backfill: Backfill | None = None  # where it began in the past
    goes_by_stream: bool = False  # whether a query without a contract is served beside others
    stated_us: int = START_OF_TIME_US  # the mark that was stated of all its queries
    stated_queries: dict[str, int] = field(default_factory=dict)  # query -> the mark that was stated of it alone
    from_us: int = START_OF_TIME_US  # slices that start before are not wanted: another fragment has them
    sink: str = ""  # the exit by which it leaves; empty for that towards the center
    versions: VersionsInUse = field(default_factory=VersionsInUse)  # of the tables that it looks records up in
    retry: Retry = field(default_factory=Retry)  # of the records that it has set aside

    @classmethod
    def start(cls, added: FragmentAdded) -> SiteFragment:
        """Return a fragment that has taken nothing in yet."""
        return cls(
            policy=added.policy,
            cache=PartialCache.empty(added.fragment),
            gate=ReleaseGate(added.fragment.slicing, added.policy.build()),
            weight=added.weight,
            slacks=tuple(QuerySlack.start(plan) for plan in added.slacks),
            begin_us=added.begin_us,
            backfill=None if added.past is None else Backfill.of(added.past),
            goes_by_stream=added.goes_by_stream,
            from_us=added.from_us,
            sink=added.sink,
        )

    def update(self, added: FragmentAdded) -> None:
        """Go on as the event says: a policy that was changed starts fresh, queries that stay go on."""
        if self.fragment != added.fragment:
            raise SiteError(
                "another fragment of this name is here",
                where=f"fragment {added.fragment.name!r}",
                hint="drop it first, or give the new one another name",
            )
        if self.policy != added.policy:
            self.policy = added.policy
            self.gate.policy_state = added.policy.build()
        self.weight = added.weight
        self.goes_by_stream = added.goes_by_stream
        known = {slack.plan.query: slack for slack in self.slacks}
        self.slacks = tuple(
            known[plan.query].resume(plan) if plan.query in known else QuerySlack.start(plan) for plan in added.slacks
        )

    @property
    def fragment(self) -> Fragment:
        return self.cache.fragment

    @property
    def name(self) -> str:
        return self.cache.fragment.name

    @property
    def plans(self) -> tuple[SlackPlan, ...]:
        return tuple(slack.plan for slack in self.slacks)

    @property
    def clock_name(self) -> str:
        """The name of a clock of its own, for a fragment that has or had slack controllers."""
        return f"{self.fragment.stream}/{self.name}"

    def marks(self, stream_mark_us: int) -> dict[str, int]:
        """Return how far each query with a contract is let go, and those without one, if there are such."""
        marks = {slack.plan.query: slack.low_mark_us for slack in self.slacks}
        return {**marks, BY_STREAM: stream_mark_us} if self.goes_by_stream or not marks else marks

    @property
    def rows(self) -> int:
        """How many keys it remembers, sent or pending."""
        return self.gate.slot_table.size

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing: no keys, and no slice that waits to be sent or reported."""
        return not self.gate.open_slices and not self.rows

    @property
    def pending_rows(self) -> int:
        """How many partials wait to be sent."""
        return self.gate.slot_table.pending_rows

    @property
    def is_suspended(self) -> bool:
        """Whether it takes nothing in, because an expression of it has failed."""
        return self.suspension.current is not None

    def describe(self) -> RunningFragment:
        """Return how it runs."""
        return RunningFragment(
            self.fragment, self.policy, self.weight, self.plans, self.until_us, self.goes_by_stream, self.from_us
        )

    def as_added(self) -> FragmentAdded:
        """Return the event that adds it as it is now, with nothing in it."""
        return FragmentAdded(
            self.fragment,
            self.policy,
            self.weight,
            self.begin_us,
            self.plans,
            goes_by_stream=self.goes_by_stream,
            from_us=self.from_us,
            sink=self.sink,
        )

    def status(self) -> dict[str, Any]:
        """Return its policy and weight, what waits, what was sent and why, as plain JSON."""
        return {
            "policy": self.policy.name,
            "weight": self.weight,
            "pending": self.pending_rows,
            "updates": self.gate.updates_total,
            "reasons": dict(self.gate.reasons.updates),
            "last_reason": self.gate.reasons.last or None,
            "refused": self.gate.refused,
            **self.suspension.status(),
            "account": self.account.status(),
            "backfill": None if self.backfill is None else self.backfill.status(),
            "retry": self.retry.status() if self.retry.attempt else None,
        }

    def absorb(self, event: Absorbed, clock: EventClock, now_us: int) -> None:
        """Take in the partials of a micro-batch, as far as somebody wants them."""
        self.account.evaluate()
        self._take_in(event, clock, now_us)

    def absorb_past(self, event: PastAbsorbed, clock: EventClock, now_us: int) -> None:
        """Take in the partials of past batches, unless they were taken in before."""
        if self.backfill is None or event.first != self.backfill.next_batch:
            return
        self.backfill.advance(event)
        self._take_in(Absorbed(self.name, event.partials, event.records), clock, now_us)
        self.suspension.quarantine(event.quarantined)
        self.account.quarantine_past(sum(count for _, count in event.quarantined))

    def absorb_retried(self, event: RecordsRetried, clock: EventClock, now_us: int) -> None:
        """Take in the partials of records that were set aside, unless they were taken in before."""
        if not self.retry.expects(event):
            return
        self.retry.advance(event)
        self.suspension.release(event.released)
        self.account.release(sum(count for _, count in event.released))
        self._take_in(Absorbed(self.name, event.partials, event.records), clock, now_us)

    def hand_over(self, heir: SiteFragment, clock: EventClock, now_us: int) -> None:
        """Give the heir what waits of slices that are not wanted here any more, if it computes the same.

        There is such only of records that were ahead of the wall clock, so rows are few.
        """
        if replace(self.fragment, name=heir.name) != heir.fragment:
            return
        slots, records = self.gate.give_up_from(self.until_us)
        rows = self.cache.take(slots)
        for row in range(rows.num_rows):  # one by one: a key may have several, where a sum would not fit
            heir._take_in(Absorbed(heir.name, rows.slice(row, 1)), clock, now_us)
        heir.gate.note_records(records, clock)
        for fact in self.versions.of_slices_from(self.until_us, heir.name):
            heir.note_looked_up(fact)

    def _take_in(self, event: Absorbed, clock: EventClock, now_us: int) -> None:
        event = _drop_unwanted(event, self.from_us, self.until_us)
        if event.partials.num_rows:
            partials = self.cache.conform(event.partials)
            slots = self.cache.find_slots(partials)
            slices_us = np.asarray(partials[SLICE_COLUMN].to_numpy(), dtype=np.int64)
            identities = self.cache.identify_keys(partials)
            arrivals = np.ones(len(slots), dtype=np.int64)  # a micro-batch counts once per key
            self.gate.admit(slots, slices_us, identities, arrivals, clock, now_us)
            self.cache.absorb(slots, partials, self.pending_rows)
        self.gate.note_records(event.records, clock)

    def resume(self, event: FragmentResumed) -> None:
        """Take part again, and read what was skipped from history, if that is said."""
        self.suspension.resume()
        if event.past is not None:
            if self.backfill is None:
                self.backfill = Backfill.of(event.past)
            else:
                self.backfill.add(event.past)

    def skip(self, event: BatchSkipped) -> None:
        """Count a micro-batch of which it has taken nothing, as far as somebody wants it."""
        self.account.skip()
        wanted = tuple(r for r in event.records if self.from_us <= r[0] < self.until_us)
        self.suspension.skip(replace(event, records=wanted))

    def note_looked_up(self, fact: LookedUp) -> None:
        """Note in which version of a table records were looked up."""
        self.versions.note(fact, self.from_us, self.until_us)

    def release(self, clock: EventClock, link: LinkView, now_us: int, room: Room | None = None) -> list[Updates]:
        """Return the updates that leave now; without a room all that may leave fits."""
        updates = self._take_updates(self.gate.release(clock, link, now_us, self._fits(room)))
        renumbered = self.gate.sweep()
        if renumbered is not None:
            self.cache.renumber(renumbered)
        return updates

    def relieve(self, rows: int, room: Room | None = None) -> list[Updates]:
        """Return the updates of the least recently touched partials: the cache is at its bound."""
        updates = self._take_updates(self.gate.relieve(rows, self._fits(room)))
        self.forget_sent()
        return updates

    def _fits(self, room: Room | None) -> Fits:
        return len if room is None else room.for_updates(self.cache.measure_updates())

    def forget_sent(self) -> None:
        """Give up the keys that were sent: the cache is at its bound."""
        self.cache.renumber(self.gate.forget_sent())

    def take_standings(self, held_from_us: int) -> list[Standing]:
        """Return what the center has not been told of the contracts yet, and may be while slices are held."""
        return [standing for slack in self.slacks for standing in slack.take_standings(self.name, held_from_us)]

    def take_backfilling(self) -> list[BackfillFact]:
        """Return that its past is yet to come, if that has not been stated."""
        return [] if self.backfill is None else list(self.backfill.take_begin(self.name))

    def take_backfilled(self) -> list[BackfillFact]:
        """Return that its past has been sent, if it has, after everything of it was taken."""
        facts = [] if self.backfill is None else list(self.backfill.take_end(self.name))
        if facts:
            self.account.take_skipped()
        return list(facts)

    def take_marks(self, marks: Mapping[str, int]) -> list[MarkFact]:
        """Return how far its queries are, as far as that is news, after everything before it was taken.

        The mark of the query that waits longest is true of all; those that are further have marks of their own.
        """
        if self.begin_us is not None and self.backfill is not None:
            return self.take_begin()  # alone: its mark is far ahead already, and would hide where it begins
        sent_us = self.gate.mark(max(marks.values()))
        self.gate.announced_us = sent_us
        served = {query: min(mark_us, sent_us) for query, mark_us in marks.items()}
        return [*self._take_progress(min(served.values())), *self._take_query_marks(served)]

    def _take_progress(self, mark_us: int) -> list[MarkFact]:
        if mark_us <= self.stated_us:
            return self.take_begin()
        self.stated_us = mark_us
        if self.begin_us is not None:  # stated once, and possibly ahead of the mark of a site that waits
            mark_us = max(mark_us, self.begin_us)
            self.begin_us = None
        return [Progress(self.name, mark_us, self.gate.updates_total)]

    def _take_query_marks(self, served: Mapping[str, int]) -> list[MarkFact]:
        before = {query: max(self.stated_us, self.stated_queries.get(query, START_OF_TIME_US)) for query in served}
        self.stated_queries = {q: max(m, before[q]) for q, m in served.items() if max(m, before[q]) > self.stated_us}
        news = {query: m for query, m in self.stated_queries.items() if m > before[query]}
        return [QueryMark(self.name, query, mark_us) for query, mark_us in news.items()]

    def take_begin(self) -> list[MarkFact]:
        """Return where a fragment that was added during a run begins, if that has not been stated."""
        if self.begin_us is None:
            return []
        stated = Progress(self.name, self.begin_us, self.gate.updates_total)
        self.begin_us = None
        return [stated]

    def validate(self, low_mark_us: int, blocked: bool) -> None:
        """Assert the invariants of the gate, and that the cache holds what its slots stand for."""
        table = self.gate.slot_table
        self.gate.validate(low_mark_us, blocked)
        assert self.cache.index.rows == table.size, "index and slot table differ in size"
        assert set(self.cache.log.slots().tolist()) == set(table.pending_slots().tolist()), "states without a slot"
        assert self.cache.index.table[SLICE_COLUMN].to_pylist() == table.slice_us.tolist()

    def _take_updates(self, releases: list[Release]) -> list[Updates]:
        """Return at most two messages: what is on time, and what is late."""
        messages = []
        for late in (False, True):
            chosen = [r for r in releases if r.late == late]
            if chosen:
                slots: Slots = np.concatenate([r.slots for r in chosen])
                records = tuple((r.slice_us, r.records) for r in chosen if r.records)
                rows = self.cache.take(slots)
                self.gate.count_apart(rows.num_rows - len(slots))
                messages.append(Updates(self.name, rows, records))
        return messages


def _drop_unwanted(event: Absorbed, from_us: int, until_us: int) -> Absorbed:
    """Return a micro-batch without the slices that nobody wants."""
    if (from_us == START_OF_TIME_US and until_us == END_OF_TIME_US) or not event.partials.num_rows:
        return event
    slices = event.partials[SLICE_COLUMN]
    partials = event.partials.filter(pc.and_(pc.greater_equal(slices, from_us), pc.less(slices, until_us)))
    return Absorbed(event.fragment, partials, tuple(r for r in event.records if from_us <= r[0] < until_us))
