"""How much each peer may ask of an inbox, so that one that has gone wrong does not take the time of all others.

Each peer has two buckets, of calls and of bytes, that fill at the rates of `WireLimits` up to `BURST_S` seconds' worth.
A call that finds a bucket empty is refused for the time being.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from catchment.timeline import Clock, SystemClock
from catchment.wire.frames.limits import WireLimits

BURST_S = 4.0  # a peer that was quiet may ask for this much at once
MAX_PEERS = 4096  # peers that are remembered; the one that was quiet longest is forgotten, and begins with full buckets


@dataclass(slots=True)
class _Buckets:
    calls: float
    size_bytes: float
    filled_us: int


class PeerQuotas:
    """The buckets of all peers; may be used from any thread."""

    def __init__(self, limits: WireLimits, clock: Clock | None = None) -> None:
        self._max_calls = limits.peer_calls_per_s * BURST_S
        self._max_bytes = max(limits.peer_bytes_per_s * BURST_S, float(limits.frame_bytes))
        self._limits = limits
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._peers: dict[str, _Buckets] = {}

    def take(self, peer: str, size_bytes: int, calls: int = 1) -> bool:
        """Return whether a peer may make a call of this size now; if so, its buckets have less.

        `calls` is 0 for further bytes of a call that was counted.
        """
        with self._lock:
            buckets = self._fill(peer)
            if buckets.calls < calls or buckets.size_bytes < size_bytes:
                return False
            buckets.calls -= calls
            buckets.size_bytes -= size_bytes
            return True

    def _fill(self, peer: str) -> _Buckets:
        now_us = self._clock.now_us()
        buckets = self._peers.pop(peer, None) or _Buckets(self._max_calls, self._max_bytes, now_us)
        passed_s = max(0, now_us - buckets.filled_us) / 1e6
        buckets.calls = min(self._max_calls, buckets.calls + passed_s * self._limits.peer_calls_per_s)
        buckets.size_bytes = min(self._max_bytes, buckets.size_bytes + passed_s * self._limits.peer_bytes_per_s)
        buckets.filled_us = now_us
        self._peers[peer] = buckets  # the last in order is the one that was active last
        if len(self._peers) > MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        return buckets
