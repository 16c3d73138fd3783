"""What updates cost on the wire: a part for each row, and a part for the frame they leave in.

Policies count in updates. A frame has a header, a checksum and the layout of its tables, whether it carries one row or
ten thousand; were it spread over the rows, few rows would look dear and a link would look slow because little was sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from catchment.wire.codec import frame_bytes
from catchment.wire.messages import Segment

_SMOOTHING = 0.2  # of the newest segment
_LEAST_RATIO = 0.01  # rows are never free


@dataclass
class WireSizes:
    """Wire bytes per Arrow byte of the rows, and bytes of a frame without rows, smoothed over segments."""

    ratio: float = 1.0
    frame_bytes: float = 0.0

    def note(self, segment: Segment, written_bytes: int) -> None:
        """A segment of updates took so many bytes."""
        arrow = sum(m.table.nbytes for m in segment.updates())
        if not arrow:
            return
        frame = frame_bytes(segment)
        ratio = max((written_bytes - frame) / arrow, _LEAST_RATIO)
        weight = _SMOOTHING if self.frame_bytes else 1.0  # the first one is all that is known
        self.frame_bytes += weight * (frame - self.frame_bytes)
        self.ratio += weight * (ratio - self.ratio)
