"""A link of a declared bandwidth and latency, also where the real one is faster (loopback).

The bucket is pure arithmetic on a given time. Segments go onto the wire one after another, each for as long as its
bytes take; then they travel, and any number may be under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from catchment.errors import WireError
from catchment.timeline import Clock, SystemClock

BURST_S = 0.02  # an idle link sends at once what it carries in this time


@dataclass(slots=True)
class TokenBucket:
    """A bandwidth with a burst.

    Law: over any interval of t seconds, at most burst + rate * t bytes pass, plus the rest of the last segment.
    """

    bytes_per_s: float
    burst_bytes: float
    _level: float = 0.0
    _at_s: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.burst_bytes < 0:
            raise WireError(
                f"a bandwidth must be positive and a burst not negative, not {self.bytes_per_s} bytes/s "
                f"and {self.burst_bytes} bytes"
            )
        self._level = self.burst_bytes

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take bytes at a time; return how many seconds to wait until the last of them has passed."""
        elapsed = max(0.0, now_s - self._at_s)
        self._at_s = now_s  # also after a clock was set back: no stall until it has caught up
        self._level = min(self.burst_bytes, self._level + elapsed * self.bytes_per_s) - size_bytes
        return max(0.0, -self._level / self.bytes_per_s)


class LinkBucket:
    """The bucket of one link, for all that send over it: the site's own sender, and what it forwards."""

    def __init__(self, bytes_per_s: float, clock: Clock | None = None) -> None:
        self._bucket = TokenBucket(bytes_per_s, bytes_per_s * BURST_S)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> float:
        """Take bytes now; return how many seconds to wait until the last of them has passed."""
        with self._lock:
            return self._bucket.take(size_bytes, self._clock.now_us() / 1e6)


class Shaper:
    """Make a sender wait as its link would; without `bytes_per_s` the real link is the only limit.

    Several shapers of one link share its `bucket`.
    """

    def __init__(
        self,
        bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        clock: Clock | None = None,
        sleep: Callable[[float], object] | None = None,
        bucket: LinkBucket | None = None,
    ) -> None:
        if latency_s < 0:
            raise WireError(f"a latency of {latency_s} s was given; it must not be negative")
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s
        own = LinkBucket(bytes_per_s, clock) if bytes_per_s is not None and bucket is None else None
        self._bucket = bucket or own
        self._released = threading.Event()
        self._sleep = sleep or self._released.wait

    def transmit(self, size_bytes: int) -> None:
        """Wait while this many bytes go onto the wire."""
        if self._bucket is not None:
            self._wait(self._bucket.take(size_bytes))

    def travel(self) -> None:
        """Wait for one passage of the link, one way."""
        self._wait(self.latency_s)

    def release(self) -> None:
        """End every wait, now and later: the sender stops."""
        self._released.set()

    def _wait(self, wait_s: float) -> None:
        if wait_s > 0 and not self._released.is_set():
            self._sleep(wait_s)
