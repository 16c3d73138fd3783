"""How much a host of views keeps: the bounds of its memory and disk, and for how long it waits for a silent input."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.errors import FeedError
from catchment.units import format_duration


@dataclass(frozen=True)
class HostLimits:
    """What a host keeps: so many events in memory, so many bytes on disk, and for how long a device may be away.

    An event is kept for its lifetime and, where an input that could meet it is silent, for `away_us` beyond it.
    """

    away_us: int = 900_000_000
    memory_events: int = 50_000
    disk_bytes: int = 0

    def __post_init__(self) -> None:
        if self.away_us < 0 or self.memory_events <= 0 or self.disk_bytes < 0:
            raise FeedError(
                f"found {self.memory_events} events in memory, {self.disk_bytes} bytes on disk and "
                f"{format_duration(self.away_us)} of absence for a host; expected none below 0, and some memory"
            )


CLOUD_LIMITS = HostLimits(memory_events=400_000)  # about 200 MB
