"""A place where views are computed: a device, or the cloud. Pure.

It keeps the events of the feeds that its views read, and when an event arrives joins it with the events of the
other input of which one lives at the time of the other. Invariant: every pair of events that was absorbed, in either
order, while its view was installed and neither event was yet let go, is evaluated exactly once.

An event is let go when no event that may still come can meet it: each feed arrives in order of time, so the newest
time seen of the other input, less the lifetime, is the bound. An input may be silent because its device is away, and
a view's output has no order of time: what could meet those is kept for its lifetime and `away_us` more. The bounds of
memory and disk are those of `retained.py`; what a bound took too early is counted there, by feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.operator_runs import OperatorRuns
from catchment.feeds.device.retained import RetainedEvents
from catchment.feeds.device.spool import Spool
from catchment.feeds.forms.compiled import CompiledProgram, CompiledView, finite_or_null
from catchment.feeds.forms.physical_view import PhysicalView, ViewRow
from catchment.feeds.protocol.messages import FeedEvent

EVICT_EVERY = 64  # events of a feed between two checks of what can be let go


@dataclass(frozen=True, slots=True)
class Match:
    """Two events of a view have met (or one, for a view over one feed)."""

    view: str
    row: ViewRow
    event: FeedEvent  # the output: its feed is the view, its key the keys that met


@dataclass(frozen=True)
class _Installed:
    """A view and its compiled template."""

    view: PhysicalView
    compiled: CompiledView

    @property
    def lifetimes_us(self) -> tuple[int, ...]:
        """The lifetime of each input, in the order of the template."""
        return self.compiled.form.lifetimes_us

    @cached_property
    def keep_us(self) -> dict[str, int]:
        """How long an event of each feed lives; in two rows of a view a feed may have different roles."""
        found: dict[str, int] = {}
        for row in self.view.rows:
            for feed, lifetime_us in zip(row.inputs, self.lifetimes_us, strict=True):
                found[feed] = max(lifetime_us, found.get(feed, 0))
        return found

    def other(self, feed: str) -> str | None:
        return next((i for i in self.view.inputs if i != feed), None)

    def kinds(self) -> Iterator[tuple[str, str]]:
        """Yield each feed that the view reads, with its kind."""
        for row in self.view.rows:
            yield from zip(row.inputs, self.compiled.form.inputs, strict=True)


class ViewHost:
    """Computes the installed views over the events that it absorbs."""

    def __init__(self, program: CompiledProgram, limits: HostLimits | None = None, spool: Spool | None = None) -> None:
        self.program = program
        self.limits = limits or HostLimits()
        self.retained = RetainedEvents(self.limits, spool)
        self.operators = OperatorRuns()
        self.installed: dict[str, _Installed] = {}
        self.readers: dict[str, dict[str, _Installed]] = {}

    @property
    def forgotten(self) -> int:
        """How many events were let go because of a bound, while a match was still possible."""
        return self.retained.forgotten.total()

    def install(self, view: PhysicalView) -> None:
        """Compute a view from now on; a view of the same name is replaced."""
        self.installed[view.name] = _Installed(view, self.program.view(view.template))
        self.operators.forget_states(view.name)
        for feed in view.inputs:  # a view's inputs are part of its name, so a replaced view has the same
            self.readers.setdefault(feed, {})[view.name] = self.installed[view.name]

    def begin(self, name: str, since_us: int) -> None:
        """Note that every event of a view's feeds that is later than an instant comes here: operators need that."""
        if self.installed[name].compiled.operator is not None:
            self.operators.begin(name, since_us)

    def uninstall(self, name: str) -> None:
        """Stop computing a view, and forget feeds that nothing reads."""
        gone = self.installed.pop(name, None)
        self.operators.forget(name)
        for feed in gone.view.inputs if gone else ():
            self.readers[feed].pop(name, None)
            if not self.readers[feed]:
                del self.readers[feed]
                self.retained.drop(feed)

    def follow_program(self, program: CompiledProgram) -> None:
        """Take another program; views that it computes in the same way go on, with the events that they have."""
        older = self.program
        kinds = {feed: kind for i in self.installed.values() for feed, kind in i.kinds()}
        self.program = program
        for name, installed in list(self.installed.items()):
            compiled = program.views.get(installed.view.template)
            if compiled is not None and installed.compiled.form.is_same_as(compiled.form):
                self.install(installed.view)
            else:
                self.uninstall(name)
        for feed in [feed for feed in self.retained.feeds if not _goes_on(kinds.get(feed), older, program)]:
            self.retained.drop(feed)

    def newest_us(self, feed: str) -> int | None:
        """Return the newest event time seen of a feed."""
        return self.retained.newest_us(feed)

    def absorb(self, event: FeedEvent) -> Iterator[Match]:
        """Take one event of a feed that views read; yield the matches that it makes."""
        readers = self.readers.get(event.feed)
        if not readers or not self.retained.add(event):
            return
        for installed in list(readers.values()):
            yield from self._matches(installed, event)
        buffer = self.retained.feeds.get(event.feed)
        if buffer is not None and buffer.absorbed % EVICT_EVERY == 0:
            self._evict(event.feed)
        while self.retained.memory_is_full:
            self._make_room()

    def _matches(self, installed: _Installed, event: FeedEvent) -> Iterator[Match]:
        other = installed.other(event.feed)
        if other is None:
            yield from self._evaluate(installed, event, ())
        elif other in self.retained.feeds:
            low_us = event.at_us - installed.keep_us[other]
            high_us = event.at_us + installed.keep_us[event.feed]
            yield from self._evaluate(installed, event, self.retained.between(other, low_us, high_us))

    def _evaluate(self, installed: _Installed, event: FeedEvent, partners: Sequence[FeedEvent]) -> Iterator[Match]:
        for ordinal, row in enumerate(installed.view.rows):
            role = row.inputs.index(event.feed)
            if event.rank >= row.shares[role]:
                continue
            for met in _meetings(row, role, event, partners, installed.lifetimes_us):
                times_us = tuple(e.at_us for e in met)
                values = installed.compiled.evaluate(row, [e.values for e in met], times_us)
                if values is not None and installed.compiled.operator is not None:
                    yield from self._operate(installed, ordinal, event, values[0])
                elif values is not None:
                    yield _match(installed.view, ordinal, met, values)

    def _operate(self, installed: _Installed, ordinal: int, event: FeedEvent, given: Any) -> Iterator[Match]:
        """Yield what the operator of a view makes of an event; one with NULL in an input is passed over."""
        operator = installed.compiled.operator
        assert operator is not None
        period_us = installed.lifetimes_us[0]
        period = event.at_us // period_us
        view = installed.view
        if given is None or not self.operators.has_whole(view.name, period, period_us):
            return
        at = (view.name, ordinal)
        if self.operators.needs_past(at, period):
            self.operators.replay(at, period, operator, self._earlier(installed, ordinal, event, period * period_us))
        for place, values in enumerate(self.operators.step(at, operator, given)):
            finite = tuple(map(finite_or_null, values))
            key = (*event.key, ordinal, place)
            yield Match(view.name, view.rows[ordinal], FeedEvent(view.name, key, event.at_us, finite))

    def _earlier(self, installed: _Installed, ordinal: int, event: FeedEvent, begin_us: int) -> Iterator[Any]:
        """Yield what the operator of a view was given in a period before an event."""
        row = installed.view.rows[ordinal]
        for earlier in self.retained.between(event.feed, begin_us, event.at_us):
            if earlier.key < event.key and earlier.rank < row.shares[0]:
                values = installed.compiled.evaluate(row, [earlier.values], (earlier.at_us,))
                if values is not None and values[0] is not None:
                    yield values[0]

    # ---- what is let go

    def _make_room(self) -> None:
        """Let go of what is not needed; then move events to the disk; then forget the oldest there."""
        self._evict(self.retained.largest_in_memory())
        if self.retained.memory_is_full:
            self.retained.make_room_in_memory()
        if self.retained.disk_is_full:
            for feed in list(self.retained.feeds):
                self._evict(feed)
        while self.retained.disk_is_full:
            self.retained.make_room_on_disk()

    def _evict(self, feed: str) -> None:
        newest_us = self.retained.newest_us(feed)
        assert newest_us is not None
        readers = self.readers[feed].values()
        needed_us = min((self._needed_from(i, feed, newest_us) for i in readers), default=newest_us)
        kept_us = max((i.keep_us[feed] for i in readers), default=0) + self.limits.away_us
        self.retained.let_go(feed, needed_us)
        if needed_us < newest_us - kept_us:
            self.retained.forgotten[feed] += self.retained.let_go(feed, newest_us - kept_us)

    def _needed_from(self, installed: _Installed, feed: str, newest_us: int) -> int:
        """Return the oldest event of the feed that the other input may still meet."""
        other = installed.other(feed)
        if installed.compiled.operator is not None:
            return newest_us - newest_us % installed.lifetimes_us[0]
        if other is None and installed.view.template not in self.program.windows:
            return newest_us
        keep_us = installed.keep_us[feed]
        if other is None:
            return newest_us - keep_us - self.limits.away_us
        partner = self.retained.feeds.get(other)
        if partner is None or partner.newest_us is None or not partner.ordered:
            return newest_us - keep_us - self.limits.away_us
        return min(partner.newest_us, newest_us) - keep_us


