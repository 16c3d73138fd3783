"""The site core: partials in, updates and progress out; one shard of the keys of every fragment at a site.

Pure and deterministic: the same events with the same times give the same actions. Invariants: nothing that
was absorbed is lost or sent twice; a mark is announced only after everything before it has been sent; marks
never regress.

Bound: `CacheLimits`. At the bound keys that were already sent are forgotten, then the least recently touched
partials leave early (more traffic, no loss). While the link is blocked nothing can leave: then `full` asks
the runner to stop reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.errors import SiteError
from catchment.progress.events import Ticked
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.debts import BatchRepaired, BatchShed, ShedDebts
from catchment.site.cache import PartialCache
from catchment.site.event_clock import EventClock
from catchment.site.events import (
    Absorbed,
    Action,
    Event,
    FragmentAdded,
    FragmentBounded,
    FragmentDropped,
    LinkMeasured,
    LowMarkRaised,
    Observed,
    Send,
)
from catchment.site.policies.base import LinkView, Policy
from catchment.site.release import Release, ReleaseGate
from catchment.site.slack import QuerySlack, SlackPlan
from catchment.timeline import END_OF_TIME_US, Slicing
from catchment.wire.messages import Progress, Repaired, Shed, Standing, Updates

Snapshot = tuple[dict[str, Any], dict[str, pa.Table]]

_RELIEF_SHARE = 0.75  # a cache at its bound is emptied down to this share of it


@dataclass(frozen=True)
class CacheLimits:
    """How much a core may hold, over all its fragments."""

    max_rows: int = 2_000_000
    max_bytes: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.max_bytes < 1:
            raise SiteError(
                f"a cache needs room for at least one row, not {self.max_rows} rows, {self.max_bytes} bytes"
            )


@dataclass
class _Held:
    """One fragment in the core."""

    fragment: Fragment
    policy: Policy
    weight: float
    cache: PartialCache
    gate: ReleaseGate
    begin_us: int | None = None  # to be stated
    until_us: int = END_OF_TIME_US
    slacks: tuple[QuerySlack, ...] = ()


class SiteCore:
    """Caches partials, asks policies, and says what to send."""

    def __init__(self, limits: CacheLimits | None = None) -> None:
        self.limits = limits or CacheLimits()
        self._held: dict[str, _Held] = {}
        self._clocks: dict[str, EventClock] = {}
        self._link = LinkMeasured(None, 0, False)
        self.debts = ShedDebts()
        self._facts: list[Shed | Repaired] = []  # of what was shed and repaired, until the link takes them

    @property
    def rows(self) -> int:
        """Keys it keeps in mind, sent or pending."""
        return sum(h.gate.slot_table.size for h in self._held.values())

    @property
    def pending_rows(self) -> int:
        """Partials that wait to be sent."""
        return sum(h.gate.slot_table.pending_rows for h in self._held.values())

    @property
    def nbytes(self) -> int:
        return sum(h.cache.nbytes for h in self._held.values())

    @property
    def full(self) -> bool:
        """At its bound: the runner should not read more until this is false."""
        return self.rows >= self.limits.max_rows or self.nbytes >= self.limits.max_bytes

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(self._held)

    @property
    def definitions(self) -> tuple[Fragment, ...]:
        """The fragments that are here."""
        return tuple(h.fragment for h in self._held.values())

    def policy_of(self, name: str) -> Policy:
        """The policy by which partials of a fragment leave."""
        return self._held_of(name).policy

    def weight_of(self, name: str) -> float:
        """Its share of the link among its peers."""
        return self._held_of(name).weight

    def slacks_of(self, name: str) -> tuple[SlackPlan, ...]:
        """What the queries of a fragment wait by."""
        return _plans(self._held_of(name))

    def until_us(self, name: str) -> int:
        """Up to where slices of a fragment are wanted."""
        return self._held_of(name).until_us

    def slicing_of(self, name: str) -> Slicing:
        """How a fragment cuts time."""
        return self._held_of(name).fragment.slicing

    def waiting_slices(self, name: str) -> frozenset[int]:
        """The slices of a fragment of which something waits to be sent, or to be counted."""
        return self._held_of(name).gate.waiting_slices()

    def account(self) -> dict[str, dict[str, Any]]:
        """Per fragment: its policy and weight, what waits, what was sent, and why."""
        return {
            name: {
                "policy": held.policy.name,
                "weight": held.weight,
                "pending": held.gate.slot_table.pending_rows,
                "updates": held.gate.updates_total,
                "reasons": dict(held.gate.reasons.updates),
                "last_reason": held.gate.reasons.last or None,
                "refused": held.gate.refused,
            }
            for name, held in self._held.items()
        }

    def low_mark_us(self, stream: str) -> int:
        """How far the stream has come here."""
        return self._clock(stream).low_mark_us

    def handle(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Take one event in; return what to do about it."""
        return self.handle_all((event,), now_us)

    def handle_all(self, events: Sequence[Event], now_us: int) -> tuple[Action, ...]:
        """Take the events of one entry in; return what to do about all of them together."""
        for event in events:
            self._take_in(event, now_us)
        return self._send(now_us)

    def _take_in(self, event: Event, now_us: int) -> None:
        match event:
            case FragmentAdded():
                self._add(event)
            case FragmentDropped(name=name):
                self._held_of(name)
                del self._held[name]
            case FragmentBounded(name=name, until_us=until):
                self._held_of(name).until_us = until
            case Absorbed():
                self._absorb(event, now_us)
            case LowMarkRaised():
                self._raise(event, now_us)
            case Observed(fragment=name, query=query, table=table):
                for slack in self._held_of(name).slacks:
                    if slack.plan.query == query:
                        slack.observe(table, now_us)
                self._follow(self._held_of(name), now_us)
            case LinkMeasured():
                self._link = event
            case BatchShed():
                self._facts += self.debts.shed(event)
            case BatchRepaired():
                self._facts += self.debts.repaired(event)
            case Ticked():
                for held in self._held.values():
                    for slack in held.slacks:
                        slack.tick(now_us)
                    self._follow(held, now_us)

    def is_waiting(self, now_us: int) -> bool:
        """Whether a `Ticked` would let a window go though nothing was read."""
        return any(slack.is_due(now_us) for held in self._held.values() for slack in held.slacks)

    def contracts(self, now_us: int) -> dict[str, Any]:
        """How the contract of each query that has one stands here."""
        return {s.plan.query: s.status(now_us) for held in self._held.values() for s in held.slacks}

    def _raise(self, event: LowMarkRaised, now_us: int) -> None:
        self._clock(event.stream).raise_to(event.low_mark_us, now_us)
        for held in self._held.values():
            if event.ended and held.slacks and held.fragment.stream == event.stream:
                for slack in held.slacks:
                    slack.end(event.low_mark_us)
                self._follow(held, now_us)

    def _follow(self, held: _Held, now_us: int) -> None:
        """A fragment with controllers has come as far as the slowest of them."""
        if held.slacks:
            self._clock_of(held).raise_to(min(slack.low_mark_us for slack in held.slacks), now_us)

    def snapshot(self) -> Snapshot:
        """All state, the definitions of the fragments included; and tables by name."""
        meta = {
            "clocks": self._clocks,
            "link": self._link,
            "debts": self.debts,
            "facts": self._facts,
            "fragments": {
                n: {"policy": h.policy.name, "gate": h.gate, "until_us": h.until_us,
                    "added": FragmentAdded(h.fragment, h.policy, h.weight, h.begin_us, _plans(h)),
                    "slacks": h.slacks}
                for n, h in self._held.items()
            },
        }  # fmt: skip
        tables: dict[str, pa.Table] = {}
        for name, held in self._held.items():
            tables[f"{name}/index"] = held.cache.index.table
            tables[f"{name}/log"] = held.cache.log.table
            held.gate.slot_table.trim()
        return meta, tables

    def restore(self, snapshot: Snapshot) -> None:
        """Take back the state of a snapshot. What the owner has added before counts: fragments that the snapshot does
        not know start empty, a policy that was changed starts fresh."""
        meta, tables = snapshot
        self._clocks = meta["clocks"]
        self._link = meta["link"]
        self.debts = meta["debts"]
        self._facts = meta["facts"]
        for name, saved in meta["fragments"].items():
            if name not in self._held:
                self._add(saved["added"])
            self._held[name] = _revived(self._held[name], saved, tables)

    def validate(self) -> None:
        """Its own invariants, as asserts; tests call it after each event."""
        for held in self._held.values():
            slot_table = held.gate.slot_table
            held.gate.validate(self._clock_of(held).low_mark_us, self._link.blocked)
            assert held.cache.index.rows == slot_table.size, "index and slot_table differ in size"
            assert set(held.cache.log.slots().tolist()) == set(slot_table.pending_slots().tolist()), (
                "states without slot"
            )
            assert held.cache.index.table[SLICE_COLUMN].to_pylist() == slot_table.slice_us.tolist()

    def _add(self, event: FragmentAdded) -> None:
        fragment, held = event.fragment, self._held.get(event.fragment.name)
        if held is None:
            gate = ReleaseGate(fragment.slicing, event.policy.build())
            cache, slacks = PartialCache(fragment), tuple(QuerySlack.start(plan) for plan in event.slacks)
            begin = event.begin_us
            self._held[fragment.name] = _Held(fragment, event.policy, event.weight, cache, gate, begin, slacks=slacks)
        elif held.fragment != fragment:
            raise SiteError("another fragment of this name is here", where=f"fragment {fragment.name!r}",
                            hint="drop it first, or give the new one another name")  # fmt: skip
        else:
            if held.policy != event.policy:
                held.policy, held.gate.policy_state = event.policy, event.policy.build()
            held.weight = event.weight
            if _plans(held) != event.slacks:  # queries came or went: those that stay go on
                known = {slack.plan: slack for slack in held.slacks}
                held.slacks = tuple(known.get(plan) or QuerySlack.start(plan) for plan in event.slacks)
        self._clock(fragment.stream)

    def _absorb(self, event: Absorbed, now_us: int) -> None:
        held = self._held_of(event.fragment)
        event = _bounded(event, held.until_us)
        clock = self._clock_of(held)
        if event.partials.num_rows:
            partials = held.cache.conform(event.partials)
            slots = held.cache.slots_of(partials)
            slices = np.asarray(partials[SLICE_COLUMN].to_numpy(), dtype=np.int64)
            once = np.ones(len(slots), dtype=np.int64)
            held.gate.admit(slots, slices, held.cache.identities(partials), once, clock, now_us)
            held.cache.absorb(slots, partials, held.gate.slot_table.pending_rows)
        held.gate.note_records(event.records, clock)

    def _send(self, now_us: int) -> tuple[Action, ...]:
        messages: list[Updates | Progress | Shed | Repaired | Standing] = [*self._begins()]
        if self._link.blocked:
            return (Send(tuple(messages)),) if messages else ()
        for held in self._held.values():
            clock = self._clock_of(held)
            releases = held.gate.release(clock, self._link_of(held), now_us)
            messages += _updates(held, releases)
            _swept(held)
        messages += self._relief()
        for held in self._held.values():
            messages += [m for slack in held.slacks for m in slack.take_standings(held.fragment.name)]
            messages += _progress(held, self._clock_of(held).low_mark_us)
        messages += self._facts
        self._facts = []
        return (Send(tuple(messages)),) if messages else ()

    def _begins(self) -> list[Progress]:
        """Where fragments that were added during a run begin: stated at once, even onto a blocked link."""
        new = [h for h in self._held.values() if h.begin_us is not None]
        stated = [Progress(h.fragment.name, h.begin_us or 0, h.gate.updates_total) for h in new]
        for held in new:
            held.begin_us = None
        return stated

    def _relief(self) -> list[Updates]:
        """At the bound: forget what was sent, then send what was touched least recently."""
        if not self.full:
            return []
        for held in self._held.values():
            _swept(held, forget_sent=True)
        over = max(self.rows / self.limits.max_rows, self.nbytes / self.limits.max_bytes)
        if over < 1.0:
            return []
        messages: list[Updates] = []
        for held in self._held.values():
            rows = ceil(held.gate.slot_table.pending_rows * (1 - _RELIEF_SHARE / over))
            messages += _updates(held, held.gate.relieve(rows))
            _swept(held, forget_sent=True)
        return messages

    def _link_of(self, held: _Held) -> LinkView:
        """Its share of the link, in updates, by weight among the fragments that have something to send."""
        row_bytes = held.cache.row_bytes * self._link.wire_ratio
        busy = [h.weight for h in self._held.values() if h.gate.slot_table.pending_rows or h is held]
        queued, frame = self._link.queued_bytes / row_bytes, self._link.frame_bytes / row_bytes
        if self._link.goodput_bytes_per_s is None:
            return LinkView(None, None, queued, frame)
        rate = self._link.goodput_bytes_per_s * held.weight / sum(busy) / row_bytes
        return LinkView(rate, rate, queued, frame)

    def _clock(self, stream: str) -> EventClock:
        return self._clocks.setdefault(stream, EventClock())

    def _clock_of(self, held: _Held) -> EventClock:
        """The clock that a fragment goes by: its own where controllers say how far it is."""
        return self._clock(f"{held.fragment.stream}/{held.fragment.name}" if held.slacks else held.fragment.stream)

    def _held_of(self, name: str) -> _Held:
        held = self._held.get(name)
        if held is None:
            raise SiteError(f"there is no fragment {name!r} here", hint=f"there are {sorted(self._held)}")
        return held


