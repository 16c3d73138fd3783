"""Segments that wait in an inbox: which they are, the bytes that each site has there, some of them decoded."""

from __future__ import annotations

from collections import Counter

from catchment.wire.frames.codec import EncodedSegment, FrameHead
from catchment.wire.messages import Segment


class WaitingSegments:
    """What has arrived and is not yet discarded: which segment is at each position, and the bytes by site."""

    def __init__(self) -> None:
        self._heads: dict[int, FrameHead] = {}
        self._positions: dict[tuple[str, str, int], int] = {}
        self._size_bytes: Counter[str] = Counter()

    def add(self, position: int, segment: EncodedSegment) -> None:
        head = segment.head
        self._heads[position] = head
        self._positions[_identity(head)] = position
        self._size_bytes[head.header.origin] += head.size_bytes

    def head(self, position: int) -> FrameHead:
        """Return the head of the segment at a position."""
        return self._heads[position]

    def remove(self, position: int) -> None:
        head = self._heads.pop(position, None)
        if head is not None:
            self._positions.pop(_identity(head), None)
            self._size_bytes[head.header.origin] -= head.size_bytes

    def position_of(self, segment: EncodedSegment) -> int | None:
        """Return where a segment of this origin, epoch and number waits; None if there is none."""
        return self._positions.get(_identity(segment.head))

    def is_at(self, position: int, segment: EncodedSegment) -> bool:
        """Return whether a segment is the one that was put at a position."""
        head = self._heads.get(position)
        return head is None or (head.digest == segment.digest and _identity(head) == _identity(segment.head))

    def of(self, origin: str) -> int:
        return self._size_bytes[origin]


def _identity(head: FrameHead) -> tuple[str, str, int]:
    return head.header.origin, head.header.epoch, head.header.sequence


class DecodedSegments:
    """Segments between being accepted and being discarded, as long as there is room for them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._segments: dict[int, Segment] = {}
        self._size_bytes = 0

    def add(self, position: int, segment: Segment) -> None:
        size_bytes = _table_bytes(segment)
        if self._size_bytes + size_bytes <= self._max_bytes:
            self._segments[position] = segment
            self._size_bytes += size_bytes

    def get(self, position: int) -> Segment | None:
        return self._segments.get(position)

    def remove(self, position: int) -> None:
        segment = self._segments.pop(position, None)
        if segment is not None:
            self._size_bytes -= _table_bytes(segment)


def _table_bytes(segment: Segment) -> int:
    return sum(update.table.nbytes for update in segment.updates())
