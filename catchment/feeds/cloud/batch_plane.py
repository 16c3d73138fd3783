"""The data plane of a cloud that works in batches: what waits, which files hold events, and what is kept. Pure.

Every message has an arrival number. Events wait until a batch takes them to a file; something outside joins the files
of the batch with earlier ones and says what it found. A control message waits until every event that arrived before it
has been joined, so the proof of `catchment.feeds.cloud.moves` holds here too.

Law for what changes while a batch is under way: the batch has the routes and views of its beginning, and how far feeds
have come counts its events from there on. So a view that is opened meanwhile is complete for later events only, and
nothing that the batch should have brought to it is missed.

Files are kept for the longest lifetime and `away_us` more of event time, up to a bound of events, beyond which the
oldest are forgotten and counted. Small files are merged, so that a batch opens few.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from catchment.feeds.cloud.retention import capacity_of
from catchment.feeds.device.limits import CLOUD_LIMITS, HostLimits
from catchment.feeds.device.publisher import RecentlySeen
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.language.continued import ended_templates
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.protocol.messages import FeedEvent, Upward
from catchment.storage.codec import stored

MAX_BATCH_EVENTS = 50_000  # events of one batch; more wait for the next
MAX_WAITING = 200_000  # events that wait for a batch; beyond it messages wait at the broker
MERGE_FILES = 16  # so many files of a kind become one
MAX_FILES = 1_000  # that are kept; beyond it the oldest are merged, whatever span of time they cover

EventRow = tuple[int, str, str, int, float, str]  # arrival, feed, key, time, rank and values; both of these as JSON


@stored()
@dataclass(frozen=True, slots=True)
class EventFile:
    """A file of events: the arrivals and the span of event time in it."""

    name: str
    first: int
    last: int
    oldest_us: int
    newest_us: int
    events: int
    level: int = 0  # how often its events were merged

    @property
    def span_us(self) -> int:
        return self.newest_us - self.oldest_us


@dataclass(frozen=True, slots=True)
class LandEvents:
    """Write events to a file."""

    file: EventFile
    rows: Sequence[EventRow]


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """Write the events of several files to one, then remove them."""

    file: EventFile
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Remove files whose events nothing can meet any more."""

    names: tuple[str, ...]


FileAction = LandEvents | MergeFiles | RemoveFiles


@dataclass(frozen=True, slots=True)
class WaitingControl:
    """A message that is not an event, and who sent it."""

    arrival: int
    device: str
    message: Upward


@dataclass(frozen=True)
class BatchJob:
    """What is to be joined: the file of a batch, earlier ones, and the routes and views of its beginning."""

    fresh: str
    earlier: tuple[str, ...]
    routes: Mapping[str, Mapping[str, float]]
    installed: Mapping[str, PhysicalView]
    ended: Mapping[str, int]  # views that meant something else up to an arrival: their earlier matches are not met
    version: int  # of routes and views
    program: FeedProgram