def _goes_on(kind: str | None, older: CompiledProgram, newer: CompiledProgram) -> bool:
    """Return whether the events of a kind mean the same in another program, where they may have more values."""
    if kind is None:
        return False
    if kind in older.views:  # the matches of a view
        return kind in newer.views and older.views[kind].form.is_same_as(newer.views[kind].form)
    before, after = older.form.columns_of(kind), newer.form.columns_of(kind)
    return before is not None and after is not None and after[: len(before)] == before


def _meetings(
    row: ViewRow, role: int, event: FeedEvent, partners: Sequence[FeedEvent], lifetimes_us: Sequence[int]
) -> Iterator[tuple[FeedEvent, ...]]:
    """Yield the events that meet, in the order of the template's inputs."""
    if len(row.inputs) == 1:
        yield (event,)
        return
    share = row.shares[1 - role]
    low_us = event.at_us - lifetimes_us[1 - role]
    high_us = event.at_us + lifetimes_us[role]
    for partner in partners:
        if partner.rank < share and low_us <= partner.at_us <= high_us:
            yield (event, partner) if role == 0 else (partner, event)


def _match(view: PhysicalView, ordinal: int, met: tuple[FeedEvent, ...], values: tuple[object, ...]) -> Match:
    # The ordinal of the row is part of the key: two rows may match on the same two events.
    key = (*(n for e in met for n in e.key), ordinal)
    return Match(view.name, view.rows[ordinal], FeedEvent(view.name, key, max(e.at_us for e in met), values))
