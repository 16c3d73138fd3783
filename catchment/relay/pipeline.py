"""A relay as it runs: an inbox that other sites send to, the core, an outbox towards the center. It needs no Spark.

Landed segments become entries of its journal (`catchment.progress.consumer`). Bound: while the outbox or the cache is
full nothing is taken, so that segments wait in the inbox, and when that is full too, in the outboxes of the senders.
Where more lands than can be merged, groups that tolerate it are deferred (`catchment.progress.deferred`).

After every start a relay takes nothing before the inbox that it sends to has taken it: its state folder may be an older
copy, which its senders cannot notice where nothing was acknowledged to them since. What it acknowledged then would be
gone with that copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from catchment.progress.consumer import NOTHING_DEFERRABLE, InboxConsumer, Merge, merge_here
from catchment.progress.events import Ticked
from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.routes import Routes, outgoing_link
from catchment.project.site_orders import SiteOrders
from catchment.query.fragment import Fragment
from catchment.relay.core import RelayCore
from catchment.relay.events import Action, Carried, Event, Flushed, LifeBegun
from catchment.shedding.group_shares import DeferrableFragment
from catchment.site.events import FragmentDropped, LinkMeasured
from catchment.site.meter import SiteMeter
from catchment.site.outbox_writer import OutboxWriter, needs_new_life, recover
from catchment.storage.free_space import FreeSpace
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import END_OF_TIME_US, Clock
from catchment.wire.messages import Segment
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.uplink import OTHER_STATE


class RelayPipeline:
    """Everything that one site does for others."""

    def __init__(
        self,
        project: Project,
        name: str,
        check: Callable[[Segment], None],
        make_sender: Callable[[Outbox], Sender],
        clock: Clock,
        merge: Merge = merge_here,
        stopwatch: Callable[[], float] = time.perf_counter,
        observer: WindowObserver | None = None,
        orders: SiteOrders | None = None,
        frame_versions: tuple[int, ...] | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.folder = project.relay_folder(name)
        self.link = outgoing_link(project, name)
        self.free_space = FreeSpace(self.folder, project.limits.free_disk_bytes, clock)
        self.inbox = Inbox(
            self.folder / "inbox", admit=check, free_space=self.free_space, clock=clock, versions=frame_versions
        )
        self._orders = orders or SiteOrders()
        self._neighbours = Routes.of(project).neighbours(name)
        self.outbox = Outbox(
            self.folder / "outbox",
            name,
            self.link.destination,
            self.link.outbox_max_bytes,
            life=self._orders.lives.get(name, 0),
        )
        self._writer = OutboxWriter(self.outbox, None if observer is None else partial(observer.note_flushed, name))
        self.core = RelayCore(project.defaults.relay_wait_us, name=name)
        self._deferrable: Mapping[str, DeferrableFragment] = {}
        journal = Journal(self.folder / "journal")
        self.host: Host[Event, Action] = Host(self.core, journal, self._enact, clock)
        recover(self.host, self.outbox, self._orders, lambda: self.core.site.fragments)
        self.consumer = InboxConsumer(self.inbox, self.host, merge, stopwatch=stopwatch)
        self.consumer.recover()
        self._take_new_lives()
        self.meter = SiteMeter()
        self.sender = make_sender(self.outbox)

    def carry(
        self,
        wanted: Sequence[Carried],
        deferrable: Mapping[str, DeferrableFragment] = NOTHING_DEFERRABLE,
        orders: SiteOrders | None = None,
    ) -> None:
        """Carry these fragments from now on, some of which may be deferred; those carried already go on.

        Sites that were ordered to be healed begin a new life here.
        """
        self._deferrable = deferrable
        self._orders = orders or self._orders
        here = {f.name: f for f in self.core.site.definitions}
        gone: list[Event] = [FragmentDropped(n) for n in here if n not in {c.fragment.name for c in wanted}]
        new = [c for c in wanted if c.fragment.name not in here or not self._is_carried(c)]
        if gone or new:
            self.host.submit("deploy", [*gone, *new])

    def tick(self) -> None:
        """Take in what has landed, and send on what is due."""
        self.inbox.raise_failure()
        self.sender.raise_failure()
        self._follow_refusals()
        self.consumer.resume_requested()
        self._stop_old_lives()
        while self._take_landed():
            self.sender.notify()
        self._begin_new_lives()
        self._merge_deferred()
        self.meter.note_link(self.sender.snapshot(), self.outbox.size_bytes, self.clock.now_us())
        measured = self._measure_link()
        if self.core.site.pending_rows or measured.blocked or self.core.is_waiting(self.clock.now_us()):
            self.host.submit("tick", [measured, Ticked()])
            self.sender.notify()

    def flush(self) -> None:
        """Send on everything that has landed: nothing more will come for now."""
        self._merge_deferred(everything=True)
        if self.consumer.is_drained and self.core.site.pending_rows:
            self.host.submit("flush", [self._measure_link(), Flushed()])
            self.sender.notify()

    @property
    def needs_new_life(self) -> bool:
        """Whether it was ordered to be healed since it started."""
        return needs_new_life(self.outbox, self._orders)

    def _healed_neighbours(self) -> dict[str, int]:
        """Return those that send here and were ordered to be healed, with the lives that are to begin."""
        lives = self._orders.lives
        return {
            name: lives[name]
            for name in sorted(self._neighbours)
            if self._orders.is_healed(name) and self.core.lives.get(name, 0) < lives[name]
        }

    def _stop_old_lives(self) -> None:
        for name in self._healed_neighbours():
            self.inbox.stop_life(name)

    def _begin_new_lives(self) -> None:
        """Take what healed sites send from now on, when all that had landed before is handled."""
        healed = self._healed_neighbours()
        if healed and self.consumer.is_drained:
            self.host.submit(
                "heal", [LifeBegun(n, life, not self.inbox.is_in_life(n, life)) for n, life in healed.items()]
            )
        self._take_new_lives()

    def _take_new_lives(self) -> None:
        """Let the inbox take the new lives of healed sites; a crash may have come before it did."""
        for name, life in self.core.lives.items():
            if self.inbox.life_of(name) < life:
                self.inbox.begin_life(name, life, is_healed=True)

    @property
    def drained(self) -> bool:
        """Whether all that landed has been sent on and acknowledged."""
        is_taken = self.consumer.is_drained and not self.consumer.has_deferred
        return is_taken and not self.core.site.pending_rows and self.outbox.is_empty

    @property
    def finished(self) -> bool:
        """Whether every site has ended and everything was sent on."""
        ended = (m == END_OF_TIME_US for name in self.core.origins for m in self.core.marks(name).values())
        return all(ended) and self.drained

    def status(self) -> dict[str, Any]:
        """Return what came, what waits and what went over the link, as plain JSON."""
        return {
            "to": self.link.destination,
            "rows_in": self.core.rows_in,
            "rows_out": self.core.rows_out,
            "pending_rows": self.core.site.pending_rows,
            "inbox_bytes": self.inbox.size_bytes,
            "refused": dict(self.inbox.refused),
            "refusals": self.inbox.refusals(),
            "blocked": self.consumer.blocked_status(),
            "deferral": self.consumer.deferral_status(),
            **self.meter.link_status(self.sender.snapshot(), self.outbox.size_bytes, self.link.bandwidth_bytes_per_s),
            "ways": self.sender.ways.status(),
            "disk": self.free_space.status(),
            "finished": self.finished,
        }

    def start(self) -> None:
        """Begin to send; what senders bring is taken as soon as the far side has taken this relay."""
        self.inbox.close(f"{self.name!r} has not been taken by {self.link.destination!r} since it started")
        self.sender.start()

    def _follow_refusals(self) -> None:
        """Take what senders bring while the far side takes this relay for what it knows, and else nothing."""
        if self.sender.snapshot().connected:
            self.inbox.open()
        elif self.sender.refused in OTHER_STATE:
            self.inbox.close(f"{self.name!r} is refused by {self.link.destination!r} ({self.sender.refused})")

    def stop(self) -> None:
        """Stop sending; what is not sent yet waits in the outbox."""
        self.sender.stop()
        self.host.journal.close()

    def _take_landed(self) -> bool:
        """Commit one run of what has landed; return whether there was any, and room for it."""
        if self.outbox.full or self.core.site.full:
            return False
        run = self.consumer.read(self._fragments(), self._deferrable)
        if run is None:
            return False
        self.consumer.commit(run, [*run.events, self._measure_link(), Ticked()])
        return True

    def _merge_deferred(self, everything: bool = False) -> None:
        """Commit some of what was deferred, oldest first, if there is room for it, or everything."""
        if self.outbox.full or self.core.site.full:
            return
        run = self.consumer.read_deferred(self._fragments(), everything)
        if run is not None:
            self.consumer.commit_deferred(run, [*run.events, self._measure_link(), Ticked()])
            self.sender.notify()

    def _fragments(self) -> dict[str, Fragment]:
        return {f.name: f for f in self.core.site.definitions}

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        updates = [u for action in actions for u in action.updates]
        facts = [f for action in actions for f in action.facts]
        return self._writer.append(number, updates, facts)

    def _measure_link(self) -> LinkMeasured:
        return self._writer.measure(self.sender.snapshot())

    def _is_carried(self, carried: Carried) -> bool:
        name = carried.fragment.name
        running = self.core.site.running(name)
        here = (running.policy, running.weight, dict(self.core.senders_of(name)))
        return here == (carried.policy, carried.weight, dict(carried.origins))
