"""A relay as it runs: an inbox that other sites send to, the core, an outbox towards the center. It needs no Spark.

Landed segments become entries of its journal (`catchment.progress.consumer`). Bound: while the outbox or the cache is
full nothing is taken, so that segments wait in the inbox, and when that is full too, in the outboxes of the senders.
Where more lands than can be merged, groups that tolerate it are deferred (`catchment.progress.deferred`).

After every start a relay takes nothing before an inbox that it sends to has taken it: its state folder may be an older
copy, which its senders cannot notice where nothing was acknowledged to them since. What it acknowledged then would be
gone with that copy. A relay that was moved to another next site sends to both for a while: one of them is enough, for
the other one may be the reason why it was moved, as long as none refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from catchment.progress.consumer import NOTHING_DEFERRABLE, InboxConsumer, Merge, merge_here
from catchment.progress.events import Ticked
from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.routings import leads_somewhere
from catchment.project.site_orders import SiteOrders
from catchment.query.fragment import Fragment
from catchment.relay.core import RelayCore
from catchment.relay.events import Action, Carried, Event, Flushed, LifeBegun
from catchment.shedding.group_shares import DeferrableFragment
from catchment.site.core import CENTER
from catchment.site.events import FragmentDropped
from catchment.site.exits import Exit, Exits, exit_status
from catchment.site.meter import SiteMeter
from catchment.site.outbox_writer import needs_new_life
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
        self._project = project
        self._make_sender = make_sender
        self._observer = observer
        self.free_space = FreeSpace(self.folder, project.limits.free_disk_bytes, clock)
        self.inbox = Inbox(
            self.folder / "inbox", admit=check, free_space=self.free_space, clock=clock, versions=frame_versions
        )
        self._orders = orders or SiteOrders()
        self._neighbours: Collection[str] = Routes.of(project).neighbours(name)
        self.exits = Exits(self._open_exit)
        self.outbox, self.sender, self.link = self.exits.center.outbox, self.exits.center.sender, self.exits.center.link
        self.core = RelayCore(project.defaults.relay_wait_us, name=name)
        self._deferrable: Mapping[str, DeferrableFragment] = {}
        journal = Journal(self.folder / "journal")
        self.host: Host[Event, Action] = Host(self.core, journal, self._enact, clock)
        is_there = partial(leads_somewhere, project, name)
        self.exits.recover(self.host, self._orders, lambda: self.core.site.fragments, is_there=is_there)
        self.consumer = InboxConsumer(self.inbox, self.host, merge, stopwatch=stopwatch)
        self.consumer.recover()
        self._take_new_lives()
        self.meter = SiteMeter()

    def _open_exit(self, name: str) -> Exit:
        """Open an exit; this relay is one for a single sink, so its first exit leads there by the declared route."""
        return Exit.open(
            self.folder,
            replace(self._project, sink=""),  # its folder is that of the sink already
            self.name,
            name,
            Routes.declared(self._project).hops[self.name],
            self._orders.lives.get(self.name, 0),
            lambda outbox, _: self._make_sender(outbox),
            self._observer,
        )

    def carry(
        self,
        wanted: Sequence[Carried],
        deferrable: Mapping[str, DeferrableFragment] = NOTHING_DEFERRABLE,
        orders: SiteOrders | None = None,
        neighbours: Collection[str] | None = None,
    ) -> None:
        """Carry these fragments from now on, some of which may be deferred; those carried already go on.

        Sites that were ordered to be healed begin a new life here; `neighbours` are those that send here.
        """
        self._deferrable = deferrable
        self._neighbours = neighbours or self._neighbours
        self._orders = orders or self._orders
        here = {f.name: f for f in self.core.site.definitions}
        gone: list[Event] = [FragmentDropped(n) for n in here if n not in {c.fragment.name for c in wanted}]
        new = [c for c in wanted if c.fragment.name not in here or not self._is_carried(c)]
        if gone or new:
            self.host.submit("deploy", [*gone, *new])

    def tick(self) -> None:
        """Take in what has landed, and send on what is due."""
        self.inbox.raise_failure()
        self.exits.raise_failure()
        self._follow_refusals()
        self.consumer.resume_requested()
        self._stop_old_lives()
        while self._take_landed():
            self.exits.notify()
        self._begin_new_lives()
        self._merge_deferred()
        self.meter.note_link(self.sender.snapshot(), self.outbox.size_bytes, self.clock.now_us())
        measured = self.exits.measure()
        is_blocked = any(link.blocked for link in measured)
        if self.core.site.pending_rows or is_blocked or self.core.is_waiting(self.clock.now_us()):
            self.host.submit("tick", [*measured, Ticked()])
            self.exits.notify()

    def flush(self) -> None:
        """Send on everything that has landed: nothing more will come for now."""
        self._merge_deferred(everything=True)
        if self.consumer.is_drained and self.core.site.pending_rows:
            self.host.submit("flush", [*self.exits.measure(), Flushed()])
            self.exits.notify()

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
        return is_taken and not self.core.site.pending_rows and self.exits.are_empty

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
            "exits": {e.name: exit_status(e) for e in self.exits if e.name},
            "disk": self.free_space.status(),
            "finished": self.finished,
        }

    def start(self) -> None:
        """Begin to send; what senders bring is taken as soon as the far side has taken this relay."""
        self.inbox.close(f"{self.name!r} has not been taken by {self.link.destination!r} since it started")
        self.exits.start()

    def _follow_refusals(self) -> None:
        """Take what senders bring while the far side takes this relay for what it knows, and else nothing."""
        refusing = next((e for e in self.exits if e.sender.refused in OTHER_STATE and not _is_connected(e)), None)
        if refusing is not None:
            reason = f"{self.name!r} is refused by {refusing.link.destination!r} ({refusing.sender.refused})"
            self.inbox.close(reason)
        elif any(map(_is_connected, self.exits)):
            self.inbox.open()

    def stop(self) -> None:
        """Stop sending; what is not sent yet waits in the outboxes."""
        self.exits.stop()
        self.host.journal.close()

    def _take_landed(self) -> bool:
        """Commit one run of what has landed; return whether there was any, and room for it."""
        if self._is_full:
            return False
        run = self.consumer.read(self._fragments(), self._deferrable)
        if run is None:
            return False
        self.consumer.commit(run, [*run.events, *self.exits.measure(), Ticked()])
        return True

    def _merge_deferred(self, everything: bool = False) -> None:
        """Commit some of what was deferred, oldest first, if there is room for it, or everything."""
        if self._is_full:
            return
        run = self.consumer.read_deferred(self._fragments(), everything)
        if run is not None:
            self.consumer.commit_deferred(run, [*run.events, *self.exits.measure(), Ticked()])
            self.exits.notify()

    def _fragments(self) -> dict[str, Fragment]:
        return {f.name: f for f in self.core.site.definitions}

    def _enact(self, number: int, actions: Sequence[Action]) -> int:
        taken = 0
        for name in dict.fromkeys(action.exit_name for action in actions):
            leaving = [action for action in actions if action.exit_name == name]
            updates = [u for action in leaving for u in action.updates]
            facts = [f for action in leaving for f in action.facts]
            taken += self.exits.append(self.host, name, number + taken, updates, facts)
        return taken

    @property
    def _is_full(self) -> bool:
        """Whether nothing more is taken in for now: the cache is full, or no exit that is used has room.

        While one of several has none, what leaves by it merges in the cache.
        """
        site = self.core.site
        used = {site.exit_of(name) for name in site.fragments} or {CENTER}
        return site.full or all(site.is_blocked(name) or self.exits.named(name).outbox.full for name in used)

    def _is_carried(self, carried: Carried) -> bool:
        name = carried.fragment.name
        running = self.core.site.running(name)
        here = (running.policy, running.weight, dict(self.core.senders_of(name)))
        return here == (carried.policy, carried.weight, dict(carried.origins))


def _is_connected(leaving: Exit) -> bool:
    return leaving.sender.snapshot().connected
