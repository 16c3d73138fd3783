"""What tasks make of landed segments: parts of partials per query, and what the segments state.

A task reads some segments, merges their partials per (slice, keys) for every query that takes them, and writes them
into one file per query, ordered by slice and shard. The driver gets the parts and the statements, and no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.center.shards.folder import write_part_file
from catchment.center.shards.parts import Part, make_parts, order_by_shard
from catchment.center.windows.recent import totals_of
from catchment.errors import CatchmentError, EngineError
from catchment.optimizer.sharing.derive import Derivation, derive
from catchment.progress.events import Landed, LeftOut
from catchment.progress.soundness import check_soundness
from catchment.progress.spans import ALL_OF_TIME, Span, restrict
from catchment.quality.contract import watched_quantities
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.wire.frames.codec import read_frame
from catchment.wire.frames.limits import WireLimits
from catchment.wire.messages import Segment, counted_in
from catchment.wire.segment_folder import read_segment_file

PartGroup = tuple[str, tuple[str, ...]]  # a fragment, and the sites that its partials may be of where that matters
SentSlice = tuple[PartGroup, str, int]  # a slice of which somebody sent partials
CountedSlice = tuple[PartGroup, str, int, int]  # a site, a slice, and the raw records of it


@dataclass(frozen=True)
class TakenFragment:
    """That a query takes the partials of a fragment; `own` is the fragment that it has itself."""

    query: str
    fragment: str
    derivation: Derivation | None
    own: Fragment


@dataclass(frozen=True)
class SegmentToRead:
    """A landed segment: its file, which slices of each fragment count, and whose partials it may be merged with."""

    position: int
    path: Path
    size_bytes: int
    digest: int
    is_checked: bool
    spans: Mapping[str, Span]
    alike: Mapping[str, tuple[str, ...]]

    def find_span(self, fragment: str, site: str) -> Span:
        """Return which slices of a fragment count."""
        return self.spans.get(fragment, ALL_OF_TIME)


@dataclass(frozen=True)
class SegmentFacts:
    """What a segment states, but for its partials; or why it cannot be merged."""

    position: int
    landed: Landed | None
    problem: str = ""
    left_out: tuple[LeftOut, ...] = ()
    records: tuple[CountedSlice, ...] = ()
    senders: tuple[SentSlice, ...] = ()


@dataclass(frozen=True)
class GatherFindings:
    """What a task has found; `problem` is why its partials could not be merged."""

    facts: tuple[SegmentFacts, ...]
    parts: Mapping[PartGroup, pa.Table] = field(default_factory=dict)
    rows: int = 0  # of partials that were merged
    problem: str = ""
    outage: str = ""  # why a file could not be read at all


@dataclass(frozen=True)
class GatherOrder:
    """What the tasks of one run are told."""

    folder: Path
    shards: int
    fragments: Mapping[str, Fragment]
    taken: tuple[TakenFragment, ...]
    limits: WireLimits

    def run(self, segments: Sequence[SegmentToRead]) -> GatherFindings:
        """Return what is in some segments, with their partials in files."""
        facts: list[SegmentFacts] = []
        tables: dict[PartGroup, list[pa.Table]] = {}
        for order in segments:
            try:
                whole = self._read(order)
                segment, left_out = restrict(whole, order.find_span)
                found = self._tables(order, segment)
            except (OSError, EngineError) as error:  # no fault of the segment
                return GatherFindings((), outage=f"{order.path}: {error}")
            except (CatchmentError, pa.ArrowException) as error:
                message = error.message if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
                facts.append(SegmentFacts(order.position, None, message))
                continue
            for group, mine in found.items():
                tables.setdefault(group, []).extend(mine)
            senders, records = self._count(order, segment, found)
            facts.append(SegmentFacts(order.position, Landed.of(whole), "", tuple(left_out), records, senders))
        rows = sum(table.num_rows for mine in tables.values() for table in mine)
        try:
            return GatherFindings(tuple(facts), dict(self._write(tables)), rows)
        except (CatchmentError, pa.ArrowException) as error:
            return GatherFindings(tuple(facts), rows=rows, problem=str(error) or type(error).__name__)

    def _read(self, order: SegmentToRead) -> Segment:
        encoded = read_frame(read_segment_file(order.path, order.position), self.limits)
        if encoded.digest != order.digest:
            raise EngineError("it is not the segment that landed there")
        segment = encoded.decode(self.limits)
        if not order.is_checked:
            check_soundness(segment, self.fragments)
        return segment

    def _tables(self, order: SegmentToRead, segment: Segment) -> dict[PartGroup, list[pa.Table]]:
        found: dict[PartGroup, list[pa.Table]] = {}
        for update in segment.updates():
            if update.fragment in self.fragments and update.rows:
                group = update.fragment, order.alike.get(update.fragment, ())
                found.setdefault(group, []).append(update.table.cast(self.fragments[update.fragment].schema))
        return found

    def _count(
        self, order: SegmentToRead, segment: Segment, found: Mapping[PartGroup, Sequence[pa.Table]]
    ) -> tuple[tuple[SentSlice, ...], tuple[CountedSlice, ...]]:
        """Return whose partials there are of which slices, and how many raw records stand behind them."""
        records: list[CountedSlice] = []
        senders: dict[SentSlice, None] = {}
        for group, tables in found.items():
            for slice_us in {s for table in tables for s in pc.unique(table[SLICE_COLUMN]).to_pylist()}:
                senders[group, segment.origin, slice_us] = None
        for name, origin, counts in counted_in(segment):
            if name in self.fragments:
                group = name, order.alike.get(name, ())
                records += [(group, origin, slice_us, count) for slice_us, count in counts]
                senders.update(dict.fromkeys((group, segment.origin, slice_us) for slice_us, _ in counts))
        return tuple(senders), tuple(records)

    def _write(self, tables: Mapping[PartGroup, Sequence[pa.Table]]) -> Iterator[tuple[PartGroup, pa.Table]]:
        for group, mine in tables.items():
            fragment = self.fragments[group[0]]
            keys = [SLICE_COLUMN, *fragment.key_names]
            merged = partials.combine_fitting(pa.concat_tables(mine), keys, fragment.aggregates)
            parts = [(int(pc.max(merged[SLICE_COLUMN]).as_py()), Part("", "", 0, ()))]  # how far the fragment is
            for taken in (t for t in self.taken if t.fragment == group[0]):
                own = merged if taken.derivation is None else derive(merged, taken.derivation)
                parts += write_parts(self.folder, taken.query, taken.own, own, self.shards)
            yield group, make_parts(parts)


def write_parts(folder: Path, query: str, own: Fragment, rows: pa.Table, shards: int) -> list[tuple[int, Part]]:
    """Write the partials of a query into one file; return its parts, each with its slice."""
    if not rows.num_rows:
        return []
    watched = watched_quantities(own.aggregates)
    found: list[tuple[int, tuple[int, ...], tuple[float | None, ...]]] = []
    ordered: list[pa.Table] = []
    for slice_us in sorted(pc.unique(rows[SLICE_COLUMN]).to_pylist()):
        mine = rows.filter(pc.equal(rows[SLICE_COLUMN], slice_us)).drop_columns([SLICE_COLUMN])
        by_shard, ends = order_by_shard(mine, own.key_names, shards)
        found.append((slice_us, ends, totals_of(watched, own.aggregates, mine)))
        ordered.append(by_shard)
    file = write_part_file(folder, pa.concat_tables(ordered).combine_chunks())
    parts = []
    first = 0
    for slice_us, ends, totals in found:
        parts.append((slice_us, Part(query, file, first, ends, totals)))
        first += ends[-1]
    return parts


def share_segments(segments: Iterable[SegmentToRead], tasks: int) -> list[list[SegmentToRead]]:
    """Divide segments into so many shares of about equal bytes, each in their order; none is empty."""
    shares: list[list[SegmentToRead]] = [[] for _ in range(max(tasks, 1))]
    sizes = [0] * len(shares)
    for segment in sorted(segments, key=lambda s: (-s.size_bytes, s.position)):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(segment)
        sizes[smallest] += segment.size_bytes
    return [sorted(share, key=lambda s: s.position) for share in shares if share]
