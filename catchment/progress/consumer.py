"""The consumer of an inbox, which the center and every relay have: landed segments become entries of the journal.

One entry takes a run of landed segments, at most `SEGMENTS_PER_ENTRY`, and is numbered by the position behind the last
of them. Law: every landed segment is in exactly one entry, or is set aside. The newest number in the journal says from
where to go on, also after a crash; segments are discarded from the inbox only when the journal has them.

A segment that cannot be merged blocks its site (`catchment.progress.blocking`), and nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.errors import CatchmentError
from catchment.progress.blocking import SegmentSieve, SiteBlocked, SiteResumed, TakesSegments
from catchment.progress.events import Gathered, Landed, LeftOut
from catchment.progress.frontier import Frontier
from catchment.progress.spans import FindSpan, count_all, restrict
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.storage.host import Host
from catchment.wire.inbox import Inbox
from catchment.wire.messages import Segment, Updates, counted_in

CAUSE = "inbox"  # names the journal entries that take landed segments
SEGMENTS_PER_ENTRY = 256

Merge = Callable[[Fragment, pa.Table], pa.Table]


def merge_here(fragment: Fragment, table: pa.Table) -> pa.Table:
    """Merge partials per (slice, keys) in this process."""
    return partials.combine(table, [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)


@dataclass(frozen=True, slots=True)
class LandedRun:
    """Consecutive segments of an inbox as events: those at positions in [start, end).

    `set_aside` are the positions that are not among the events, because their sites are blocked.
    """

    start: int
    end: int
    events: tuple[Gathered | LeftOut | Landed | SiteBlocked, ...]
    set_aside: tuple[int, ...] = ()


class InboxConsumer:
    """Reads what has landed and commits it to a host.

    `merge` combines the partials of one fragment; `find_span` says for which slices a site counts.
    """

    def __init__(
        self, inbox: Inbox, host: Host[Any, Any], merge: Merge = merge_here, find_span: FindSpan = count_all
    ) -> None:
        self.inbox = inbox
        self.host = host
        self.merge = merge
        self.find_span = find_span
        self._unchecked_end = 0  # segments below this position were not checked when they landed

    @property
    def position(self) -> int:
        """The first position that is not in the journal."""
        return self.host.batches.get(CAUSE, 0)

    @property
    def is_drained(self) -> bool:
        """Whether everything that has landed is in the journal."""
        return self.position > self.inbox.last_position

    def recover(self) -> None:
        """Discard what the journal already has, and block who is blocked; a crash may have come between."""
        self.inbox.discard(self.position)
        for origin, blockage in self._core.blocked.items():
            self.inbox.block(origin, blockage.sequence, blockage.reason, blockage.since_us)
        for origin in self.inbox.set_aside.origins():
            if origin not in self._core.blocked:
                self._take_back(origin)
        self._unchecked_end = self.inbox.last_position + 1

    def resume_requested(self) -> None:
        """Take the blocked sites again that a person has asked for."""
        if not self._core.blocked:
            return
        for origin in list(self.inbox.set_aside.resume_requests()):
            self.host.submit("resume", [SiteResumed(origin)])
            self._take_back(origin)

    def read(self, fragments: Mapping[str, Fragment]) -> LandedRun | None:
        """Return the next run of landed segments, with the partials of these fragments; None if nothing has landed."""
        start = self.position
        end = min(self.inbox.last_position + 1, start + SEGMENTS_PER_ENTRY)
        if end <= start:
            return None
        landed = dict(enumerate(self.inbox.read_segments(start, end), start))
        sieve = SegmentSieve(self._core, fragments)
        taken = {p: s for p, s in landed.items() if sieve.takes(s, self._was_checked(p))}
        try:
            gathered = self._gather(taken.values(), fragments)
        except Exception as failure:  # noqa: BLE001 - whatever merges may be an engine with errors of its own
            taken = _without_poison(taken, fragments, sieve, failure)
            gathered = self._gather(taken.values(), fragments)
        events: list[Gathered | LeftOut | Landed | SiteBlocked] = [*gathered, *map(Landed.of, taken.values())]
        set_aside = tuple(p for p in landed if p not in taken)
        return LandedRun(start, end, (*events, *sieve.newly_blocked), set_aside)

    def _gather(self, segments: Iterable[Segment], fragments: Mapping[str, Fragment]) -> list[Gathered | LeftOut]:
        """Merge the partials that count, and say how many records do not."""
        restricted = [restrict(segment, self.find_span) for segment in segments]
        gathered = gather([segment for segment, _ in restricted], fragments, self.merge)
        return [*gathered, *(event for _, left_out in restricted for event in left_out)]

    def commit(self, run: LandedRun, events: Sequence[Any]) -> None:
        """Make the events that a run has led to one entry of the journal; then discard its segments."""
        for blocked in (event for event in run.events if isinstance(event, SiteBlocked)):
            self.inbox.block(blocked.origin, blocked.sequence, blocked.reason, self.host.clock.now_us())
        for position in run.set_aside:
            self.inbox.keep_aside(position)
        self.host.submit(CAUSE, events, batch=run.end)
        self.inbox.discard(run.end)

    def blocked_status(self) -> dict[str, dict[str, Any]]:
        """Return the sites that are blocked: since when and why, and what a person can do about it."""
        return {
            origin: {
                "since_us": blockage.since_us,
                "segment": blockage.sequence,
                "reason": blockage.reason,
                **self.inbox.set_aside.describe(origin),
            }
            for origin, blockage in list(self._core.blocked.items())
        }

    @property
    def _core(self) -> TakesSegments:
        return cast(TakesSegments, self.host.core)

    def _was_checked(self, position: int) -> bool:
        return self.inbox.checks_content and position >= self._unchecked_end

    def _take_back(self, origin: str) -> None:
        frontier = self._core.frontiers.get(origin, Frontier())
        self.inbox.take_back(origin, frontier.has)
        self._unchecked_end = self.inbox.last_position + 1


def _without_poison(
    taken: Mapping[int, Segment], fragments: Mapping[str, Fragment], sieve: SegmentSieve, failure: Exception
) -> dict[int, Segment]:
    """Return the segments that can be merged with those before them; block the sites of the others.

    Where all can be merged here, the engine that merges large tables has failed, and not a segment.
    """
    kept: dict[int, Segment] = {}
    for position, segment in taken.items():
        if sieve.is_blocked(segment.origin):
            continue
        try:
            gather([*kept.values(), segment], fragments)
            kept[position] = segment
        except (CatchmentError, pa.ArrowException) as error:
            sieve.block(segment, error)
    if len(kept) == len(taken):
        raise failure
    return kept


@dataclass
class _FragmentParts:
    """The partials and counts of one fragment in some segments."""

    tables: list[pa.Table] = field(default_factory=list)
    records: list[tuple[str, int, int]] = field(default_factory=list)
    senders: set[tuple[str, int]] = field(default_factory=set)

    def add_update(self, sender: str, update: Updates, schema: pa.Schema) -> None:
        self.tables.append(update.table.cast(schema))
        self.senders.update((sender, slice_us) for slice_us in pc.unique(update.table[SLICE_COLUMN]).to_pylist())

    def add_counts(self, sender: str, origin: str, counts: Iterable[tuple[int, int]]) -> None:
        for slice_us, count in counts:
            self.records.append((origin, slice_us, count))
            self.senders.add((sender, slice_us))


def gather(segments: Iterable[Segment], fragments: Mapping[str, Fragment], merge: Merge = merge_here) -> list[Gathered]:
    """Merge the partials of segments, fragment by fragment; those of fragments that have ended are left out."""
    found: dict[str, _FragmentParts] = {}
    for segment in segments:
        for update in segment.updates():
            if update.fragment in fragments and update.rows:
                parts = found.setdefault(update.fragment, _FragmentParts())
                parts.add_update(segment.origin, update, fragments[update.fragment].schema)
        for name, origin, counts in counted_in(segment):
            if name in fragments:
                found.setdefault(name, _FragmentParts()).add_counts(segment.origin, origin, counts)
    return [_make_gathered(fragments[name], parts, merge) for name, parts in found.items()]


def _make_gathered(fragment: Fragment, parts: _FragmentParts, merge: Merge) -> Gathered:
    table = pa.concat_tables([fragment.schema.empty_table(), *parts.tables])
    return Gathered(fragment.name, merge(fragment, table), tuple(parts.records), tuple(sorted(parts.senders)))
