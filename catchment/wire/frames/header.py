"""The header of a frame: all that a segment states, except the rows of its tables.

A header is MessagePack: an array of origin, epoch, number and one entry per message; an entry is an array that begins
with the letter of its kind. The types, ranges and shapes declared here are checked by msgspec while it reads. The bytes
of a header are bounded before it is read, and so is what reading allocates; bounds that a receiver may set for itself
are checked by `check_limits`, before any table is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from catchment.errors import WireError
from catchment.quality.merge_sites import SiteEstimate
from catchment.wire.frames.limits import MAX_STRATA, WireLimits
from catchment.wire.messages import (
    Backfilled,
    Backfilling,
    Closing,
    Counted,
    Deferred,
    Delivered,
    LookedUp,
    OwnFact,
    Progress,
    QueryMark,
    Relayed,
    RelayFact,
    Repaired,
    Resumed,
    Shed,
    Skipped,
    Standing,
    Suspended,
)

_MAX_INT64 = 2**63 - 1
_MAX_FLOAT = 1.7976931348623157e308

Int64 = Annotated[int, Meta(ge=-(2**63), le=_MAX_INT64)]
Count = Annotated[int, Meta(ge=0, le=_MAX_INT64)]
Name = Annotated[str, Meta(min_length=1)]
Text = Annotated[str, Meta(max_length=2000)]  # for people: beyond the limit of names
Share = Annotated[float, Meta(ge=0, le=1)]
Finite = Annotated[float, Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
FiniteSize = Annotated[float, Meta(ge=0, le=_MAX_FLOAT)]
SampleRate = Annotated[float, Meta(gt=0, lt=1)]
GroupRate = Annotated[float, Meta(gt=0, le=1)]
SliceCounts = tuple[tuple[Int64, Int64], ...]  # (start of a slice, records)


class _Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A struct that is an array on the wire: its fields in order, no more and no fewer."""


class _FragmentEntry(_Array, frozen=True):
    """An entry that is about one fragment."""

    fragment: Name

    def names(self) -> Iterator[str]:
        """Yield every text that the limit of names applies to."""
        yield self.fragment

    def collections(self) -> Iterator[Collection[object]]:
        """Yield every collection that the limit of slices applies to."""
        return iter(())


class UpdatesEntry(_FragmentEntry, frozen=True, tag="u"):
    """An `Updates`; its table is `packed_bytes` of the body, and `raw_bytes` when it is decompressed."""

    rows: Count
    raw_bytes: Count
    packed_bytes: Count
    records: SliceCounts
    dictionary_columns: tuple[Count, ...]  # numbers of the columns that were made dictionaries for the wire

    def collections(self) -> Iterator[Collection[object]]:
        yield self.records


class ProgressEntry(_FragmentEntry, frozen=True, tag="p"):
    """A `Progress`."""

    low_mark_us: Int64
    updates_total: Count


class QueryMarkEntry(_FragmentEntry, frozen=True, tag="m"):
    """A `QueryMark`."""

    query: str
    low_mark_us: Int64

    def names(self) -> Iterator[str]:
        yield self.fragment
        yield self.query


class ShedEntry(_FragmentEntry, frozen=True, tag="s"):
    """A `Shed`."""

    batch: Count
    rate: SampleRate
    lacking: SliceCounts
    groups: Annotated[tuple[tuple[str, GroupRate], ...], Meta(max_length=MAX_STRATA)]

    def collections(self) -> Iterator[Collection[object]]:
        yield self.lacking


class RepairedEntry(_FragmentEntry, frozen=True, tag="r"):
    """A `Repaired`."""

    batch: Count
    gave_up: bool


class SuspendedEntry(_FragmentEntry, frozen=True, tag="x"):
    """A `Suspended`."""

    batch: Count
    from_us: Int64
    reason: Annotated[Text, Meta(min_length=1)]
    expression: Text
    record: Text


class SkippedEntry(_FragmentEntry, frozen=True, tag="y"):
    """A `Skipped`."""

    batch: Count
    lacking: tuple[tuple[Int64, Count], ...]

    def collections(self) -> Iterator[Collection[object]]:
        yield self.lacking


class ResumedEntry(_FragmentEntry, frozen=True, tag="z"):
    """A `Resumed`."""


class BackfillingEntry(_FragmentEntry, frozen=True, tag="b"):
    """A `Backfilling`."""

    from_us: Int64
    until_us: Int64


class BackfilledEntry(_FragmentEntry, frozen=True, tag="g"):
    """A `Backfilled`."""

    lost: tuple[tuple[Int64, Int64], ...]

    def collections(self) -> Iterator[Collection[object]]:
        yield self.lost


class LookedUpEntry(_FragmentEntry, frozen=True, tag="v"):
    """A `LookedUp`."""

    table: Name
    version: Name
    slices: Annotated[tuple[Int64, ...], Meta(min_length=1)]

    def names(self) -> Iterator[str]:
        yield self.fragment
        yield self.table
        yield self.version

    def collections(self) -> Iterator[Collection[object]]:
        yield self.slices


