"""The gate: what of one fragment leaves the cache, and when; numbers only.

It owns the slot_table, asks the policy, and keeps the rules that no policy can break:
- a slice whose end the low mark has passed is due: everything pending for it leaves (late, if its end had
  already been announced);
- the mark it announces never passes the start of a slice that still has something pending, and never
  regresses;
- every raw record is reported with exactly one release. The site core and the simulator drive the same
  gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.site.event_clock import EventClock
from catchment.site.policies.base import NO_SLOTS, Moment, PolicyState, Proposal, SliceView
from catchment.site.policies.key_rates import Identities, KeyRates
from catchment.site.policies.reasons import DUE, LATE, RELIEF, Tally
from catchment.site.slot_table import Instants, Mask, Slots, SlotTable
from catchment.timeline import START_OF_TIME_US, Slicing


@dataclass(frozen=True, slots=True)
class LinkView:
    """The link as one fragment sees it, in updates: what it is believed to take, took when busy, and still
    holds; and how many updates the frame around a release is worth.
    """

    rate: float | None = None
    measured: float | None = None
    queued: float = 0.0
    frame: float = 0.0


@dataclass(slots=True)
class OpenSlice:
    """Totals of one slice: slots, pending slots, arrivals, misses, slots sent, records not yet reported."""

    start_us: int
    end_us: int
    stale: bool = False  # opened after it was due: nothing to learn from it
    slots: int = 0
    pending: int = 0
    arrivals: int = 0
    misses: int = 0
    sent: int = 0
    unreported: int = 0

    @property
    def empty(self) -> bool:
        return self.pending == 0 and self.unreported == 0


@dataclass(frozen=True, slots=True)
class Release:
    """Slots of one slice that left together, the raw records they stand for, and why."""

    slice_us: int
    slots: Slots
    records: int
    reason: str
    late: bool = False


@dataclass
class ReleaseGate:
    """The gate of one fragment."""

    slicing: Slicing
    state: PolicyState
    slot_table: SlotTable = field(default_factory=SlotTable)
    heat: KeyRates = field(default_factory=KeyRates)
    announced_us: int = START_OF_TIME_US
    updates_total: int = 0
    tally: Tally = field(default_factory=Tally)
    refused: int = 0  # proposed slots that could not leave: a fault of the policy
    open: dict[int, OpenSlice] = field(default_factory=dict)

    def admit(
        self,
        slots: Slots,
        slices_us: npt.NDArray[np.int64],
        identities: Identities,
        arrivals: npt.NDArray[np.int64],
        clock: EventClock,
        at_us: Instants,
    ) -> None:
        """Records came: each slot named once, new slots numbered on from the slot_table's size."""
        fresh = slots >= self.slot_table.size
        if fresh.any():
            order = np.flatnonzero(fresh)[np.argsort(slots[fresh], kind="stable")]
            born_us = at_us[order] if isinstance(at_us, np.ndarray) else at_us
            self.slot_table.open(slices_us[order], identities[order], self.heat.of(identities[order]), born_us)
        misses = self.slot_table.arrive(slots, arrivals, at_us)
        for start, members in _groups(slices_us):
            piece = self._opened(start, clock)
            piece.slots += int(np.count_nonzero(fresh[members]))
            piece.arrivals += int(arrivals[members].sum())
            missed = int(np.count_nonzero(misses[members]))
            piece.misses += missed
            piece.pending += missed

    def note_records(self, records: Iterable[tuple[int, int]], clock: EventClock) -> None:
        """So many raw records stand behind what was admitted."""
        for start, count in records:
            if count:
                self._opened(start, clock).unreported += count

    def release(self, clock: EventClock, link: LinkView, now_us: int) -> list[Release]:
        """Everything that leaves now: late and due slots, then what the policy proposes."""
        out: list[Release] = []
        for piece, pending in list(self._pieces()):
            if piece.end_us <= clock.low_mark_us:
                late = piece.end_us <= self.announced_us
                self._enact(piece, pending, LATE if late else DUE, late, out)
                self._close(piece, clock, link, now_us)
            elif len(pending):
                view = self._view(piece, pending)
                proposal = self.state.propose(view, self._moment(piece, clock, link, now_us))
                chosen = self._checked(proposal, view)
                if len(chosen):
                    self._enact(piece, chosen, proposal.reason, False, out, proposal.detail)
        return out

    def relieve(self, rows: int) -> list[Release]:
        """Send the least recently touched pending slots: the cache is at its bound."""
        pending = self.slot_table.pending_slots()
        oldest = np.sort(pending[np.argsort(self.slot_table.last_us[pending], kind="stable")[:rows]])
        out: list[Release] = []
        for start, members in _groups(self.slot_table.slice_us[oldest]):
            piece = self.open[start]
            self._enact(piece, oldest[members], RELIEF, piece.end_us <= self.announced_us, out)
        return out

    def mark(self, low_mark_us: int) -> int:
        """The mark that may be announced now."""
        held = min((p.start_us for p in self.open.values() if not p.empty), default=low_mark_us)
        return max(min(low_mark_us, held), self.announced_us)

    def sweep(self, forget_sent: bool = False) -> Slots | None:
        """Give up the slots of closed slices once they are the greater part (or, at the bound, every sent
        slot).

        Gives old slot -> new slot (-1: given up), or None when nothing changed.
        """
        dead = self.slot_table.size - sum(p.slots for p in self.open.values())
        if forget_sent:
            self.slot_table.forgotten += 1
            return self._keep(self.slot_table.pending.copy())
        if dead == 0 or 2 * dead < self.slot_table.size:
            return None
        return self._keep(
            np.isin(self.slot_table.slice_us, np.fromiter(self.open, dtype=np.int64, count=len(self.open)))
        )

    def dump(self) -> dict[str, Any]:
        """Everything but the slot_table's columns, as plain JSON."""
        return {
            "state": self.state.dump(),
            "announced_us": self.announced_us,
            "updates_total": self.updates_total,
            "tally": self.tally.dump(),
            "refused": self.refused,
            "forgotten": self.slot_table.forgotten,
            "open": [asdict(p) for p in self.open.values()],
        }

    def load(self, dump: dict[str, Any], slot_table: SlotTable, heat: KeyRates) -> None:
        """Become what was dumped (the policy's state is built by the caller)."""
        self.slot_table, self.heat = slot_table, heat
        self.slot_table.forgotten = dump["forgotten"]
        self.announced_us = dump["announced_us"]
        self.updates_total = dump["updates_total"]
        self.tally = Tally.load(dump["tally"])
        self.refused = dump["refused"]
        self.open = {p["start_us"]: OpenSlice(**p) for p in dump["open"]}

    def validate(self, low_mark_us: int, blocked: bool) -> None:
        """Its own invariants, as asserts."""
        pending = self.slot_table.pending_slots()
        assert self.slot_table.pending_rows == len(pending) == sum(p.pending for p in self.open.values())
        for piece in self.open.values():
            mine = self.slot_table.slice_us[pending] == piece.start_us
            assert int(mine.sum()) == piece.pending, f"slice {piece.start_us} miscounts its pending slots"
            assert piece.unreported >= 0
            assert blocked or piece.end_us > low_mark_us, f"slice {piece.start_us} is due and still here"
            assert blocked or piece.empty or piece.end_us > self.announced_us, "announced what is still pending"
        assert self.announced_us <= max(low_mark_us, START_OF_TIME_US)
        assert self.tally.counts.total() == self.updates_total, "an update left without a reason"
        assert np.isin(self.slot_table.slice_us[pending], list(self.open)).all()

    def _opened(self, start_us: int, clock: EventClock) -> OpenSlice:
        piece = self.open.get(start_us)
        if piece is None:
            end = self.slicing.end_of(start_us)
            piece = self.open[start_us] = OpenSlice(start_us, end, stale=end <= clock.low_mark_us)
        return piece

    def _pieces(self) -> Iterator[tuple[OpenSlice, Slots]]:
        """Open slices, earliest first, each with its pending slots."""
        pending = self.slot_table.pending_slots()
        if len(self.open) == 1:
            yield next(iter(self.open.values())), pending
            return
        members = dict(_groups(self.slot_table.slice_us[pending]))
        for start in sorted(self.open):
            yield self.open[start], pending[members[start]] if start in members else NO_SLOTS

    def _enact(
        self, piece: OpenSlice, slots: Slots, reason: str, late: bool, out: list[Release], detail: str = ""
    ) -> None:
        # Record counts are known per slice, not per key: each release carries its share, the last one the
        # rest.
        share = piece.unreported if len(slots) == piece.pending else piece.unreported * len(slots) // piece.pending
        if len(slots) == 0 and share == 0:
            return
        self.slot_table.leave(slots)
        piece.pending -= len(slots)
        piece.sent += len(slots)
        piece.unreported -= share
        self.updates_total += len(slots)
        self.tally.add(reason, len(slots), detail)
        out.append(Release(piece.start_us, slots, share, reason, late))

    def _close(self, piece: OpenSlice, clock: EventClock, link: LinkView, now_us: int) -> None:
        if not piece.stale:
            mine = np.flatnonzero(self.slot_table.slice_us == piece.start_us)
            self.heat.learn(self.slot_table.identity[mine], self.slot_table.arrivals[mine])
            self.state.close(self._view(piece, NO_SLOTS), self._moment(piece, clock, link, now_us))
        del self.open[piece.start_us]

    def _checked(self, proposal: Proposal, view: SliceView) -> Slots:
        if proposal.slots is view.pending or not len(proposal.slots):
            return proposal.slots
        asked = np.unique(np.asarray(proposal.slots, dtype=np.int64))
        known = asked[(asked >= 0) & (asked < self.slot_table.size)]
        allowed = known[self.slot_table.pending[known] & (self.slot_table.slice_us[known] == view.start_us)]
        self.refused += len(asked) - len(allowed)
        return np.asarray(allowed)

    def _view(self, piece: OpenSlice, pending: Slots) -> SliceView:
        return SliceView(
            self.slot_table, piece.start_us, piece.end_us, piece.arrivals, piece.misses, piece.sent, pending
        )  # fmt: skip

    def _moment(self, piece: OpenSlice, clock: EventClock, link: LinkView, now_us: int) -> Moment:
        return Moment(
            now_us=now_us,
            elapsed=clock.elapsed(piece.start_us, piece.end_us, now_us),
            left_s=clock.seconds_until(piece.end_us, now_us),
            span_s=(piece.end_us - piece.start_us) / clock.pace / 1e6,
            rate=link.rate,
            measured=link.measured,
            queued=link.queued,
            frame=link.frame,
        )

    def _keep(self, mask: Mask) -> Slots:
        renamed = self.slot_table.keep(mask)
        for piece in self.open.values():
            piece.slots = 0
        for start, members in _groups(self.slot_table.slice_us):
            self.open[start].slots = len(self.slot_table.slice_us[members])
        return renamed


def _groups(values: npt.NDArray[np.int64]) -> Iterator[tuple[int, Slots | slice]]:
    """Each distinct value, in order, with the places where it stands."""
    if len(values) == 0:
        return
    if values[0] == values[-1] and (values == values[0]).all():
        yield int(values[0]), slice(None)
        return
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    for places in np.split(order, cuts):
        yield int(values[places[0]]), places
