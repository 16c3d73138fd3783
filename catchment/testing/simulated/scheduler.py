"""Simulated time: events in the order of their instants, and the clocks that the roles of a deployment read.

Law: one seed gives one order. Events of one instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

Action = Callable[[], None]


class Scheduler:
    """A queue of events on one time line."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self._events: list[tuple[int, int, Action]] = []
        self._numbers = count()

    def at(self, instant_us: int, action: Action) -> None:
        """Let something happen at an instant, or now if that is past."""
        heapq.heappush(self._events, (max(instant_us, self.now_us), next(self._numbers), action))

    def after(self, delay_us: int, action: Action) -> None:
        """Let something happen after a delay."""
        self.at(self.now_us + delay_us, action)

    def run_until(self, instant_us: int) -> None:
        """Let everything happen up to an instant."""
        while self._events and self._events[0][0] <= instant_us:
            self.now_us, _, action = heapq.heappop(self._events)
            action()
        self.now_us = max(self.now_us, instant_us)


@dataclass
class SimulatedClock:
    """The clock of one machine: the simulated time, ahead of it or behind it."""

    scheduler: Scheduler
    ahead_us: int = 0

    def now_us(self) -> int:
        return self.scheduler.now_us + self.ahead_us