class CountedEntry(_FragmentEntry, frozen=True, tag="c"):
    """A `Counted`, which only relays state."""

    records: Annotated[SliceCounts, Meta(min_length=1)]

    def collections(self) -> Iterator[Collection[object]]:
        yield self.records


class DeferredEntry(_FragmentEntry, frozen=True, tag="d"):
    """A `Deferred`, which only relays state."""

    place: Name
    number: Count
    share: SampleRate
    keys: Annotated[tuple[Name, ...], Meta(min_length=1)]
    lacking: tuple[tuple[Int64, Count], ...]
    is_counted: bool

    def names(self) -> Iterator[str]:
        yield self.fragment
        yield self.place
        yield from self.keys

    def collections(self) -> Iterator[Collection[object]]:
        yield self.keys
        yield self.lacking


class DeliveredEntry(_FragmentEntry, frozen=True, tag="e"):
    """A `Delivered`, which only relays state."""

    place: Name
    number: Count

    def names(self) -> Iterator[str]:
        yield self.fragment
        yield self.place


class EstimateItem(_Array, frozen=True):
    coverage: Share
    bound: FiniteSize | None
    count: FiniteSize
    total: Finite


class ClosingItem(_Array, frozen=True):
    end_us: Int64
    reason: Name
    estimates: tuple[EstimateItem, ...]
    sources: tuple[tuple[str, Share], ...]


class StandingEntry(_FragmentEntry, frozen=True, tag="w"):
    """A `Standing`."""

    query: Name
    complete_until_us: Int64
    closings: tuple[ClosingItem, ...]

    def names(self) -> Iterator[str]:
        yield self.fragment
        yield self.query
        yield from (closing.reason for closing in self.closings)

    def collections(self) -> Iterator[Collection[object]]:
        yield self.closings
        yield from (closing.sources for closing in self.closings)


RelayFactEntry = CountedEntry | DeferredEntry | DeliveredEntry
OwnFactEntry = (
    ProgressEntry
    | QueryMarkEntry
    | ShedEntry
    | RepairedEntry
    | StandingEntry
    | SuspendedEntry
    | SkippedEntry
    | ResumedEntry
    | BackfillingEntry
    | BackfilledEntry
    | LookedUpEntry
)


class RelayedEntry(_Array, frozen=True, tag="f"):
    """A `Relayed`: a fact of another site."""

    origin: Name
    fact: OwnFactEntry | RelayFactEntry

    @property
    def fragment(self) -> str:
        return self.fact.fragment

    def names(self) -> Iterator[str]:
        yield self.origin
        yield from self.fact.names()

    def collections(self) -> Iterator[Collection[object]]:
        return self.fact.collections()


class RecordsEntry(_Array, frozen=True, tag="l"):
    """A `Records`; its lines are `packed_bytes` of the body, and `raw_bytes` when they are decompressed."""

    stream: Name
    rows: Count
    raw_bytes: Count
    packed_bytes: Count

    @property
    def fragment(self) -> str:
        return self.stream

    def names(self) -> Iterator[str]:
        yield self.stream

    def collections(self) -> Iterator[Collection[object]]:
        return iter(())


PackedEntry = UpdatesEntry | RecordsEntry  # those that have a part of the body
Entry = PackedEntry | OwnFactEntry | RelayedEntry


class FrameHeader(_Array, frozen=True):
    """What can be known of a segment without reading its tables."""

    origin: Name
    epoch: Name
    sequence: Count
    entries: tuple[Entry, ...]

    def packed(self) -> Iterator[PackedEntry]:
        return (entry for entry in self.entries if isinstance(entry, PackedEntry))

    @property
    def table_bytes(self) -> int:
        """Bytes of the body: all tables, and all lines of records, as they are sent."""
        return sum(entry.packed_bytes for entry in self.packed())


_DECODER = msgspec.msgpack.Decoder(FrameHeader)


def pack_header(header: FrameHeader) -> bytes:
    """Return a header as bytes."""
    try:
        return msgspec.msgpack.encode(header)
    except (OverflowError, UnicodeEncodeError) as error:
        raise WireError(f"the header of the frame cannot be written: {error}") from error


