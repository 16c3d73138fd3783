"""Many sites that were away return together with their backlogs: fresh windows stay fresh, and memory stays bounded.

The links and the center's time are simulated; the order of sending, the inbox with its bounds and the center are the
real ones. The oracle of the answers is the recomputation from all records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from catchment.center.query import CenterQuery
from catchment.center.statuses import FINAL
from catchment.progress.consumer import InboxConsumer
from catchment.query.fragment import Fragment
from catchment.timeline import END_OF_TIME_US, ManualClock, WindowSpec
from catchment.wire.frames.codec import encode_segment
from catchment.wire.frames.limits import WireLimits
from catchment.wire.messages import Message, Progress, Segment, Updates
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.dispatch import SendOrder
from catchment.wire.sending.outbox import Pending
from catchment.wire.sending.uplink import RefusedError
from tests.worlds.world import Center, Record, lifted, make_fragment, naive

SIZE = 10  # of a window, in microseconds of event time and of the clock
WINDOW = WindowSpec.tumbling(SIZE)
RETURNING = 32
AWAY = 6  # windows for which they were away
AFTERWARDS = 6  # windows that follow
SENDS_PER_WINDOW = 3  # segments that the link of one site carries while a window lasts
FRESHNESS = 2 * SIZE
WAITING_SEGMENTS = 24  # what the inbox holds at most, fewer than there are sites


class ReturningSite:
    """A site with a backlog, in memory: one segment per window."""

    def __init__(self, name: str, fragment: Fragment) -> None:
        self.name = name
        self.fragment = fragment
        self.order = SendOrder(ahead_segments=1000)
        self.waiting: dict[int, bytes] = {}
        self.records: list[Record] = []
        self._made = 0
        self._rows = 0

    def read(self, window: int) -> None:
        """Read one record of a window, and put what is sent of it into the queue."""
        record = (window * SIZE + 1, "k", self._made + 1)
        self.records.append(record)
        absorbed = lifted(self.fragment, [record])
        self._rows += absorbed.partials.num_rows
        updates = Updates("q", absorbed.partials, absorbed.records)
        self._store(updates, Progress("q", (window + 1) * SIZE, self._rows))

    def end(self) -> None:
        self._store(Progress("q", END_OF_TIME_US, self._rows))

    def first_pending(self, start: int = 0, excluding: Collection[int] = ()) -> Pending | None:
        found = next((n for n in sorted(self.waiting) if n >= start and n not in excluding), None)
        return None if found is None else Pending(found, Path(), len(self.waiting[found]))

    def send_next(self, inbox: Inbox) -> bool:
        """Send what comes next; return False if there is nothing, or no room for it."""
        chosen = self.order.choose(self, ())
        if chosen is None:
            return False
        try:
            del self.waiting[inbox.accept(self.waiting[chosen.sequence])]
        except RefusedError as error:
            if error.reason != "full":
                raise
            return False
        return True

    def _store(self, *messages: Message) -> None:
        segment = Segment(self.name, "life", self._made, messages)
        self.waiting[self._made] = encode_segment(segment).data
        self._made += 1


class BoundedCenter(Center):
    """A center whose inbox holds few segments."""

    limits = WireLimits()

    def open(self) -> None:
        super().open()
        self.inbox = Inbox(self.folder / "inbox", self.limits)
        self.consumer = InboxConsumer(self.inbox, self.host)
        self.consumer.recover()


def run(folder: Path) -> Iterator[tuple[int, BoundedCenter, list[ReturningSite]]]:
    """Yield the world at the end of each window, from the return of the sites on."""
    clock = ManualClock(AWAY * SIZE)
    fragment = make_fragment(WINDOW)
    names = ["home", *(f"site{i}" for i in range(RETURNING))]
    sites = [ReturningSite(name, fragment) for name in names]
    for site in sites:
        for window in range(AWAY):
            site.read(window)
        if site.name != "home":
            site.order.note_reconnected(AWAY)
    BoundedCenter.limits = WireLimits(inbox_bytes=WAITING_SEGMENTS * max(map(len, sites[0].waiting.values())))
    center = BoundedCenter(folder, CenterQuery("q", fragment, WINDOW, tuple(names), 10_000, FRESHNESS), clock)
    while sites[0].send_next(center.inbox):  # the site that was never away
        center.consume()
    for window in range(AWAY, AWAY + AFTERWARDS):
        for site in sites:
            site.read(window)
        for _ in range(SENDS_PER_WINDOW):
            for site in sites:
                if not site.send_next(center.inbox):
                    center.consume()  # it has no room: the sender tries again
                    site.send_next(center.inbox)
                assert center.inbox.size_bytes <= center.limits.inbox_bytes
        center.consume()
        clock.advance(SIZE)
        center.tick()
        yield window, center, sites


def test_sites_that_return_together_delay_no_fresh_window_fill_no_inbox_and_leave_no_link_idle(tmp_path: Path) -> None:
    for window, center, sites in run(tmp_path):
        first = {p.window.start_us: p for p in reversed(center.tables.published)}
        for fresh in range(AWAY, window - FRESHNESS // SIZE + 1):
            published = first[fresh * SIZE]
            (row,) = published.rows.to_pylist()
            assert published.published_us - (fresh + 1) * SIZE <= FRESHNESS + SIZE
            assert row["n__count"] == len(sites), "the fresh records of every site are in the first answer"
        since = window - AWAY + 1
        for site in sites[1:]:
            assert len(site.waiting) == max(AWAY + since - since * SENDS_PER_WINDOW, 0), "the link is never idle"
    assert center.inbox.refused["full"] > 0
    for site in sites:
        site.end()
        while site.waiting:
            if not site.send_next(center.inbox):
                center.consume()
    center.consume()
    assert center.tables.answer() == naive(WINDOW, [record for site in sites for record in site.records])
    assert all(last.status == FINAL for last in {p.window: p for p in center.tables.published}.values())
