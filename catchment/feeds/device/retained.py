"""The events that a host keeps for its views: in memory up to a bound, on disk beyond it. Pure but for its spool.

Invariant: an event that was added and not let go is found by `between`, wherever it is kept, and is not added twice.
At the bound of memory the oldest events of the feed that has most in memory go to the spool. At the bound of the disk,
or where there is no spool, the oldest events of the feed that has most are forgotten, and counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.spool import Spool
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.protocol.sampling import Key
from catchment.timeline import START_OF_TIME_US

_BY_TIME = attrgetter("at_us")


@dataclass
class FeedBuffer:
    """The retained events of one feed: those in memory in order of time, and what is known of those on disk."""

    events: list[FeedEvent] = field(default_factory=list)
    keys: set[Key] = field(default_factory=set)
    newest_us: int | None = None
    absorbed: int = 0
    ordered: bool = True  # false for the output of a view
    spooled: int = 0
    spooled_until_us: int = START_OF_TIME_US  # no event on disk is newer

    def add(self, event: FeedEvent) -> bool:
        """Add an event; return False when it is already in memory."""
        if event.key in self.keys:
            return False
        self.keys.add(event.key)
        self.ordered = self.ordered and len(event.key) == 1
        if self.newest_us is None or event.at_us >= self.newest_us:
            self.events.append(event)
            self.newest_us = event.at_us
        else:
            self.events.insert(bisect_right(self.events, event.at_us, key=_BY_TIME), event)
        self.absorbed += 1
        return True

    def between(self, low_us: int, high_us: int) -> list[FeedEvent]:
        """Return the events in memory from an instant to another, both included."""
        low = bisect_left(self.events, low_us, key=_BY_TIME)
        return self.events[low : bisect_right(self.events, high_us, lo=low, key=_BY_TIME)]

    def take_before(self, before_us: int) -> list[FeedEvent]:
        """Take out the events in memory before an instant."""
        return self.take_oldest(bisect_left(self.events, before_us, key=_BY_TIME))

    def take_oldest(self, count: int) -> list[FeedEvent]:
        """Take out so many of the oldest events in memory."""
        taken = self.events[:count]
        self.keys.difference_update(e.key for e in taken)
        del self.events[:count]
        return taken


class RetainedEvents:
    """The events of all feeds that a host keeps, within its limits."""

    def __init__(self, limits: HostLimits, spool: Spool | None = None) -> None:
        self.limits = limits
        self.spool = spool if limits.disk_bytes else None
        self.feeds: dict[str, FeedBuffer] = {}
        self.in_memory = 0
        self.forgotten: Counter[str] = Counter()  # per feed, let go at a bound while a match was still possible

    def add(self, event: FeedEvent) -> bool:
        """Add an event; return False when it is already here."""
        buffer = self.feeds.setdefault(event.feed, FeedBuffer())
        if buffer.spooled and event.at_us <= buffer.spooled_until_us and self._spool.contains(event):
            return False
        added = buffer.add(event)
        self.in_memory += added
        return added

    def between(self, feed: str, low_us: int, high_us: int) -> list[FeedEvent]:
        """Return the events of a feed from an instant to another, both included."""
        buffer = self.feeds.get(feed)
        if buffer is None:
            return []
        found = buffer.between(low_us, high_us)
        if buffer.spooled and low_us <= buffer.spooled_until_us:
            found = self._spool.between(feed, low_us, high_us) + found
        return found

    def all_events(self) -> Iterator[FeedEvent]:
        """Yield every event that is kept, in memory and on disk."""
        for feed in self.feeds:
            yield from self.between(feed, START_OF_TIME_US, -START_OF_TIME_US)

    def put_back(self, event: FeedEvent) -> None:
        """Add an event that was kept before a restart; what does not fit in memory goes to the disk again."""
        self.add(event)
        while self.memory_is_full:
            self.make_room_in_memory()

    def newest_us(self, feed: str) -> int | None:
        """Return the newest event time seen of a feed."""
        return self.feeds[feed].newest_us if feed in self.feeds else None

    def let_go(self, feed: str, before_us: int) -> int:
        """Let go of the events of a feed before an instant; return how many there were."""
        buffer = self.feeds[feed]
        count = 0
        if buffer.spooled:
            count = self._spool.let_go(feed, before_us)
            buffer.spooled -= count
        taken = len(buffer.take_before(before_us))
        self.in_memory -= taken
        return count + taken

    def drop(self, feed: str) -> None:
        """Let go of a feed that nothing reads any more."""
        buffer = self.feeds.pop(feed, None)
        if buffer is None:
            return
        self.in_memory -= len(buffer.events)
        if buffer.spooled:
            self._spool.let_go_oldest(feed, buffer.spooled)

    @property
    def memory_is_full(self) -> bool:
        return self.in_memory > self.limits.memory_events

    @property
    def disk_is_full(self) -> bool:
        return self.spool is not None and self.spool.used_bytes > self.limits.disk_bytes

    def largest_in_memory(self) -> str:
        """Return the feed with most events in memory."""
        return max(self.feeds, key=lambda name: len(self.feeds[name].events))

    def make_room_in_memory(self) -> None:
        """Move the older half of the largest feed to the disk, or forget its oldest events where there is none."""
        feed = self.largest_in_memory()
        buffer = self.feeds[feed]
        if self.spool is None:
            taken = buffer.take_oldest(self.in_memory - self.limits.memory_events)
            self.forgotten[feed] += len(taken)
        else:
            taken = buffer.take_oldest((len(buffer.events) + 1) // 2)
            self.spool.append(taken)
            buffer.spooled += len(taken)
            buffer.spooled_until_us = max(buffer.spooled_until_us, taken[-1].at_us)
        self.in_memory -= len(taken)

    def make_room_on_disk(self) -> None:
        """Forget the oldest events on disk of the feed that has most there, an eighth of them at a time."""
        feed = max(self.feeds, key=lambda name: self.feeds[name].spooled)
        buffer = self.feeds[feed]
        gone = self._spool.let_go_oldest(feed, max(1, buffer.spooled // 8))
        buffer.spooled -= gone
        self.forgotten[feed] += gone

    @property
    def _spool(self) -> Spool:
        assert self.spool is not None
        return self.spool
