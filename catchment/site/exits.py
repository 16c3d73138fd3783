"""The exits of a site: for each sink that it sends to, an outbox with its numbers, what writes it, and its sender.

One journal entry may lead to segments at several exits. The host numbers those towards the center; the next number of
each other exit is kept beside it (`Host.numbers`) and is restored with it, so that what an entry leads to has the same
numbers at every exit however often it is replayed. Every exit is acknowledged by itself: a sink that is away holds back
what is for it, and nothing else until the cache of the site is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.routes import Routes, first_link
from catchment.project.sections import Link
from catchment.project.site_orders import SiteOrders
from catchment.site.core import CENTER
from catchment.site.events import Action, FragmentDropped, LinkMeasured
from catchment.site.outbox_writer import OutboxWriter, needs_new_life
from catchment.storage.host import Host
from catchment.wire.messages import Updates
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender

MakeSender = Callable[[Outbox, str], Sender]  # of an outbox, towards a sink


@dataclass(frozen=True)
class Exit:
    """What leaves a site towards one sink; the center has no name here."""

    sink: str
    link: Link
    outbox: Outbox
    writer: OutboxWriter
    sender: Sender

    @classmethod
    def open(
        cls,
        whole: Project,
        part: Project,
        site: str,
        life: int,
        make_sender: MakeSender,
        observer: WindowObserver | None = None,
    ) -> Exit:
        """Open the exit of a site towards the center of a part of the project."""
        name = f"outbox_at_{part.sink}" if part.sink else "outbox"
        link = first_link(part, site)
        to = Routes.of(part).next_inbox(site)
        outbox = Outbox(whole.site_folder(site) / name, site, to, link.outbox_max_bytes, life=life)
        note = None if observer is None else partial(observer.note_flushed, site)
        return cls(part.sink, link, outbox, OutboxWriter(outbox, note, part.sink), make_sender(outbox, part.sink))


class Exits:
    """All exits of a site: that towards the center, and others, which are opened when they are first needed."""

    def __init__(self, open_exit: Callable[[str], Exit]) -> None:
        self._open_exit = open_exit
        self._open: dict[str, Exit] = {CENTER: open_exit(CENTER)}
        self._is_started = False

    def __iter__(self) -> Iterator[Exit]:
        return iter(list(self._open.values()))

    @property
    def center(self) -> Exit:
        """The exit towards the center."""
        return self._open[CENTER]

    def to(self, sink: str) -> Exit:
        """Return the exit towards a sink."""
        if sink not in self._open:
            self._open[sink] = self._open_exit(sink)
            if self._is_started:
                self._open[sink].sender.start()
        return self._open[sink]

    def recover(
        self, host: Host[Any, Any], orders: SiteOrders, fragments: Callable[[], Iterable[str]], sinks: Iterable[str]
    ) -> None:
        """Recover the site, with its exits towards these sinks; those of a healed site begin a new life.

        Its fragments, which `fragments` names, end with the old one: others compute the same again. The exit towards
        the center begins its new life last: if the process ends before, all of it is done again.
        """
        host.recover(self.center.outbox.enacted)
        for sink in sinks:
            self.to(sink)
        others = [exit_ for exit_ in self if exit_.sink != CENTER]
        for exit_ in others:
            host.check_enacted(host.numbers.get(exit_.sink, 0), exit_.outbox.enacted)
        is_healed = needs_new_life(self.center.outbox, orders)
        if is_healed:
            host.submit("heal", [FragmentDropped(name) for name in fragments()])
        for exit_ in others:
            if needs_new_life(exit_.outbox, orders):
                exit_.outbox.renew(orders.lives[exit_.outbox.origin], host.numbers.get(exit_.sink, 0))
        if is_healed:
            self.center.outbox.renew(orders.lives[self.center.outbox.origin], host.enacted)

    def enact(self, host: Host[Any, Any], number: int, actions: Sequence[Action]) -> int:
        """Append what actions send, each to its exit; return how many numbers were taken of those of the center."""
        taken = 0
        for action in actions:
            updates = [m for m in action.messages if isinstance(m, Updates)]
            facts = [m for m in action.messages if not isinstance(m, Updates)]
            if action.sink == CENTER:
                taken += self.center.writer.append(number + taken, updates, facts)
            else:
                first = host.numbers.get(action.sink, 0)
                host.numbers[action.sink] = first + self.to(action.sink).writer.append(first, updates, facts)
        return taken

    def measure(self) -> list[LinkMeasured]:
        """Return the state of every link as a site core wants to know it."""
        return [exit_.writer.measure(exit_.sender.snapshot()) for exit_ in self]

    def start(self) -> None:
        """Begin to send."""
        self._is_started = True
        for exit_ in self:
            exit_.sender.start()

    def stop(self) -> None:
        """Stop sending; what is not sent yet waits in the outboxes."""
        for exit_ in self:
            exit_.sender.stop()

    def notify(self) -> None:
        """Let senders look for something new to send."""
        for exit_ in self:
            exit_.sender.notify()

    def raise_failure(self) -> None:
        """Raise what has ended a sender, if something has."""
        for exit_ in self:
            exit_.sender.raise_failure()

    @property
    def are_empty(self) -> bool:
        """Whether everything that left the site was acknowledged."""
        return all(exit_.outbox.is_empty for exit_ in self)

    @property
    def appended(self) -> int:
        """How many segments were ever put into the outboxes."""
        return sum(exit_.outbox.next_sequence for exit_ in self)

    @property
    def acked(self) -> int:
        """How many of them are acknowledged without a gap, over all outboxes."""
        return sum(exit_.outbox.lowest_unacked for exit_ in self)

    @property
    def size_bytes(self) -> int:
        """The bytes of the fullest outbox."""
        return max(exit_.outbox.size_bytes for exit_ in self)

    @property
    def appended_bytes(self) -> int:
        """The bytes of all segments that this process has appended."""
        return sum(exit_.writer.appended_bytes for exit_ in self)
