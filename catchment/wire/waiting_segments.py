"""Segments that wait in an inbox: the bytes that each site has there, and some of them in decoded form."""

from __future__ import annotations

from collections import Counter

from catchment.wire.codec import EncodedSegment
from catchment.wire.messages import Segment


class WaitingBytes:
    """Bytes that have arrived and are not yet discarded, by site."""

    def __init__(self) -> None:
        self._segments: dict[int, tuple[str, int]] = {}
        self._size_bytes: Counter[str] = Counter()

    def add(self, position: int, segment: EncodedSegment) -> None:
        origin = segment.header.origin
        self._segments[position] = origin, len(segment.data)
        self._size_bytes[origin] += len(segment.data)

    def remove(self, position: int) -> None:
        origin, size_bytes = self._segments.pop(position, ("", 0))
        self._size_bytes[origin] -= size_bytes

    def of(self, origin: str) -> int:
        return self._size_bytes[origin]


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
