"""Messages as segments that every receiver takes, however much one commit sends.

A message with more rows, bytes or slices than a receiver takes goes in pieces, and the pieces go in as many segments
as they need. Laws: every segment is within the limits; merging the pieces gives the whole; updates come before facts,
and a piece that could be taken for the whole (a mark, the end of a query's windows) comes after all the others. So
whatever prefix of the segments is in, nothing is believed complete that is not.

One row, or one closing, is never split: a single one beyond a limit is refused by the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

import msgspec
import pyarrow as pa

from catchment.timeline import START_OF_TIME_US
from catchment.wire.frames.header import pack_fact, pack_relayed
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.messages import (
    Closing,
    Counted,
    Deferred,
    Delivered,
    LookedUp,
    Message,
    OwnFact,
    Records,
    Relayed,
    RelayFact,
    Shed,
    Skipped,
    Standing,
    Updates,
)

FACTS_PER_SEGMENT = 2_000  # half of the messages that a receiver takes in one segment

_BYTES_PER_COUNT = 19  # a slice and its count in a header, at most
_BYTES_AROUND = 1024  # of a header: origin, epoch and number; and of an update, all but its counts
_MAX_SKEW = 1.5  # a piece of a table may be this much larger than the mean of the pieces

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Room:
    """How much of each limited thing fits into one segment, and into one message of it."""

    table_bytes: int
    rows: int
    messages: int
    facts: int
    header_bytes: int
    items: int  # of one message

    @classmethod
    def within(cls, limits: WireLimits) -> _Room:
        header_bytes = max(limits.header_bytes - _BYTES_AROUND, 1)
        return cls(
            # Half of a frame: Arrow pads its buffers, and data that is random grows when it is compressed.
            table_bytes=max(min(limits.frame_bytes - limits.header_bytes, limits.frame_bytes // 2), 1),
            rows=limits.rows,
            messages=limits.messages,
            facts=min(FACTS_PER_SEGMENT, limits.messages),
            header_bytes=header_bytes,
            items=max(min(limits.slices, header_bytes // 2 // _BYTES_PER_COUNT), 1),
        )


@dataclass(slots=True)
class _Load:
    """What a segment holds so far, or what one message adds to it."""

    table_bytes: int = 0
    rows: int = 0
    messages: int = 0
    facts: int = 0
    header_bytes: int = 0

    @classmethod
    def of(cls, message: Message) -> _Load:
        if isinstance(message, Updates):
            return cls(message.table.nbytes, message.rows, 1, 0, _update_header_bytes(message))
        if isinstance(message, Records):
            return cls(message.raw_bytes, message.rows, 1, 0, _BYTES_AROUND)
        return cls(0, 0, 1, 1, _fact_bytes(message))

    def add(self, other: _Load) -> None:
        self.table_bytes += other.table_bytes
        self.rows += other.rows
        self.messages += other.messages
        self.facts += other.facts
        self.header_bytes += other.header_bytes

    def leaves_room_for(self, other: _Load, room: _Room) -> bool:
        return (
            self.table_bytes + other.table_bytes <= room.table_bytes
            and self.rows + other.rows <= room.rows
            and self.messages + other.messages <= room.messages
            and self.facts + other.facts <= room.facts
            and self.header_bytes + other.header_bytes <= room.header_bytes
        )


def segments_of(
    updates: Iterable[Updates], facts: Sequence[Message], limits: WireLimits = DEFAULT_LIMITS
) -> list[list[Message]]:
    """Return what to send as segments, at least one: updates, and after them the facts, each in their order."""
    room = _Room.within(limits)
    pieces: list[Message] = [piece for update in updates for piece in _split_updates(update, room)]
    pieces += [piece for fact in facts for piece in _split_fact(fact, room)]
    segments: list[list[Message]] = [[]]
    load = _Load()
    for piece in pieces:
        added = _Load.of(piece)
        if segments[-1] and not load.leaves_room_for(added, room):
            segments.append([])
            load = _Load()
        segments[-1].append(piece)
        load.add(added)
    return segments


def _split_updates(updates: Updates, room: _Room) -> Iterator[Updates]:
    """Yield the same updates in pieces: as many as their rows need, or their record counts."""
    tables = list(_split_table(updates.table, room))
    records = _chunks(updates.records, room.items)
    for table, counts in zip_longest(tables, records):
        rest = table if table is not None else updates.table.slice(updates.rows)
        yield Updates(updates.fragment, rest, counts or ())


def _split_table(table: pa.Table, room: _Room) -> Iterator[pa.Table]:
    pieces = max(1, -(-table.nbytes // room.table_bytes), -(-table.num_rows // room.rows))
    step = max(1, -(-table.num_rows // pieces))
    for start in range(0, max(table.num_rows, 1), step):
        yield from _halve_skewed(table.slice(start, step), room.table_bytes)


def _halve_skewed(table: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """Yield a table, or its halves where a few large rows make it far larger than the others."""
    if table.num_rows < 2 or table.nbytes <= _MAX_SKEW * max_bytes:
        yield table
        return
    middle = table.num_rows // 2
    yield from _halve_skewed(table.slice(0, middle), max_bytes)
    yield from _halve_skewed(table.slice(middle), max_bytes)


def _split_fact(message: Message, room: _Room) -> Iterator[Message]:
    match message:
        case Relayed(origin, Counted(fragment, records)):
            yield from (Relayed(origin, Counted(fragment, chunk)) for chunk in _chunks(records, room.items))
        case Relayed(origin, Deferred() as deferred):
            yield from (
                Relayed(origin, replace(deferred, lacking=chunk)) for chunk in _chunks(deferred.lacking, room.items)
            )
        case Relayed(_, Delivered()):
            yield message
        case Relayed(origin, fact):
            assert not isinstance(fact, RelayFact)
            yield from (Relayed(origin, piece) for piece in _split_own_fact(fact, room))
        case Updates() | Records():
            yield message
        case _:
            yield from _split_own_fact(message, room)


def _split_own_fact(fact: OwnFact, room: _Room) -> Iterator[OwnFact]:
    match fact:
        case Shed() | Skipped():
            yield from (replace(fact, lacking=chunk) for chunk in _chunks(fact.lacking, room.items))
        case LookedUp():
            yield from (replace(fact, slices=chunk) for chunk in _chunks(fact.slices, room.items))
        case Standing():
            yield from _split_standing(fact, room)
        case _:
            yield fact


def _split_standing(standing: Standing, room: _Room) -> Iterator[Standing]:
    """Yield a standing in pieces; only the last one says up to where nothing more is expected."""
    if len(standing.closings) <= room.items and _fact_bytes(standing) <= room.header_bytes:
        yield standing
        return
    if len(standing.closings) < 2:
        yield standing  # one closing is not split
        return
    middle = len(standing.closings) // 2
    first: tuple[Closing, ...] = standing.closings[:middle]
    yield from _split_standing(replace(standing, complete_until_us=START_OF_TIME_US, closings=first), room)
    yield from _split_standing(replace(standing, closings=standing.closings[middle:]), room)


def _chunks(items: tuple[Item, ...], size: int) -> Iterator[tuple[Item, ...]]:
    """Yield the items in chunks of a size, at least one."""
    for start in range(0, max(len(items), 1), size):
        yield items[start : start + size]


def _update_header_bytes(updates: Updates) -> int:
    columns = len(updates.table.column_names)
    return _BYTES_AROUND + len(updates.fragment.encode()) + 9 * columns + _BYTES_PER_COUNT * len(updates.records)


def _fact_bytes(message: OwnFact | Relayed) -> int:
    entry = pack_relayed(message) if isinstance(message, Relayed) else pack_fact(message)
    return len(msgspec.msgpack.encode(entry))
