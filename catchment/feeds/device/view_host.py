"""A place where views are computed: a device, or the cloud. Pure.

It keeps the recent events of the feeds that its views read, and when an event arrives joins it with the
events of the other input that are at most a lifetime away. Invariant: every pair of events that was
absorbed, in either order, while its view was installed and neither event was yet let go, is evaluated
exactly once.

An event is let go when no event that may still come can meet it: each feed arrives in order of time, so the
newest time seen of the other input, less the lifetime, is the bound. A view's output has no such order; what
meets it is kept for `retention_us`. That, and `max_events` per feed, bound the memory when the other side is
silent for long: the oldest events go first, and are counted in `forgotten`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from catchment.errors import FeedError
from catchment.feeds.forms.compiled import CompiledProgram, CompiledView
from catchment.feeds.forms.physical_view import PhysicalView, ViewRow
from catchment.feeds.protocol.messages import FeedEvent
from catchment.feeds.protocol.sampling import Key

_BY_TIME = attrgetter("at_us")
EVICT_EVERY = 64  # events of a feed between two checks of what can be let go


@dataclass(frozen=True)
class HostLimits:
    """How long, and how many, events of a feed are kept for an input that is silent."""

    retention_us: int = 900_000_000
    max_events: int = 20_000

    def __post_init__(self) -> None:
        if self.retention_us <= 0 or self.max_events <= 0:
            raise FeedError(f"a host must keep some events, not {self.max_events} for {self.retention_us} us")


@dataclass(frozen=True, slots=True)
class Match:
    """Two events of a view have met (or one, for a view over one feed)."""

    view: str
    row: ViewRow
    event: FeedEvent  # the output: its feed is the view, its key the keys that met


@dataclass
class FeedBuffer:
    """The recent events of one feed, in order of time; a key is taken once."""

    events: list[FeedEvent] = field(default_factory=list)
    keys: set[Key] = field(default_factory=set)
    newest_us: int | None = None
    absorbed: int = 0
    ordered: bool = True  # false for the output of a view

    def add(self, event: FeedEvent) -> bool:
        """Add an event; return False when it is already here."""
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
        low = bisect_left(self.events, low_us, key=_BY_TIME)
        return self.events[low : bisect_right(self.events, high_us, lo=low, key=_BY_TIME)]

    def let_go(self, before_us: int) -> int:
        """Forget the events before an instant; return how many there were."""
        count = bisect_left(self.events, before_us, key=_BY_TIME)
        self.keys.difference_update(e.key for e in self.events[:count])
        del self.events[:count]
        return count


@dataclass(frozen=True)
class _Installed:
    """A view and its compiled template."""

    view: PhysicalView
    compiled: CompiledView

    @property
    def lifetime_us(self) -> int:
        return max(self.compiled.form.lifetimes_us)

    def other(self, feed: str) -> str | None:
        return next((i for i in self.view.inputs if i != feed), None)


class ViewHost:
    """Computes the installed views over the events that it absorbs."""

    def __init__(self, program: CompiledProgram, limits: HostLimits | None = None) -> None:
        self.program = program
        self.limits = limits or HostLimits()
        self.buffers: dict[str, FeedBuffer] = {}
        self.installed: dict[str, _Installed] = {}
        self.readers: dict[str, dict[str, _Installed]] = {}
        self.forgotten = 0  # let go because of a bound, while a match was still possible

    def install(self, view: PhysicalView) -> None:
        """Compute a view from now on; a view of the same name is replaced."""
        self.installed[view.name] = _Installed(view, self.program.view(view.template))
        for feed in view.inputs:  # a view's inputs are part of its name, so a replaced view has the same
            self.readers.setdefault(feed, {})[view.name] = self.installed[view.name]

    def uninstall(self, name: str) -> None:
        """Stop computing a view, and forget feeds that nothing reads."""
        gone = self.installed.pop(name, None)
        for feed in gone.view.inputs if gone else ():
            self.readers[feed].pop(name, None)
            if not self.readers[feed]:
                del self.readers[feed]
                self.buffers.pop(feed, None)

    def newest_us(self, feed: str) -> int | None:
        """Return the newest event time seen of a feed."""
        return self.buffers[feed].newest_us if feed in self.buffers else None

    def absorb(self, event: FeedEvent) -> Iterator[Match]:
        """Take one event of a feed that views read; yield the matches that it makes."""
        readers = self.readers.get(event.feed)
        if not readers:
            return
        buffer = self.buffers.setdefault(event.feed, FeedBuffer())
        if not buffer.add(event):
            return
        for installed in list(readers.values()):
            yield from self._matches(installed, event)
        if buffer.absorbed % EVICT_EVERY == 0 or len(buffer.events) > self.limits.max_events:
            self._evict(event.feed, buffer)

    def _matches(self, installed: _Installed, event: FeedEvent) -> Iterator[Match]:
        other = installed.other(event.feed)
        if other is None:
            yield from self._evaluate(installed, event, ())
        elif other in self.buffers:
            near_us = installed.lifetime_us
            partners = self.buffers[other].between(event.at_us - near_us, event.at_us + near_us)
            yield from self._evaluate(installed, event, partners)

    def _evaluate(self, installed: _Installed, event: FeedEvent, partners: Sequence[FeedEvent]) -> Iterator[Match]:
        for ordinal, row in enumerate(installed.view.rows):
            role = row.inputs.index(event.feed)
            if event.rank >= row.shares[role]:
                continue
            for met in _meetings(row, role, event, partners):
                values = installed.compiled.evaluate(row, *(e.values for e in met))
                if values is not None:
                    yield _match(installed.view, ordinal, met, values)

    def _evict(self, feed: str, buffer: FeedBuffer) -> None:
        assert buffer.newest_us is not None
        horizon = buffer.newest_us - self.limits.retention_us
        if len(buffer.events) > self.limits.max_events:
            horizon = max(horizon, buffer.events[-self.limits.max_events].at_us)
        needed = min((self._needed_from(i, feed) for i in self.readers[feed].values()), default=horizon)
        buffer.let_go(needed)
        if needed < horizon:
            self.forgotten += buffer.let_go(horizon)

    def _needed_from(self, installed: _Installed, feed: str) -> int:
        """Return the oldest event of the feed that the other input may still meet."""
        newest = self.buffers[feed].newest_us
        other = installed.other(feed)
        assert newest is not None
        if other is None:
            return newest
        partner = self.buffers.get(other)
        if partner is None or partner.newest_us is None or not partner.ordered:
            return newest - self.limits.retention_us
        return min(partner.newest_us, newest) - installed.lifetime_us


def _meetings(
    row: ViewRow, role: int, event: FeedEvent, partners: Sequence[FeedEvent]
) -> Iterator[tuple[FeedEvent, ...]]:
    """Yield the events that meet, in the order of the template's inputs."""
    if len(row.inputs) == 1:
        yield (event,)
        return
    share = row.shares[1 - role]
    for partner in partners:
        if partner.rank < share:
            yield (event, partner) if role == 0 else (partner, event)


def _match(view: PhysicalView, ordinal: int, met: tuple[FeedEvent, ...], values: tuple[object, ...]) -> Match:
    # The ordinal of the row is part of the key: two rows may match on the same two events.
    key = (*(n for e in met for n in e.key), ordinal)
    return Match(view.name, view.rows[ordinal], FeedEvent(view.name, key, max(e.at_us for e in met), values))
