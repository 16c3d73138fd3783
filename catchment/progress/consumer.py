"""The consumer of an inbox, which the center and every relay have: landed segments become entries of the journal.

One entry takes a run of landed segments, at most `SEGMENTS_PER_ENTRY`, and is numbered by the position behind the last
of them. Law: every landed segment is in exactly one entry. The newest number in the journal says from where to go on,
also after a crash; segments are discarded from the inbox only when the journal has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.progress.events import Gathered, Landed
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
    """Consecutive segments of an inbox as events; `end` is the position behind the last of them."""

    end: int
    events: tuple[Gathered | Landed, ...]


@dataclass(frozen=True)
class InboxConsumer:
    """Reads what has landed and commits it to a host. `merge` combines the partials of one fragment."""

    inbox: Inbox
    host: Host[Any, Any]
    merge: Merge = merge_here

    @property
    def position(self) -> int:
        """The first position that is not in the journal."""
        return self.host.batches.get(CAUSE, 0)

    @property
    def is_drained(self) -> bool:
        """Whether everything that has landed is in the journal."""
        return self.position > self.inbox.last_position

    def recover(self) -> None:
        """Discard what the journal already has; a crash may have come between the two."""
        self.inbox.discard(self.position)

    def read(self, fragments: Mapping[str, Fragment]) -> LandedRun | None:
        """Return the next run of landed segments, with the partials of these fragments; None if nothing has landed."""
        start = self.position
        end = min(self.inbox.last_position + 1, start + SEGMENTS_PER_ENTRY)
        if end <= start:
            return None
        segments = self.inbox.read_segments(start, end)
        gathered = gather(segments, fragments, self.merge)
        return LandedRun(end, (*gathered, *(Landed.of(segment) for segment in segments)))

    def commit(self, run: LandedRun, events: Sequence[Any]) -> None:
        """Make the events that a run has led to one entry of the journal; then discard its segments."""
        self.host.submit(CAUSE, events, batch=run.end)
        self.inbox.discard(run.end)


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