class BatchPlane:
    """Routes, installed views, the events that wait, and the files of those that were joined."""

    def __init__(self, program: FeedProgram, limits: HostLimits = CLOUD_LIMITS) -> None:
        self.program = program
        self.limits = limits
        self.routes: dict[str, dict[str, float]] = {}
        self.installed: dict[str, PhysicalView] = {}
        self.newest: dict[str, int] = {}
        self.last_key: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.periods = RecentlySeen()
        self.matched: Counter[str] = Counter()
        self.arrivals = 0
        self.rows: deque[EventRow] = deque()
        self.controls: deque[WaitingControl] = deque()
        self.fresh: EventFile | None = None  # the batch under way
        self.files: list[EventFile] = []  # of joined events, by their last arrival
        self.forgotten = 0
        self.version = 0  # changes with routes and views, so that whoever joins them makes them again

    # ---- what the control plane asks

    def set_route(self, feed: str, device: str, share: float) -> None:
        """Let a device download this share of a feed from the next batch on; 0 ends the route."""
        routes = self.routes.setdefault(feed, {})
        if share > 0:
            routes[device] = share
        else:
            routes.pop(device, None)
        self.version += 1

    def install(self, view: PhysicalView) -> None:
        """Compute a view at the cloud from the next batch on."""
        self.installed[view.name] = view
        self.version += 1

    def uninstall(self, view: str) -> None:
        """Stop computing a view at the cloud."""
        self.installed.pop(view, None)
        self.version += 1

    def note_whole_since(self, view: str, since_us: int) -> None:
        """Do nothing: only operators with state ask since when events come, and they are refused here."""

    def newest_us(self, feed: str) -> int | None:
        """Return the newest event time of a feed; of a view, that of what it reads: a batch may find its match yet."""
        view = self.installed.get(feed)
        times = [self.newest.get(feed), *(map(self.newest_us, view.inputs) if view else ())]
        return max((at_us for at_us in times if at_us is not None), default=None)

    def take_matched(self) -> Counter[str]:
        """Return matches per view that others read, and events per feed of the cloud, since the last call."""
        taken = self.matched
        self.matched = Counter()
        return taken

    def follow_program(self, program: FeedProgram) -> None:
        """Take another program; matches of views that meant something else are not met by those of their names."""
        for name in ended_templates(self.program, program) & self.program.consumed:
            self.ended[name] = self.arrivals
        self.program = program
        self.version += 1

    # ---- what arrives

    def add_event(self, event: FeedEvent) -> None:
        """Let an event wait for a batch; a duplicate goes nowhere."""
        if len(event.key) == 1:
            if event.key[0] <= self.last_key.get(event.feed, -1):
                return
            self.last_key[event.feed] = event.key[0]
        self.arrivals += 1
        self.rows.append(event_row(self.arrivals, event))

    def add_control(self, device: str, message: Upward) -> None:
        """Let a control message wait for its turn."""
        self.arrivals += 1
        self.controls.append(WaitingControl(self.arrivals, device, message))

    def ready_controls(self) -> Iterator[WaitingControl]:
        """Yield the control messages before which no event waits any more."""
        while self.controls and self.fresh is None and self.controls[0].arrival < self._first_waiting():
            yield self.controls.popleft()

    def _first_waiting(self) -> int:
        return self.rows[0][0] if self.rows else self.arrivals + 1

    def publish(self, feed: str, at_us: int, values: tuple[object, ...]) -> None:
        """Let an event of a feed be born here, at an instant or at that of the event before it, if that is later."""
        born_us = max(at_us, self.newest.get(feed, at_us))
        self.newest[feed] = born_us
        self.matched[feed] += 1
        self.add_event(FeedEvent(feed, (self.last_key.get(feed, -1) + 1,), born_us, values))

    @property
    def has_room(self) -> bool:
        return len(self.rows) < MAX_WAITING

    # ---- batches

    def begin(self) -> list[FileAction]:
        """Take events that wait into a batch, if none is under way."""
        if self.fresh is not None or not self.rows:
            return []
        rows = [self.rows.popleft() for _ in range(min(len(self.rows), MAX_BATCH_EVENTS))]
        for _, feed, _, at_us, _, _ in rows:
            self._note_newest(feed, at_us)
        self.fresh = _file_of(rows, "events")
        return [LandEvents(self.fresh, rows)]

    def _note_newest(self, feed: str, at_us: int) -> None:
        self.newest[feed] = max(at_us, self.newest.get(feed, at_us))

    def job(self) -> BatchJob | None:
        """Return what is to be joined for the batch under way."""
        if self.fresh is None:
            return None
        since_us = self.fresh.oldest_us - self.lifetime_us
        earlier = tuple(file.name for file in self.files if file.newest_us >= since_us)
        routes = {feed: dict(devices) for feed, devices in self.routes.items() if devices}
        installed = dict(self.installed)
        return BatchJob(self.fresh.name, earlier, routes, installed, dict(self.ended), self.version, self.program)

    def end(self, matches: Sequence[EventRow]) -> list[FileAction]:
        """Note that the batch was joined, and which matches later batches may meet."""
        assert self.fresh is not None
        actions: list[FileAction] = []
        self.files.append(self.fresh)
        if matches:
            for _, feed, _, at_us, _, _ in matches:
                self._note_newest(feed, at_us)
                self.matched[feed] += 1
            self.files.append(_file_of(matches, f"matches-{self.fresh.last:015d}"))
            actions.append(LandEvents(self.files[-1], matches))
        self.fresh = None
        actions += self._let_go()
        actions += self._merge()
        first = min((file.first for file in self.files), default=self.arrivals)
        self.ended = {name: until for name, until in self.ended.items() if until >= first or self._waits(until)}
        return actions

    def _waits(self, arrival: int) -> bool:
        return self._first_waiting() <= arrival

    # ---- what is kept

    @property
    def lifetime_us(self) -> int:
        """How long an event may have to wait for another that it meets."""
        return max((t.lifetime_us for t in self.program.templates.values() if t.is_pair), default=0)

    @property
    def reached_us(self) -> int:
        """The event time that all events of some file had reached: one device's fast clock does not advance it."""
        return max((file.oldest_us for file in self.files), default=0)

    def _let_go(self) -> list[FileAction]:
        """Let go of files that are older than what is kept; then of the oldest that are too many, which are counted."""
        horizon_us = self.reached_us - self.lifetime_us - self.limits.away_us
        gone = [file for file in self.files if file.newest_us < horizon_us]
        left = [file for file in self.files if file.newest_us >= horizon_us]
        too_many = sum(file.events for file in left) - capacity_of(self.limits)
        for file in sorted(left, key=lambda file: (file.newest_us, file.name)):
            if too_many <= 0:
                break
            gone.append(file)
            too_many -= file.events
            self.forgotten += file.events
        return self._without(gone)

    def _without(self, gone: Iterable[EventFile]) -> list[FileAction]:
        names = tuple(file.name for file in gone)
        self.files = [file for file in self.files if file.name not in names]
        return [RemoveFiles(names)] if names else []

    def _merge(self) -> list[FileAction]:
        """Merge files that cover little time together: a batch that reads one of them needs most of the others too."""
        actions: list[FileAction] = []
        narrow_us = self.lifetime_us // 4
        for level in sorted({file.level for file in self.files}):
            some = [file for file in self.files if file.level == level and file.span_us <= narrow_us][:MERGE_FILES]
            if len(some) == MERGE_FILES and _span_us(some) <= narrow_us:
                actions.append(self._merge_into_one(some))
        if len(self.files) > MAX_FILES:
            actions.append(self._merge_into_one(self.files[:MERGE_FILES]))
        return actions

    def _merge_into_one(self, some: Sequence[EventFile]) -> MergeFiles:
        level = max(file.level for file in some) + 1
        first = min(file.first for file in some)
        last = max(file.last for file in some)
        merged = EventFile(
            name=f"{last:015d}-merged-{level}-from-{first:015d}",
            first=first,
            last=last,
            oldest_us=min(file.oldest_us for file in some),
            newest_us=max(file.newest_us for file in some),
            events=sum(file.events for file in some),
            level=level,
        )
        sources = tuple(file.name for file in some)
        self.files = sorted([merged, *(file for file in self.files if file.name not in sources)], key=_by_arrival)
        return MergeFiles(merged, sources)


def _by_arrival(file: EventFile) -> tuple[int, str]:
    return (file.last, file.name)


def _span_us(files: Sequence[EventFile]) -> int:
    return max(file.newest_us for file in files) - min(file.oldest_us for file in files)


def _file_of(rows: Sequence[EventRow], kind: str) -> EventFile:
    arrivals = [row[0] for row in rows]
    times = [row[3] for row in rows]
    name = f"{max(arrivals):015d}-{kind}"
    return EventFile(name, min(arrivals), max(arrivals), min(times), max(times), len(rows))


def event_row(arrival: int, event: FeedEvent) -> EventRow:
    """Return an event as a row of a file."""
    key = json.dumps(list(event.key), separators=(",", ":"))
    return (arrival, event.feed, key, event.at_us, event.rank, json.dumps(list(event.values)))
