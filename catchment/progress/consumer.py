"""The consumer of an inbox, which the center and every relay have: landed segments become entries of the journal.

One entry takes a run of landed segments, at most `SEGMENTS_PER_ENTRY`, and is numbered by the position behind the last
of them. Law: every landed segment is in exactly one entry, or is set aside. The newest number in the journal says from
where to go on, also after a crash; segments are discarded from the inbox only when the journal has them.

A segment that cannot be merged blocks its site (`catchment.progress.blocking`), and nobody else. Where more lands than
can be merged, partials of fragments that tolerate it wait on disk (`catchment.progress.deferred`), and are merged by an
entry of their own when there is room.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.errors import CatchmentError
from catchment.log_fields import about
from catchment.progress.blocking import SegmentSieve, SiteBlocked, SiteResumed, TakesSegments
from catchment.progress.deferred import (
    FOLDER,
    MAX_PARTS,
    DeferralKey,
    DeferredFolder,
    DeferredPartials,
    describe,
    divide,
    split,
)
from catchment.progress.events import DeferredMerged, Gathered, Landed, LeftOut, PartialsDeferred
from catchment.progress.frontier import Frontier
from catchment.progress.spans import FindSpan, count_all, restrict
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.group_shares import DeferrableFragment
from catchment.shedding.merge_load import MergeLoad
from catchment.storage.host import Host
from catchment.wire.messages import Segment, Updates, counted_in
from catchment.wire.receiving.inbox import Inbox

_log = logging.getLogger(__name__)
CAUSE = "inbox"  # names the journal entries that take landed segments
SEGMENTS_PER_ENTRY = 256
NOTHING_DEFERRABLE: Mapping[str, DeferrableFragment] = {}

Merge = Callable[[Fragment, pa.Table], pa.Table]
# Returns, of a fragment and a sender, the sites with which the sender's partials may be merged; none where that is all.
FindAlike = Callable[[str, str], tuple[str, ...]]
LandedEvent = Gathered | LeftOut | PartialsDeferred | Landed | SiteBlocked


def merge_here(fragment: Fragment, table: pa.Table) -> pa.Table:
    """Merge partials per (slice, keys) in this process; those whose sums do not fit stay as they are."""
    return partials.combine_fitting(table, [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)


def all_alike(fragment: str, sender: str) -> tuple[str, ...]:
    """Return that partials of all senders may be merged."""
    return ()


@dataclass(frozen=True, slots=True)
class LandedRun:
    """Consecutive segments of an inbox as events: those at positions in [start, end).

    `set_aside` are the positions that are not among the events, because their sites are blocked; `deferred` are
    partials that are not among them because they are to wait.
    """

    start: int
    end: int
    events: tuple[LandedEvent, ...]
    set_aside: tuple[int, ...] = ()
    deferred: tuple[tuple[int, DeferredPartials], ...] = ()  # by number
    merged_rows: int = 0  # rows of partials that were merged


@dataclass(frozen=True, slots=True)
class DeferredRun:
    """Partials that have waited, as events; `keys` are what is merged with them."""

    keys: tuple[DeferralKey, ...]
    events: tuple[Gathered | DeferredMerged, ...]
    merged_rows: int


class InboxConsumer:
    """Reads what has landed and commits it to a host.

    `merge` combines the partials of one fragment; `find_span` says for which slices a site counts, `find_alike` whose
    partials may be merged; `stopwatch` tells the seconds that work takes.
    """

    def __init__(
        self,
        inbox: Inbox,
        host: Host[Any, Any],
        merge: Merge = merge_here,
        find_span: FindSpan = count_all,
        stopwatch: Callable[[], float] = time.perf_counter,
        find_alike: FindAlike = all_alike,
    ) -> None:
        self.inbox = inbox
        self.host = host
        self.merge = merge
        self.find_span = find_span
        self.find_alike = find_alike
        self.load = MergeLoad()
        self.waiting = DeferredFolder(inbox.folder / FOLDER)
        self.deferred_rows = 0  # since the start
        self._stopwatch = stopwatch
        self._began_s = 0.0
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
        self.waiting.recover(self._core.deferred)
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

    def read(
        self, fragments: Mapping[str, Fragment], deferrable: Mapping[str, DeferrableFragment] = NOTHING_DEFERRABLE
    ) -> LandedRun | None:
        """Return the next run of landed segments, with the partials of these fragments; None if nothing has landed.

        Of the deferrable ones some groups are left to wait if more lands than can be merged.
        """
        self._began_s = self._stopwatch()
        start = self.position
        end = min(self.inbox.last_position + 1, start + SEGMENTS_PER_ENTRY)
        if end <= start:
            self.load.decide(deferrable, {}, 0, 0, self.host.clock.now_us())
            return None
        landed = dict(enumerate(self.inbox.read_segments(start, end), start))
        sieve = SegmentSieve(self._core, fragments)
        taken = {p: s for p, s in landed.items() if sieve.takes(s, self._was_checked(p))}
        try:
            run = self._gather(start, end, taken.values(), fragments, deferrable)
        except Exception as failure:  # noqa: BLE001 - whatever merges may be an engine with errors of its own
            taken = without_poison(taken, fragments, sieve, failure)
            run = self._gather(start, end, taken.values(), fragments, deferrable)
        set_aside = tuple(p for p in landed if p not in taken)
        facts = map(Landed.of, taken.values())
        return replace(run, events=(*run.events, *facts, *sieve.newly_blocked), set_aside=set_aside)

    def is_outdated(self, run: LandedRun) -> bool:
        """Return whether a run was read before something else was committed, and must be read again."""
        return self.position != run.start

    def _gather(
        self,
        start: int,
        end: int,
        segments: Iterable[Segment],
        fragments: Mapping[str, Fragment],
        deferrable: Mapping[str, DeferrableFragment],
    ) -> LandedRun:
        """Merge the partials that count, but for those that are to wait; say how many records do not count."""
        restricted = [restrict(segment, self.find_span) for segment in segments]
        parts = collect([segment for segment, _ in restricted], fragments, self.find_alike)
        shares = self._decide(start, end, parts, deferrable)
        events: list[LandedEvent] = []
        waiting: list[tuple[int, DeferredPartials]] = []
        for (name, sites), part in parts.items():
            fragment = fragments[name]
            if name in shares:
                found = split(part.table(fragment), tuple(part.records), deferrable[name].keys, shares[name])
                senders = tuple(sorted(part.senders))
                events.append(Gathered(name, self._merge(fragment, found.merged), found.merged_records, senders))
                later_parts = divide(name, found, senders, self.load.part_rows)
                for number, later in enumerate(later_parts, start=end * MAX_PARTS):
                    waiting.append((number, later))
                    events.append(describe(fragment, number, shares[name], deferrable[name].keys, later))
            else:
                events.append(_make_gathered(fragment, part, self._merge, sites))
        events += [event for _, left_out in restricted for event in left_out]
        waiting_rows = sum(part.partials.num_rows for _, part in waiting)
        merged_rows = sum(part.rows for part in parts.values()) - waiting_rows
        return LandedRun(start, end, tuple(events), deferred=tuple(waiting), merged_rows=merged_rows)

    def _merge(self, fragment: Fragment, table: pa.Table) -> pa.Table:
        """Merge partials; in this process where the engine for large tables fails, as it does on such a sum."""
        try:
            return self.merge(fragment, table)
        except Exception as failure:
            if self.merge is merge_here:
                raise
            merged = merge_here(fragment, table)
            of = about(fragment=fragment.name)
            _log.warning(
                "partials of %s were merged without the engine, which has failed: %s", fragment.name, failure, extra=of
            )
            return merged

    def _decide(
        self,
        start: int,
        end: int,
        parts: Mapping[tuple[str, tuple[str, ...]], _FragmentParts],
        deferrable: Mapping[str, DeferrableFragment],
    ) -> Mapping[str, float]:
        """Return the share of its groups that each fragment merges now, where that is not all of them."""
        rows: dict[str, int] = {}
        for (name, _), part in parts.items():
            rows[name] = rows.get(name, 0) + part.rows
        run_bytes = self.inbox.size_between(start, end)
        behind_bytes = max(self.inbox.size_bytes - run_bytes, 0)
        shares = self.load.decide(deferrable, rows, run_bytes, behind_bytes, self.host.clock.now_us())
        return {} if self.waiting.is_full else shares

    def commit(self, run: LandedRun, events: Sequence[Any]) -> None:
        """Make the events that a run has led to one entry of the journal; then discard its segments."""
        for blocked in (event for event in run.events if isinstance(event, SiteBlocked)):
            self.inbox.block(blocked.origin, blocked.sequence, blocked.reason, self.host.clock.now_us())
        for position in run.set_aside:
            self.inbox.keep_aside(position)
        for number, part in run.deferred:
            self.waiting.write(number, part)
            self.deferred_rows += part.partials.num_rows
        self.host.submit(CAUSE, events, batch=run.end)
        self.inbox.discard(run.end)
        self.load.learn(run.merged_rows, self._stopwatch() - self._began_s)

    def read_deferred(self, fragments: Mapping[str, Fragment], everything: bool = False) -> DeferredRun | None:
        """Return the oldest partials that wait, if there is room for them now; all that wait with `everything`."""
        if not self._core.deferred or not (everything or (self.load.has_room and self.is_drained)):
            return None
        self._began_s = self._stopwatch()
        keys: list[DeferralKey] = []
        parts: dict[str, _FragmentParts] = {}
        rows = 0
        for key in self.waiting.keys:
            waiting = self.waiting.read(key)
            keys.append(key)
            if key[0] in fragments:
                parts.setdefault(key[0], _FragmentParts()).add_deferred(waiting)
            rows += waiting.partials.num_rows
            if rows >= self.load.part_rows and not everything:
                break
        gathered = [_make_gathered(fragments[name], part, self._merge) for name, part in parts.items()]
        return DeferredRun(tuple(keys), (*gathered, *(DeferredMerged(*key) for key in keys)), rows)

    def commit_deferred(self, run: DeferredRun, events: Sequence[Any]) -> None:
        """Make the events that waiting partials have led to one entry of the journal; then remove their files."""
        self.host.submit("deferred", events)
        for key in run.keys:
            self.waiting.remove(key)
        self.load.learn(run.merged_rows, self._stopwatch() - self._began_s)

    @property
    def has_deferred(self) -> bool:
        """Whether partials wait that were deferred."""
        return bool(self._core.deferred)

    def deferral_status(self) -> dict[str, Any]:
        """Return the load of merging, which share of the groups is merged now, and what waits."""
        return {
            "deferring": self.load.is_deferring,
            "load": self.load.load,
            "shares": dict(self.load.shares),
            "waiting_parts": len(self._core.deferred),
            "waiting_bytes": self.waiting.size_bytes,
            "deferred_rows": self.deferred_rows,
        }

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


def without_poison(
    taken: Mapping[int, Segment], fragments: Mapping[str, Fragment], sieve: SegmentSieve, failure: Exception
) -> dict[int, Segment]:
    """Return the segments that can be merged with those before them; block the sites of the others.

    Where all can be merged here, something else has failed, and not a segment.
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

    def add_deferred(self, waiting: DeferredPartials) -> None:
        self.tables.append(waiting.partials)
        self.records += waiting.records
        self.senders.update(waiting.senders)

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    def table(self, fragment: Fragment) -> pa.Table:
        return pa.concat_tables([fragment.schema.empty_table(), *self.tables])


