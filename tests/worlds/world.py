"""A whole catchment without Spark: site cores, outboxes, an inbox and a center core, on a clock that tests move.

The hosts, journals, outboxes and the inbox are the real ones, on real files; only Spark's group-by is replaced by the
core's own lift, and the result tables by a dictionary. `crash` drops a role and makes it anew from its folder.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from catchment.aggregates import make_aggregate, partials
from catchment.center.core import CenterCore
from catchment.center.events import Expired, Publish, QueryAdded, Recalled, RosterChange, SiteReplaced
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT, FINAL, ON_TIME
from catchment.progress.consumer import CAUSE, InboxConsumer
from catchment.progress.events import Ticked
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key
from catchment.site import events as site_events
from catchment.site.core import SiteCore
from catchment.site.policies.registry import policy_by_name
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import ManualClock, WindowSpec
from catchment.wire.messages import Message
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox

Record = tuple[int, str, int]  # event time, key, value
Answer = dict[tuple[int, str], tuple[int, int]]  # (window start, key) -> (count, sum)


def make_fragment(window: WindowSpec) -> Fragment:
    aggregates = (
        make_aggregate("count", None, None, name="n"),
        make_aggregate("sum", "v", pa.int64(), name="total"),
    )
    return Fragment("q", "s", "ts", (Key("k", "k", pa.string()),), aggregates, (window,))


def lifted(fragment: Fragment, records: Sequence[Record]) -> site_events.Absorbed:
    slices = [fragment.slicing.start_of(ts) for ts, _, _ in records]
    raw = pa.table(
        {
            SLICE_COLUMN: pa.array(slices, pa.int64()),
            "k": pa.array([k for _, k, _ in records], pa.string()),
            "v": pa.array([v for _, _, v in records], pa.int64()),
        }
    )
    table = partials.lift(raw, [SLICE_COLUMN, "k"], fragment.aggregates)
    return site_events.Absorbed("q", table, tuple(Counter(slices).items()))


def naive(window: WindowSpec, records: Sequence[Record]) -> Answer:
    """The oracle: every record into every window that contains it, by the definition."""
    answer: Answer = {}
    for ts, key, value in records:
        for start in range(ts - window.size_us, ts + 1):
            if (start - window.offset_us) % window.slide_us == 0 and start <= ts < start + window.size_us:
                n, total = answer.get((start, key), (0, 0))
                answer[start, key] = (n + 1, total + value)
    return answer


class Tables:
    """Result tables in memory: idempotent by number, as the real ones."""

    def __init__(self, fragment: Fragment) -> None:
        self.fragment = fragment
        self.done: set[int] = set()
        self.published: list[Publish] = []
        self.expired: list[Expired] = []

    def enact(self, number: int, actions: Sequence[Any]) -> int:
        if number not in self.done:
            self.done.add(number)
            self.published += [a for a in actions if isinstance(a, Publish)]
            self.expired += [a for a in actions if isinstance(a, Expired)]
        return 1

    def latest(self) -> dict[tuple[int, str], dict[str, Any]]:
        return {
            (p.window.start_us, row["k"]): row for p in self.published for row in p.rows.to_pylist()
        }  # later revisions come later

    def recall(self, wanted: pa.Table) -> pa.Table:
        known = self.latest()
        asked = {(r[WINDOW_COLUMN], r["k"]) for r in wanted.to_pylist()}  # a window may be asked for by several slices
        found = [(place[0], known[place]) for place in sorted(asked & known.keys())]
        schema = pa.schema(
            [
                pa.field(WINDOW_COLUMN, pa.int64()),
                *(f for f in self.fragment.schema if f.name != SLICE_COLUMN),
            ]
        )
        return pa.Table.from_pylist([{WINDOW_COLUMN: w, **row} for w, row in found], schema)

    def answer(self) -> Answer:
        rows = self.latest()
        if not rows:
            return {}
        table = pa.Table.from_pylist(list(rows.values()))
        lowered = partials.lower(table, ["k"], self.fragment.aggregates).to_pylist()
        return {place: (row["n"], row["total"]) for place, row in zip(rows, lowered, strict=True)}


class Site:
    def __init__(self, folder: Path, name: str, fragment: Fragment, policy: str, clock: ManualClock) -> None:
        self.folder, self.name, self.fragment, self.policy, self.clock = folder, name, fragment, policy, clock
        self.open()

    def open(self) -> None:
        self.open_with(site_events.FragmentAdded(self.fragment, policy_by_name(self.policy)))

    def open_with(self, added: site_events.FragmentAdded) -> None:
        self.core = SiteCore()
        self.core.handle(added, 0)
        self.outbox = Outbox(self.folder / "outbox", self.name, "center", 10**9)
        self.host: Host[Any, Any] = Host(self.core, Journal(self.folder / "journal"), self._enact, self.clock)
        self.host.recover()
        self.batches = self.host.batches.get("s", -1) + 1

    def crash(self) -> None:
        self.host.journal.close()
        self.open()

    def pending_bytes(self, sequence: int) -> bytes:
        """A segment that waits to be sent."""
        data = self.outbox.read(sequence)
        assert data is not None
        return data

    def batch(self, records: Sequence[Record], mark: int) -> None:
        events = [
            *([lifted(self.fragment, records)] if records else []),
            site_events.LowMarkRaised("s", mark),
        ]
        self.host.submit("s", events, batch=self.batches)
        self.host.submit("s", events, batch=self.batches)  # Spark may replay a batch: it must change nothing
        self.batches += 1
        self.core.validate()

    def state(self, *facts: Message) -> None:
        """A segment of facts, as if the core had stated them."""
        self.host.enacted += 1
        self.outbox.append(self.outbox.next_sequence, facts)

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        self.outbox.append(number, [m for a in actions for m in a.messages])
        return 1


class Center:
    """The center of one query; `tables` are those of an earlier life, if it had one."""

    def __init__(self, folder: Path, query: CenterQuery, clock: ManualClock, tables: Tables | None = None) -> None:
        self.folder, self.query, self.clock = folder, query, clock
        self.tables = tables or Tables(query.fragment)
        self.open()

    def open(self) -> None:
        self.core = CenterCore()
        self.core.handle(QueryAdded(self.query), 0)
        self.inbox = Inbox(self.folder / "inbox")
        self.host: Host[Any, Any] = Host(
            self.core,
            Journal(self.folder / "journal"),
            self.tables.enact,
            self.clock,
        )
        self.host.recover()
        self.consumer = InboxConsumer(
            self.inbox, self.host, find_span=lambda _, site: self.core.sites.span(self.query.fragment.stream, site)
        )
        self.consumer.recover()
        for site, life in self.core.sites.lives.items():
            if self.inbox.life_of(site) < life:
                self.inbox.begin_life(site, life)

    def crash(self) -> None:
        self.host.journal.close()
        self.open()

    def consume(self, discard: bool = True) -> None:
        """One entry for what has landed, with the repairs due before it; then those that it made due.

        Without `discard` the segments stay, as if the process had died before they were discarded.
        """
        run = self.consumer.read({"q": self.query.fragment})
        if run is not None:
            events = [*self._recalled(), *run.events, Ticked()]
            if discard:
                self.consumer.commit(run, events)
            else:
                self.host.submit(CAUSE, events, batch=run.end)
        self.repair()
        self.core.validate()

    def change_roster(self, change: RosterChange, crash: bool = False) -> None:
        """What has landed is handled before the change; a replaced site is then taken with new numbers."""
        while not self.consumer.is_drained:
            self.consume()
        self.host.submit("deploy", [change])
        if crash:
            self.crash()
        elif isinstance(change, SiteReplaced):
            self.inbox.begin_life(change.site, change.life)
        self.core.validate()

    def tick(self) -> None:
        self.host.submit("tick", [Ticked()])
        self.repair()
        self.core.validate()

    def repair(self) -> None:
        """The repairs that are due, and what they allow: a repaired window may be final."""
        recalled = self._recalled()
        if recalled:
            self.host.submit("repair", [*recalled, Ticked()])

    def _recalled(self) -> list[Recalled]:
        due = self.core.repairs(self.clock.now_us())
        return [Recalled(r.query, r.windows, self.tables.recall(r.wanted), r.reason) for r in due]


def deliver_some(site: Site, center: Center, chance: random.Random, all_of_it: bool = False) -> None:
    """Some pending segments, in any order, some twice; some acks are lost."""
    pending = [p.sequence for p in site.outbox.pending()]
    chance.shuffle(pending)
    for sequence in pending:
        if all_of_it or chance.random() < 0.6:
            for _ in range(chance.choice([1, 1, 2])):
                center.inbox.accept(site.pending_bytes(sequence))
            if all_of_it or chance.random() < 0.8:
                site.outbox.ack(sequence)


def assert_well_published(center: Center) -> None:
    """Revisions of a window count 1, 2, 3, ...; its last word is `final`, and nothing came too late."""
    assert not center.tables.expired
    order = [ON_TIME, EXACT, FINAL]
    by_window: dict[int, list[Publish]] = {}
    for p in center.tables.published:
        by_window.setdefault(p.window.start_us, []).append(p)
    for published in by_window.values():
        numbered = [p.revision for p in published if p.rows.num_rows]
        assert numbered == list(range(1, len(numbered) + 1))
        ranks = [order.index(p.status) for p in published]
        assert ranks == sorted(ranks)
        assert published[-1].status == FINAL
        assert published[-1].coverage == 1.0
