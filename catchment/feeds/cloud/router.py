"""The data plane of the cloud on one machine: it routes feeds and computes the views placed at the cloud. Pure.

A route says which share of a feed a device downloads; an uploaded event goes to every route whose share its
rank is below (Chandramouli et al., VLDB'13, section 2.3). Duplicates of an event are recognised by its key
and go nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from catchment.feeds.device.limits import CLOUD_LIMITS, HostLimits
from catchment.feeds.device.publisher import Publisher
from catchment.feeds.device.spool import Spool
from catchment.feeds.forms.compiled import CompiledProgram
from catchment.feeds.forms.physical_view import PhysicalView
from catchment.feeds.protocol.messages import Downward, FeedEvent, Notice


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send this message to a device."""

    device: str
    message: Downward


class ControlledPlane(Protocol):
    """A data plane as the control plane sees it: routes, installed views, and how far feeds have come."""

    def set_route(self, feed: str, device: str, share: float) -> None:
        """Let a device download this share of a feed from now on; 0 ends the route."""

    def install(self, view: PhysicalView) -> None:
        """Compute a view at the cloud from now on."""

    def uninstall(self, view: str) -> None:
        """Stop computing a view at the cloud."""

    def note_whole_since(self, view: str, since_us: int) -> None:
        """Note that every event of a view's feeds that is later than an instant comes here."""

    def newest_us(self, feed: str) -> int | None:
        """Return the newest event time that was uploaded of a feed."""

    @property
    def forgotten(self) -> int:
        """How many events a bound of memory or disk took while a match was still possible."""

    def take_matched(self) -> Counter[str]:
        """Return matches per view that others read, and events per feed of the cloud, since the last call."""


class AbsorbingPlane(ControlledPlane, Protocol):
    """A data plane that takes events one by one."""

    def absorb(self, events: Iterable[FeedEvent]) -> Iterable[Deliver]:
        """Route uploaded events and compute the cloud's views over them."""

    def publish(self, feed: str, at_us: int, values: tuple[Any, ...]) -> Iterable[Deliver]:
        """Let an event of a feed be born here, at an instant or at that of the event before it, if that is later."""

    def follow_program(self, program: CompiledProgram) -> None:
        """Compute views of another program from now on; those that mean the same in it go on."""


class Router:
    """Routes and views of the cloud in one process."""

    def __init__(self, program: CompiledProgram, limits: HostLimits = CLOUD_LIMITS, spool: Spool | None = None) -> None:
        self.publisher = Publisher(program, limits, spool)
        self.routes: dict[str, dict[str, float]] = {}
        self.newest: dict[str, int] = {}
        self.last_key: dict[str, tuple[int, ...]] = {}

    def absorb(self, events: Iterable[FeedEvent]) -> Iterator[Deliver]:
        for event in events:
            if self._is_new(event):
                yield from self._forward(event)
                for item in self.publisher.absorb(event):
                    yield from self._emit(item)

    def _emit(self, item: FeedEvent | Notice) -> Iterator[Deliver]:
        if isinstance(item, Notice):
            yield Deliver(item.notified, item)
        else:
            self._note_newest(item)
            yield from self._forward(item)

    def _is_new(self, event: FeedEvent) -> bool:
        """Return whether an event is new: those of a device come in order of their numbers, matches have none."""
        if len(event.key) == 1:
            if event.key <= self.last_key.get(event.feed, (-1,)):
                return False
            self.last_key[event.feed] = event.key
        self._note_newest(event)
        return True

    def _note_newest(self, event: FeedEvent) -> None:
        self.newest[event.feed] = max(event.at_us, self.newest.get(event.feed, event.at_us))

    def _forward(self, event: FeedEvent) -> Iterator[Deliver]:
        for device, share in self.routes.get(event.feed, {}).items():
            if event.rank < share:
                yield Deliver(device, event)

    def publish(self, feed: str, at_us: int, values: tuple[Any, ...]) -> Iterator[Deliver]:
        number = self.last_key.get(feed, (-1,))[0] + 1
        born_us = max(at_us, self.newest.get(feed, at_us))  # a clock that steps back does not reorder the feed
        self.publisher.matched[feed] += 1
        yield from self.absorb([FeedEvent(feed, (number,), born_us, values)])

    def set_route(self, feed: str, device: str, share: float) -> None:
        routes = self.routes.setdefault(feed, {})
        if share > 0:
            routes[device] = share
        else:
            routes.pop(device, None)

    def follow_program(self, program: CompiledProgram) -> None:
        self.publisher.follow_program(program)

    def install(self, view: PhysicalView) -> None:
        self.publisher.host.install(view)

    def uninstall(self, view: str) -> None:
        self.publisher.host.uninstall(view)

    def note_whole_since(self, view: str, since_us: int) -> None:
        self.publisher.host.begin(view, since_us)

    def newest_us(self, feed: str) -> int | None:
        return self.newest.get(feed)

    @property
    def forgotten(self) -> int:
        return self.publisher.host.forgotten

    def take_matched(self) -> Counter[str]:
        taken = Counter(self.publisher.matched)
        self.publisher.matched.clear()
        return taken