def gather(segments: Iterable[Segment], fragments: Mapping[str, Fragment], merge: Merge = merge_here) -> list[Gathered]:
    """Merge the partials of segments, fragment by fragment; those of fragments that have ended are left out."""
    return [_make_gathered(fragments[name], parts, merge) for (name, _), parts in collect(segments, fragments).items()]


def collect(
    segments: Iterable[Segment], fragments: Mapping[str, Fragment], find_alike: FindAlike = all_alike
) -> dict[tuple[str, tuple[str, ...]], _FragmentParts]:
    """Return what segments hold of each fragment, apart where senders are; fragments that have ended are left out."""
    found: dict[tuple[str, tuple[str, ...]], _FragmentParts] = {}
    for segment in segments:
        for update in segment.updates():
            if update.fragment in fragments and update.rows:
                key = update.fragment, find_alike(update.fragment, segment.origin)
                parts = found.setdefault(key, _FragmentParts())
                parts.add_update(segment.origin, update, fragments[update.fragment].schema)
        for name, origin, counts in counted_in(segment):
            if name in fragments:
                key = name, find_alike(name, segment.origin)
                found.setdefault(key, _FragmentParts()).add_counts(segment.origin, origin, counts)
    return found


def _make_gathered(fragment: Fragment, parts: _FragmentParts, merge: Merge, sites: tuple[str, ...] = ()) -> Gathered:
    merged = merge(fragment, parts.table(fragment))
    return Gathered(fragment.name, merged, tuple(parts.records), tuple(sorted(parts.senders)), sites)
