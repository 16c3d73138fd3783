"""What follows from an event where views are computed: outputs for other views, and notices. Pure.

A view that others read gives its matches to them as events; any other view turns them into notices for the
device that the row names. A view with `notify_every` gives at most one notice per period and device, and its
key is the period's number, so it does not matter which match of the period was found first, or where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from catchment.feeds.device.limits import HostLimits
from catchment.feeds.device.spool import Spool
from catchment.feeds.device.view_host import Match, ViewHost
from catchment.feeds.device.window_notices import WindowNotices
from catchment.feeds.forms.compiled import CompiledProgram
from catchment.feeds.protocol.messages import FeedEvent, Notice
from catchment.feeds.protocol.sampling import Key

Identity = tuple[str, str, Key]  # of a notice
MAX_SEEN = 20_000  # how many notices a device remembers


class RecentlySeen:
    """Remembers the last `capacity` notices that were seen; a duplicate that comes later than that gets through."""

    def __init__(self, capacity: int = MAX_SEEN) -> None:
        self.capacity = capacity
        self.order: dict[Identity, None] = {}

    def identities(self) -> Iterator[Identity]:
        """Yield what is remembered, oldest first."""
        yield from self.order

    def first_time(self, thing: Identity) -> bool:
        if thing in self.order:
            return False
        self.order[thing] = None
        if len(self.order) > self.capacity:
            del self.order[next(iter(self.order))]
        return True


class Publisher:
    """A view host together with what its matches become."""

    def __init__(self, program: CompiledProgram, limits: HostLimits | None = None, spool: Spool | None = None) -> None:
        self.program = program
        self.host = ViewHost(program, limits, spool)
        self.matched: Counter[str] = Counter()  # matches per view that others read: their measured rate
        self.periods = RecentlySeen()
        self.windows = WindowNotices(self.host)

    def follow_program(self, program: CompiledProgram) -> None:
        """Take another program; what it computes in the same way goes on."""
        self.program = program
        self.host.follow_program(program)

    def absorb(self, event: FeedEvent) -> Iterator[FeedEvent | Notice]:
        """Yield outputs of views that others read, and notices, that follow from one event."""
        for match in self.host.absorb(event):
            form = self.host.installed[match.view].compiled.form
            if form.name in self.program.windows:
                yield from self.windows.changed(match)
            elif not form.notifies:
                self.matched[match.view] += 1
                yield match.event
                yield from self.absorb(match.event)
            else:
                yield from self._notice(match, form.notify_every_us)
        yield from self.windows.advance(event.at_us)

    def _notice(self, match: Match, every_us: int | None) -> Iterator[Notice]:
        event = match.event
        key = event.key if every_us is None else (event.at_us // every_us,)
        notice = Notice(match.view, match.row.notified, key, event.at_us, event.values)
        if every_us is None or self.periods.first_time(notice.identity):
            yield notice