def _revived(held: _Held, saved: dict[str, Any], tables: dict[str, pa.Table]) -> _Held:
    fragment, name = held.fragment, held.fragment.name
    cache = PartialCache(fragment, tables[f"{name}/index"], tables[f"{name}/log"])
    gate = saved["gate"]
    if saved["policy"] != held.policy.name:
        gate.policy_state = held.policy.build()
    slacks = tuple(old.resume(new.plan) for old, new in zip(saved["slacks"], held.slacks, strict=True))
    begin = saved["added"].begin_us
    return _Held(fragment, held.policy, held.weight, cache, gate, begin, saved["until_us"], slacks)


def _plans(held: _Held) -> tuple[SlackPlan, ...]:
    return tuple(slack.plan for slack in held.slacks)


def _bounded(event: Absorbed, until_us: int) -> Absorbed:
    """The part of a micro-batch's partials that somebody wants."""
    if until_us == END_OF_TIME_US or not event.partials.num_rows:
        return event
    table = event.partials.filter(pc.less(event.partials[SLICE_COLUMN], until_us))
    return Absorbed(event.fragment, table, tuple(r for r in event.records if r[0] < until_us))


def _updates(held: _Held, releases: list[Release]) -> list[Updates]:
    """At most two messages: what is on time, and what is late."""
    messages = []
    for late in (False, True):
        mine = [r for r in releases if r.late == late]
        if mine:
            table = held.cache.take(np.concatenate([r.slots for r in mine]))
            records = tuple((r.slice_us, r.records) for r in mine if r.records)
            messages.append(Updates(held.fragment.name, table, records))
    return messages


def _progress(held: _Held, low_mark_us: int) -> list[Progress]:
    mark = held.gate.mark(low_mark_us)
    if mark <= held.gate.announced_us:
        return []
    held.gate.announced_us = mark
    return [Progress(held.fragment.name, mark, held.gate.updates_total)]


def _swept(held: _Held, forget_sent: bool = False) -> None:
    renamed = held.gate.forget_sent() if forget_sent else held.gate.sweep()
    if renamed is not None:
        held.cache.keep(renamed)