def unpack_header(data: bytes | memoryview) -> FrameHeader:
    """Read a header; anything that is not one is refused."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the header of the frame cannot be read: {error}") from error


def check_limits(header: FrameHeader, limits: WireLimits) -> None:
    """Refuse a header that is beyond what a receiver takes."""
    names = [header.origin, header.epoch, *(name for entry in header.entries for name in entry.names())]
    lengths = (len(items) for entry in header.entries for items in entry.collections())
    _check("messages", len(header.entries), limits.messages)
    _check("bytes in a name", max(len(name.encode()) for name in names), limits.name_bytes)
    _check("slices in a message", max(lengths, default=0), limits.slices)
    _check("rows", sum(entry.rows for entry in header.packed()), limits.rows)
    _check("decompressed bytes", sum(entry.raw_bytes for entry in header.packed()), limits.raw_bytes)


def _check(what: str, given: int, limit: int) -> None:
    if given > limit:
        raise WireError(f"the header of the frame has {given} {what}, at most {limit} are taken")


def pack_fact(fact: OwnFact) -> OwnFactEntry:
    """Return the entry of a fact that a site states of itself."""
    match fact:
        case Progress():
            return ProgressEntry(fact.fragment, fact.low_mark_us, fact.updates_total)
        case QueryMark():
            return QueryMarkEntry(fact.fragment, fact.query, fact.low_mark_us)
        case Shed():
            return ShedEntry(fact.fragment, fact.batch, fact.rate, fact.lacking, fact.groups)
        case Repaired():
            return RepairedEntry(fact.fragment, fact.batch, fact.gave_up)
        case Standing():
            return StandingEntry(
                fact.fragment, fact.query, fact.complete_until_us, tuple(map(_pack_closing, fact.closings))
            )
        case Suspended():
            return SuspendedEntry(fact.fragment, fact.batch, fact.from_us, fact.reason, fact.expression, fact.record)
        case Skipped():
            return SkippedEntry(fact.fragment, fact.batch, fact.lacking)
        case Resumed():
            return ResumedEntry(fact.fragment)
        case Backfilling():
            return BackfillingEntry(fact.fragment, fact.from_us, fact.until_us)
        case Backfilled():
            return BackfilledEntry(fact.fragment, fact.lost)
        case LookedUp():
            return LookedUpEntry(fact.fragment, fact.table, fact.version, fact.slices)


def unpack_fact(entry: OwnFactEntry) -> OwnFact:
    """Return the fact of an entry."""
    match entry:
        case ProgressEntry():
            return Progress(entry.fragment, entry.low_mark_us, entry.updates_total)
        case QueryMarkEntry():
            return QueryMark(entry.fragment, entry.query, entry.low_mark_us)
        case ShedEntry():
            return Shed(entry.fragment, entry.batch, entry.rate, entry.lacking, entry.groups)
        case RepairedEntry():
            return Repaired(entry.fragment, entry.batch, entry.gave_up)
        case StandingEntry():
            return Standing(
                entry.fragment, entry.query, entry.complete_until_us, tuple(map(_unpack_closing, entry.closings))
            )
        case SuspendedEntry():
            return Suspended(entry.fragment, entry.batch, entry.from_us, entry.reason, entry.expression, entry.record)
        case SkippedEntry():
            return Skipped(entry.fragment, entry.batch, entry.lacking)
        case ResumedEntry():
            return Resumed(entry.fragment)
        case BackfillingEntry():
            return Backfilling(entry.fragment, entry.from_us, entry.until_us)
        case BackfilledEntry():
            return Backfilled(entry.fragment, entry.lost)
        case LookedUpEntry():
            return LookedUp(entry.fragment, entry.table, entry.version, entry.slices)


def pack_relayed(relayed: Relayed) -> RelayedEntry:
    """Return the entry of another site's fact."""
    fact = relayed.fact
    entry = _pack_relay_fact(fact) if isinstance(fact, RelayFact) else pack_fact(fact)
    return RelayedEntry(relayed.origin, entry)


def _pack_relay_fact(fact: RelayFact) -> RelayFactEntry:
    match fact:
        case Counted():
            return CountedEntry(fact.fragment, fact.records)
        case Deferred():
            return DeferredEntry(
                fact.fragment, fact.place, fact.number, fact.share, fact.keys, fact.lacking, fact.is_counted
            )
        case Delivered():
            return DeliveredEntry(fact.fragment, fact.place, fact.number)


def unpack_relayed(entry: RelayedEntry) -> Relayed:
    """Return another site's fact."""
    fact = entry.fact
    return Relayed(entry.origin, _unpack_relay_fact(fact) if isinstance(fact, RelayFactEntry) else unpack_fact(fact))


def _unpack_relay_fact(entry: RelayFactEntry) -> RelayFact:
    match entry:
        case CountedEntry():
            return Counted(entry.fragment, entry.records)
        case DeferredEntry():
            return Deferred(
                entry.fragment, entry.place, entry.number, entry.share, entry.keys, entry.lacking, entry.is_counted
            )
        case DeliveredEntry():
            return Delivered(entry.fragment, entry.place, entry.number)


def _pack_closing(closing: Closing) -> ClosingItem:
    estimates = tuple(map(_pack_estimate, closing.estimates))
    sources = tuple((source, _shorten(share)) for source, share in closing.sources)
    return ClosingItem(closing.end_us, closing.reason, estimates, sources)


def _pack_estimate(estimate: SiteEstimate) -> EstimateItem:
    bound = None if estimate.bound is None else _shorten(estimate.bound)
    return EstimateItem(_shorten(estimate.coverage), bound, _shorten(estimate.count), _shorten(estimate.total))


def _unpack_closing(item: ClosingItem) -> Closing:
    estimates = tuple(SiteEstimate(e.coverage, e.bound, e.count, e.total) for e in item.estimates)
    return Closing(item.end_us, item.reason, estimates, item.sources)


def _shorten(value: float) -> float:
    """Make a whole number an integer, which takes fewer bytes on the wire; it is read as the same float."""
    return int(value) if abs(value) < 2**53 and value == int(value) else value
