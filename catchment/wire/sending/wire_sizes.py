"""What updates cost on the wire: a part for each row, and a part for the frame they leave in.

Policies count in updates. A frame has a header, a checksum and the layout of its tables, whether it carries one row or
ten thousand; were it spread over the rows, few rows would look dear and a link would look slow because little was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.wire.codec import frame_bytes
from catchment.wire.messages import Message, Segment, Updates
from catchment.wire.outbox import Outbox

_SMOOTHING = 0.2  # of the newest segment
_LEAST_RATIO = 0.01  # rows are never free


@dataclass
class WireSizes:
    """Wire bytes per Arrow byte of the rows, and bytes of a frame with a single row, smoothed over segments."""

    ratio: float = 1.0
    frame_bytes: float = 0.0
    _has_ratio: bool = False

    def note_appended(self, outbox: Outbox, sequence: int, messages: Sequence[Message]) -> None:
        """These were put into an outbox under a number; what they cost is known while they wait there."""
        written = next((p.size_bytes for p in reversed(outbox.pending()) if p.sequence == sequence), None)
        updates = tuple(m for m in messages if isinstance(m, Updates))
        if updates and written:
            self.note(Segment(outbox.origin, outbox.epoch, sequence, updates), written)

    def note(self, segment: Segment, written_bytes: int) -> None:
        """A segment of updates took so many bytes."""
        further = sum(m.table.nbytes * (m.rows - 1) / m.rows for m in segment.updates() if m.rows)
        if not any(m.rows for m in segment.updates()):
            return
        frame = frame_bytes(segment)
        self.frame_bytes += (_SMOOTHING if self.frame_bytes else 1.0) * (frame - self.frame_bytes)
        if further:
            ratio = max((written_bytes - frame) / further, _LEAST_RATIO)
            self.ratio += (_SMOOTHING if self._has_ratio else 1.0) * (ratio - self.ratio)
            self._has_ratio = True
