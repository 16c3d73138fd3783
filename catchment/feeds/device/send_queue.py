"""What a device has yet to bring to the broker: in order, within a bound, and not faster than a rate. Pure.

A message stays until the broker has acknowledged it. At the bound the oldest event is dropped and counted; notices and
confirmations are few and are kept. Messages leave in the order in which they were made, because the cloud takes the
events of a feed in the order of their numbers; after a long absence they leave at `send_per_s`, not all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from catchment.errors import FeedError
from catchment.feeds.protocol.messages import FeedEvent, Upward


@dataclass(frozen=True)
class SendLimits:
    """How much a device keeps for an absent link, and how fast it sends."""

    max_waiting: int = 10_000
    send_per_s: float = 500.0
    max_in_flight: int = 200  # sent, and not yet acknowledged by the broker

    def __post_init__(self) -> None:
        if self.max_waiting <= 0 or self.send_per_s <= 0 or self.max_in_flight <= 0:
            raise FeedError(f"a device must be able to keep and send something, not {self!r}")


class SendQueue:
    """Messages by number, oldest first."""

    def __init__(self, limits: SendLimits) -> None:
        self.limits = limits
        self.waiting: dict[int, Upward] = {}
        self.in_flight: set[int] = set()
        self.next_number = 0
        self.dropped = 0
        self._allowed = limits.send_per_s
        self._counted_us: int | None = None

    def push(self, message: Upward) -> None:
        """Add a message; at the bound the oldest event makes room."""
        if len(self.waiting) >= self.limits.max_waiting and isinstance(message, FeedEvent):
            self._drop_oldest_event()
        self.waiting[self.next_number] = message
        self.next_number += 1

    def _drop_oldest_event(self) -> None:
        oldest = next((n for n, message in self.waiting.items() if isinstance(message, FeedEvent)), None)
        if oldest is not None:
            self.acknowledge(oldest)
            self.dropped += 1

    def take(self, now_us: int) -> Iterator[tuple[int, Upward]]:
        """Take messages to send now; they wait on until they are acknowledged."""
        self._allow(now_us)
        for number, message in list(self.waiting.items()):
            if len(self.in_flight) >= self.limits.max_in_flight or self._allowed < 1:
                return
            if number not in self.in_flight:
                self.in_flight.add(number)
                self._allowed -= 1
                yield number, message

    def _allow(self, now_us: int) -> None:
        """Count what may be sent by now: at most a second's worth at once."""
        passed_us = 0 if self._counted_us is None else max(0, now_us - self._counted_us)
        rate = self.limits.send_per_s
        self._allowed = min(max(rate, 1.0), self._allowed + rate * passed_us / 1e6)
        self._counted_us = now_us

    def acknowledge(self, number: int) -> None:
        """Forget a message that the broker has."""
        self.waiting.pop(number, None)
        self.in_flight.discard(number)
