"""The release gate: what of one fragment leaves the cache, and when; numbers only.

It owns the slot table, asks the policy, and keeps the rules that no policy can break:
- a slice whose end the low mark has passed is due: everything pending for it leaves (late, if its end had already been
  announced), the earliest slices first; what an outbox has no room for is held until the next release;
- the mark it announces never passes the start of a slice that still has something pending, and never regresses;
- every raw record is reported with exactly one release.

The site core and the simulator drive the same gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from catchment.arrays import Ints, Mask
from catchment.site.event_clock import EventClock
from catchment.site.policies.base import (
    APART,
    DUE,
    LATE,
    NO_SLOTS,
    RELIEF,
    LinkView,
    Moment,
    PolicyState,
    Proposal,
    ReasonCounts,
    SliceView,
)
from catchment.site.policies.key_rates import KeyRates
from catchment.site.room import Fits
from catchment.site.slot_table import Instants, Slots, SlotTable
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing

stored()(Slicing)  # a gate holds one; the time line itself knows nothing of storage


@stored()
@dataclass(slots=True)
class OpenSlice:
    """Totals of one slice."""

    start_us: int
    end_us: int
    stale: bool = False  # opened after it was due: nothing to learn from it
    slots: int = 0
    pending: int = 0  # slots
    arrivals: int = 0
    misses: int = 0  # arrivals for slots that were not pending
    sent: int = 0  # slots
    unreported: int = 0  # raw records that no release has reported yet

    @property
    def empty(self) -> bool:
        return self.pending == 0 and self.unreported == 0


@dataclass(frozen=True, slots=True)
class Release:
    """Slots of one slice that left together, and the raw records they stand for."""

    slice_us: int
    slots: Slots
    records: int
    late: bool = False


@stored()
@dataclass(eq=False)
class ReleaseGate:
    """The gate of one fragment."""

    slicing: Slicing
    policy_state: PolicyState
    slot_table: SlotTable = field(default_factory=SlotTable)
    key_rates: KeyRates = field(default_factory=KeyRates)
    announced_us: int = START_OF_TIME_US
    updates_total: int = 0
    reasons: ReasonCounts = field(default_factory=ReasonCounts)
    refused: int = 0  # proposed slots that could not leave: a fault of the policy
    open_slices: dict[int, OpenSlice] = field(default_factory=dict)  # by start

    def admit(
        self,
        slots: Slots,
        slices_us: Ints,
        identities: Ints,
        arrivals: Ints,
        clock: EventClock,
        at_us: Instants,
    ) -> None:
        """Take records in: each slot is named once, new slots are numbered on from the size of the slot table."""
        fresh = slots >= self.slot_table.size
        if fresh.any():
            order = np.flatnonzero(fresh)[np.argsort(slots[fresh], kind="stable")]
            first_us = at_us[order] if isinstance(at_us, np.ndarray) else at_us
            past_rates = self.key_rates.lookup(identities[order])
            self.slot_table.add(slices_us[order], identities[order], past_rates, first_us)
        misses = self.slot_table.add_arrivals(slots, arrivals, at_us)
        for start, members in _groups(slices_us):
            open_slice = self._open(start, clock)
            missed = int(np.count_nonzero(misses[members]))
            open_slice.slots += int(np.count_nonzero(fresh[members]))
            open_slice.arrivals += int(arrivals[members].sum())
            open_slice.misses += missed
            open_slice.pending += missed

    def note_records(self, records: Iterable[tuple[int, int]], clock: EventClock) -> None:
        """Count the raw records, per slice, that stand behind what was admitted."""
        for start, count in records:
            if count:
                self._open(start, clock).unreported += count

    def release(self, clock: EventClock, link: LinkView, now_us: int, fits: Fits = len) -> list[Release]:
        """Release everything that leaves now: late and due slots, and what the policy proposes, as far as it fits."""
        releases: list[Release] = []
        for open_slice, pending in list(self._pending_by_slice()):
            if open_slice.end_us <= clock.low_mark_us:
                late = open_slice.end_us <= self.announced_us
                releases += self._release(open_slice, pending[: fits(pending)], LATE if late else DUE, late)
                if open_slice.empty:
                    self._close(open_slice, clock, link, now_us)
            elif len(pending):
                releases += self._ask(open_slice, pending, self._moment(open_slice, clock, link, now_us), fits)
        return releases

    def relieve(self, rows: int, fits: Fits = len) -> list[Release]:
        """Release the least recently touched pending slots, as far as they fit: the cache is at its bound."""
        pending = self.slot_table.pending_slots()
        oldest = np.sort(pending[np.argsort(self.slot_table.last_us[pending], kind="stable")[:rows]])
        releases: list[Release] = []
        for start, members in _groups(self.slot_table.slice_us[oldest]):
            open_slice = self.open_slices[start]
            leaving = oldest[members]
            leaving = leaving[: fits(leaving)]
            releases += self._release(open_slice, leaving, RELIEF, open_slice.end_us <= self.announced_us)
        return releases

    def give_up_from(self, from_us: int) -> tuple[Slots, list[tuple[int, int]]]:
        """Give up slices that start at an instant or after; return their pending slots, and raw records by slice."""
        pending = self.slot_table.pending_slots()
        given = pending[self.slot_table.slice_us[pending] >= from_us]
        self.slot_table.mark_sent(given)
        slices = [self.open_slices.pop(start) for start in sorted(self.open_slices) if start >= from_us]
        return given, [(s.start_us, s.unreported) for s in slices]

    def mark(self, low_mark_us: int) -> int:
        """Return the mark that may be announced now."""
        waiting = (s.start_us for s in self.open_slices.values() if not s.empty)
        return max(min(low_mark_us, min(waiting, default=low_mark_us)), self.announced_us)

    def waiting_slices(self) -> frozenset[int]:
        """Return the slices with something that waits to be sent or to be reported."""
        return frozenset(start for start, s in self.open_slices.items() if not s.empty)

    def held_from_us(self, low_mark_us: int) -> int:
        """Return the first slice that is due and waits for room; the end of time, if none does."""
        held = (s.start_us for s in self.open_slices.values() if s.end_us <= low_mark_us and not s.empty)
        return min(held, default=END_OF_TIME_US)

    @property
    def untouched_since_us(self) -> int:
        """When the pending slot that was touched least recently was; the end of time, if none is pending."""
        touched_us = self.slot_table.last_us[self.slot_table.pending]
        return int(touched_us.min()) if len(touched_us) else END_OF_TIME_US

    def sweep(self) -> Slots | None:
        """Give up the slots of closed slices once they are the greater part.

        Return old slot -> new slot (-1: given up), or None when nothing changed.
        """
        dead = self.slot_table.size - sum(s.slots for s in self.open_slices.values())
        if dead == 0 or 2 * dead < self.slot_table.size:
            return None
        return self._keep(np.isin(self.slot_table.slice_us, list(self.open_slices)))

    def forget_sent(self) -> Slots:
        """Give up every sent slot: the cache is at its bound. Return old slot -> new slot (-1: given up)."""
        self.slot_table.forgotten += 1
        return self._keep(self.slot_table.pending.copy())

    def validate(self, low_mark_us: int, blocked: bool) -> None:
        """Assert the invariants of the gate."""
        pending = self.slot_table.pending_slots()
        slices_us = self.slot_table.slice_us[pending]
        assert self.slot_table.pending_rows == len(pending) == sum(s.pending for s in self.open_slices.values())
        for start, open_slice in self.open_slices.items():
            assert int((slices_us == start).sum()) == open_slice.pending, f"slice {start} miscounts its pending slots"
            assert open_slice.unreported >= 0
            assert blocked or open_slice.end_us > low_mark_us, f"slice {start} is due and still here"
            assert blocked or open_slice.empty or open_slice.end_us > self.announced_us, "announced but still pending"
        assert self.announced_us <= max(low_mark_us, START_OF_TIME_US)
        assert self.reasons.updates.total() == self.updates_total, "an update left without a reason"
        assert np.isin(slices_us, list(self.open_slices)).all()

    def _open(self, start_us: int, clock: EventClock) -> OpenSlice:
        open_slice = self.open_slices.get(start_us)
        if open_slice is None:
            end_us = self.slicing.end_of(start_us)
            open_slice = OpenSlice(start_us, end_us, stale=end_us <= clock.low_mark_us)
            self.open_slices[start_us] = open_slice
        return open_slice

    def _pending_by_slice(self) -> Iterator[tuple[OpenSlice, Slots]]:
        """Yield the open slices, earliest first, each with its pending slots."""
        pending = self.slot_table.pending_slots()
        if len(self.open_slices) == 1:
            yield next(iter(self.open_slices.values())), pending
            return
        members = dict(_groups(self.slot_table.slice_us[pending]))
        for start in sorted(self.open_slices):
            yield self.open_slices[start], pending[members[start]] if start in members else NO_SLOTS

    def _ask(self, open_slice: OpenSlice, pending: Slots, moment: Moment, fits: Fits) -> list[Release]:
        """Release what the policy proposes, as far as it may leave and fits."""
        view = self._view(open_slice, pending)
        proposal = self.policy_state.propose(view, moment)
        allowed = self._check(proposal, view)
        allowed = allowed[: fits(allowed)]
        if not len(allowed):
            return []
        return self._release(open_slice, allowed, proposal.reason, False, proposal.detail)

    def _check(self, proposal: Proposal, view: SliceView) -> Slots:
        """Return the proposed slots that are pending slots of the slice; count the others."""
        if proposal.slots is view.pending or not len(proposal.slots):
            return proposal.slots
        asked = np.asarray(proposal.slots, dtype=np.int64)
        exists = (asked >= 0) & (asked < self.slot_table.size)
        is_asked = np.zeros(self.slot_table.size, dtype=np.bool_)  # cheaper than to sort or hash the slots
        is_asked[asked[exists]] = True
        known = np.flatnonzero(is_asked)
        allowed = known[self.slot_table.pending[known] & (self.slot_table.slice_us[known] == view.start_us)]
        self.refused += len(np.unique(asked[~exists])) + len(known) - len(allowed)
        return np.asarray(allowed)

    def _release(self, open_slice: OpenSlice, slots: Slots, reason: str, late: bool, detail: str = "") -> list[Release]:
        # Records are counted per slice, not per key: each release reports its share, the last one the rest.
        share = open_slice.unreported
        if len(slots) < open_slice.pending:
            share = open_slice.unreported * len(slots) // open_slice.pending
        if len(slots) == 0 and share == 0:
            return []
        self.slot_table.mark_sent(slots)
        open_slice.pending -= len(slots)
        open_slice.sent += len(slots)
        open_slice.unreported -= share
        self.updates_total += len(slots)
        self.reasons.add(reason, len(slots), detail)
        return [Release(open_slice.start_us, slots, share, late)]

    def count_apart(self, rows: int) -> None:
        """Count updates beyond one per key, which left apart because a sum of them would not fit."""
        if rows:
            self.updates_total += rows
            self.reasons.add(APART, rows)

    def _close(self, open_slice: OpenSlice, clock: EventClock, link: LinkView, now_us: int) -> None:
        if not open_slice.stale:
            slots = np.flatnonzero(self.slot_table.slice_us == open_slice.start_us)
            self.key_rates.learn(self.slot_table.identity[slots], self.slot_table.arrivals[slots])
            moment = self._moment(open_slice, clock, link, now_us)
            self.policy_state.close(self._view(open_slice, NO_SLOTS), moment)
        del self.open_slices[open_slice.start_us]

    def _view(self, open_slice: OpenSlice, pending: Slots) -> SliceView:
        return SliceView(
            slot_table=self.slot_table,
            start_us=open_slice.start_us,
            end_us=open_slice.end_us,
            arrivals=open_slice.arrivals,
            misses=open_slice.misses,
            sent=open_slice.sent,
            pending=pending,
        )

    def _moment(self, open_slice: OpenSlice, clock: EventClock, link: LinkView, now_us: int) -> Moment:
        return Moment(
            now_us=now_us,
            elapsed=clock.elapsed(open_slice.start_us, open_slice.end_us, now_us),
            left_s=clock.seconds_until(open_slice.end_us, now_us),
            span_s=(open_slice.end_us - open_slice.start_us) / clock.pace / 1e6,
            link=link,
        )

    def _keep(self, mask: Mask) -> Slots:
        renumbered = self.slot_table.keep(mask)
        for open_slice in self.open_slices.values():
            open_slice.slots = 0
        for start, members in _groups(self.slot_table.slice_us):
            self.open_slices[start].slots = len(self.slot_table.slice_us[members])
        return renumbered


def _groups(values: Ints) -> Iterator[tuple[int, Slots | slice]]:
    """Yield each distinct value, in order, with the positions where it stands."""
    if len(values) == 0:
        return
    if values[0] == values[-1] and (values == values[0]).all():
        yield int(values[0]), slice(None)
        return
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    for positions in np.split(order, cuts):
        yield int(values[positions[0]]), positions
