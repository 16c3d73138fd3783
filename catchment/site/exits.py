"""The exits of a site or a relay: for each end that it sends to, an outbox with its numbers, its writer and its sender.

An end is the next inbox on the route to a sink: where views are answered at several sites, or a site was moved to
another route while it ran, there are several. `catchment.project.routings` names the exits.

One journal entry may lead to segments at several exits. The host numbers those of the exit that leads to the center by
the declared route; the next number of each other exit is kept beside it (`Host.numbers`) and is restored with it, so
that what an entry leads to has the same numbers at every exit however often it is replayed. Every exit is acknowledged
by itself: an end that is away holds back what is for it, and nothing else until the cache of the site is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.routings import end_of, exit_link
from catchment.project.sections import Link
from catchment.project.site_orders import SiteOrders
from catchment.project.ways import Way
from catchment.site.core import CENTER
from catchment.site.events import Action, FragmentDropped, LinkMeasured
from catchment.site.outbox_writer import OutboxWriter, needs_new_life
from catchment.storage.host import Host
from catchment.wire.messages import Message, Updates
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender

MakeSender = Callable[[Outbox, str], Sender]  # of an outbox, towards a sink


@dataclass(frozen=True)
class Exit:
    """What leaves a site or a relay towards one end."""

    name: str
    link: Link
    outbox: Outbox
    writer: OutboxWriter
    sender: Sender

    @classmethod
    def open(
        cls,
        folder: Path,
        part: Project,
        origin: str,
        name: str,
        declared_end: str,
        life: int,
        make_sender: MakeSender,
        observer: WindowObserver | None = None,
    ) -> Exit:
        """Open an exit of a site or a relay, which leads to `declared_end` unless it names another one.

        `part` is the project as it is to the sink of the exit.
        """
        to = end_of(name) or declared_end
        link = exit_link(part, origin, to)
        sink = f"_at_{part.sink}" if part.sink else ""
        end = f".to.{end_of(name)}" if end_of(name) else ""
        outbox = Outbox(folder / f"outbox{sink}{end}", origin, to, link.outbox_max_bytes, life=life)
        note = None if observer is None or part.sink else partial(observer.note_flushed, origin)
        return cls(name, link, outbox, OutboxWriter(outbox, note, name), make_sender(outbox, part.sink))


class Exits:
    """All exits of a site or a relay: that of the declared route to the center; others, opened when first needed."""

    def __init__(self, open_exit: Callable[[str], Exit]) -> None:
        self._open_exit = open_exit
        self._open: dict[str, Exit] = {CENTER: open_exit(CENTER)}
        self._is_started = False

    def __iter__(self) -> Iterator[Exit]:
        return iter(list(self._open.values()))

    @property
    def center(self) -> Exit:
        """The exit towards the center by the declared route."""
        return self._open[CENTER]

    def named(self, name: str) -> Exit:
        """Return the exit of a name, which is opened if it was not."""
        if name not in self._open:
            self._open[name] = self._open_exit(name)
            if self._is_started:
                self._open[name].sender.start()
        return self._open[name]

    def recover(
        self,
        host: Host[Any, Any],
        orders: SiteOrders,
        fragments: Callable[[], Iterable[str]],
        sinks: Iterable[str] = (),
        is_there: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Recover a site or a relay, with its exits towards these sinks and all that it ever had.

        An exit that leads nowhere any more, because its sink or its link is gone, is left as it is. Those of a healed
        site begin a new life.

        Its fragments, which `fragments` names, end with the old one: others compute the same again. The exit towards
        the center begins its new life last: if the process ends before, all of it is done again.
        """
        host.recover(self.center.outbox.enacted)
        for name in filter(is_there, dict.fromkeys((*sinks, *host.numbers))):
            self.named(name)
        others = [exit_ for exit_ in self if exit_.name != CENTER]
        for exit_ in others:
            host.check_enacted(host.numbers.get(exit_.name, 0), exit_.outbox.enacted)
        is_healed = needs_new_life(self.center.outbox, orders)
        if is_healed:
            host.submit("heal", [FragmentDropped(name) for name in fragments()])
        for exit_ in others:
            if needs_new_life(exit_.outbox, orders):
                exit_.outbox.renew(orders.lives[exit_.outbox.origin], host.numbers.get(exit_.name, 0))
        if is_healed:
            self.center.outbox.renew(orders.lives[self.center.outbox.origin], host.enacted)

    def enact(self, host: Host[Any, Any], number: int, actions: Sequence[Action]) -> int:
        """Append what the actions of a site core send, each to its exit; return how many numbers were taken."""
        taken = 0
        for action in actions:
            updates = [m for m in action.messages if isinstance(m, Updates)]
            facts = [m for m in action.messages if not isinstance(m, Updates)]
            taken += self.append(host, action.sink, number + taken, updates, facts)
        return taken

    def append(
        self, host: Host[Any, Any], name: str, number: int, updates: Sequence[Updates], facts: Sequence[Message]
    ) -> int:
        """Append messages to an exit; return how many numbers were taken from `number` on, which the host counts."""
        if name == CENTER:
            return self.center.writer.append(number, updates, facts)
        first = host.numbers.get(name, 0)
        host.numbers[name] = first + self.named(name).writer.append(first, updates, facts)
        return 0

    def measure(self) -> list[LinkMeasured]:
        """Return the state of every link as a site core wants to know it.

        Exits that use one link see the same of it: what they both send leaves by both at the same time, and so
        crosses the link once.
        """
        found: list[LinkMeasured] = []
        flowing: dict[Way, list[LinkMeasured]] = {}  # those by whose exits something arrives, by the way that they use
        for exit_ in self:
            counters = exit_.sender.snapshot()
            found.append(exit_.writer.measure(counters))
            if counters.connected and counters.last_error is None:
                flowing.setdefault(exit_.sender.ways.current.way, []).append(found[-1])
        together = {link.sink: links for links in flowing.values() for link in links if len(links) > 1}
        return [_measure_together(link, together[link.sink]) if link.sink in together else link for link in found]

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


def _measure_together(own: LinkMeasured, all_of_link: Sequence[LinkMeasured]) -> LinkMeasured:
    """Return what an exit is told of its link, by what all exits have measured that use it."""
    known = [link.goodput_bytes_per_s for link in all_of_link if link.goodput_bytes_per_s is not None]
    sizes = max(all_of_link, key=lambda link: link.frame_bytes)
    return replace(
        own,
        goodput_bytes_per_s=max(known, default=None),
        queued_bytes=max(link.queued_bytes for link in all_of_link),  # most of it is queued at each, and sent once
        wire_ratio=sizes.wire_ratio,
        frame_bytes=sizes.frame_bytes,
        beside=tuple(link.sink for link in all_of_link if link.sink != own.sink),
    )


def exit_status(leaving: Exit) -> dict[str, Any]:
    """Return what was sent by an exit, and what waits for it, as plain JSON."""
    counters = leaving.sender.snapshot()
    return {
        "to": leaving.outbox.destination,
        "connected": counters.connected,
        "bytes_sent": counters.bytes_sent,
        "spared_bytes": counters.spared_bytes,
        "queued_bytes": leaving.outbox.size_bytes,
        "goodput_bytes_per_s": counters.goodput_bytes_per_s,
        "round_trip_s": counters.round_trip_s,
        "last_error": counters.last_error,
    }
