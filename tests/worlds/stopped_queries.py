"""Stopped worlds of several streams and queries: a join, and shared queries that are being moved to other fragments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.center.core import CenterCore
from catchment.center.events import Publish
from catchment.center.query import CenterQuery, RepairRule
from catchment.center.statuses import FINAL
from catchment.deploy.store import DeploymentStore
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.deploy_views import deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import share
from catchment.progress.consumer import InboxConsumer
from catchment.progress.events import Ticked
from catchment.query.plan import QueryPlan
from catchment.site.core import SiteCore
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from tests.worlds import join_world
from tests.worlds.join_world import Case, close, plans_of, side_queries
from tests.worlds.live_world import LiveCenter, LiveSite, expected_answers
from tests.worlds.sharing_support import SECOND, is_close, make_hits, make_queries, select, size
from tests.worlds.stopped_world import Notes, StoppedWorld, check_published, read_published

STEPS = 16
SLACK_US = SECOND
REPAIR = RepairRule(spread_us=120 * SECOND, max_age_us=60 * SECOND)  # late records wait for each other


def split_by_arrival(records: pa.Table, rng: np.random.Generator) -> list[pa.Table]:
    """Return as many records for each step, in order of arrival: one of five is up to 90 seconds late."""
    late_us = (rng.random(records.num_rows) < 0.2) * rng.integers(0, 90 * SECOND, records.num_rows)
    order = np.argsort(records["ts"].to_numpy() + late_us, kind="stable")
    return [records.take(pa.array(part)) for part in np.array_split(order, STEPS)]


class OutboxSite(LiveSite):
    """A live site whose messages wait in a real outbox."""

    def open(self) -> None:
        self.core = SiteCore()
        self.outbox = Outbox(self.folder / "outbox", self.name, "center", 10**9)
        self.host: Host[Any, Any] = Host(self.core, Journal(self.folder / "journal"), self._enact, self.clock)
        self.host.recover()
        self.batches.update({s: self.host.batches.get(s, -1) + 1 - self.batches[s] for s in self.streams})

    def _enact(self, number: int, actions: Sequence[Any]) -> int:
        self.outbox.append(number, [message for action in actions for message in action.messages])
        return 1


class InboxCenter(LiveCenter):
    """A live center that takes what has landed in a real inbox."""

    def open(self) -> None:
        self.core = CenterCore()
        self.inbox = Inbox(self.folder / "inbox")
        self.host: Host[Any, Any] = Host(self.core, Journal(self.folder / "journal"), self._enact, self.clock)
        self.host.recover()
        self.consumer = InboxConsumer(self.inbox, self.host)
        self.consumer.recover()

    def _query(self, view: str, deployed: Deployed, plan: QueryPlan | None) -> CenterQuery:
        return replace(super()._query(view, deployed, plan), repair=REPAIR)

    def take_landed(self) -> None:
        run = self.consumer.read(self.fragments)
        if run is not None:
            self.consumer.commit(run, [*run.events, Ticked()])
        self.repair()
        self.core.validate()


class QueriesWorld(StoppedWorld):
    """A center, sites with their streams, and a record of what is deployed. A step has a table per site and stream."""

    STREAMS: Mapping[str, tuple[str, ...]]  # of each site
    HORIZON_US: int

    @abstractmethod
    def deploy_first(self) -> Deployed:
        """Return what is deployed when the world begins."""

    @property
    def plans(self) -> Mapping[str, QueryPlan]:
        """The plans of views that are joins."""
        return {}

    def open(self, notes: Notes) -> None:
        self.store = DeploymentStore(self.folder)
        self.center = InboxCenter(
            self.folder / "center", self.clock, self.HORIZON_US, read_published(notes), notes["done"]
        )
        self.sites = [
            OutboxSite(self.folder / name, name, streams, "streaming", SLACK_US, self.clock)
            for name, streams in self.STREAMS.items()
        ]
        for site in self.sites:
            site.newest = dict(notes.get("newest", {}).get(site.name, {}))
        self.deploy(self.store.read() or self.deploy_first())

    def deploy(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.store.keep(deployed)
        self.center.deploy(deployed, self.plans)
        for site in self.sites:
            site.deploy(deployed)

    def write_notes(self) -> Notes:
        return {**super().write_notes(), "newest": {site.name: site.newest for site in self.sites}}

    def take(self, step: Mapping[str, Mapping[str, pa.Table]]) -> None:
        for site in self.sites:
            for stream in site.streams:
                site.batch(stream, step[site.name][stream])
        self.clock.advance(SECOND)
        self.deliver()

    def deliver(self, all_of_it: bool = False) -> None:
        """Some pending segments land, some twice; some acknowledgements are lost."""
        for site in self.sites:
            for pending in site.outbox.pending():
                data = site.outbox.read(pending.sequence)
                assert data is not None
                if all_of_it or self.chance.random() < 0.6:
                    self.center.inbox.accept(data)
                    if all_of_it or self.chance.random() < 0.8:
                        site.outbox.ack(pending.sequence)

    def consume(self) -> None:
        self.center.take_landed()

    def restart(self) -> None:
        self.center.restart()
        for site in self.sites:
            site.restart()

    def finish(self) -> None:
        for site in self.sites:
            site.end()
        self.deliver(all_of_it=True)
        self.center.take_landed()
        self.center.repair(everything=True)

    @property
    def hosts(self) -> Sequence[Host[Any, Any]]:
        return [self.center.host, *(site.host for site in self.sites)]

    @property
    def outboxes(self) -> Sequence[Outbox]:
        return [site.outbox for site in self.sites]

    @property
    def inboxes(self) -> Sequence[tuple[Inbox, int]]:
        return [(self.center.inbox, self.center.consumer.position)]

    @property
    def center_core(self) -> CenterCore:
        return self.center.core

    @property
    def published(self) -> list[Publish]:
        return self.center.published

    @property
    def done(self) -> set[int]:
        return self.center.done

    def records_of(self, stream: str) -> pa.Table:
        """Return all records of a stream, of every site and step."""
        return pa.concat_tables(tables[stream] for step in self.script for tables in step.values() if stream in tables)


class JoinWorld(QueriesWorld):
    """Two streams of three sites, joined."""

    STREAMS = {"us": ("clicks",), "eu": ("clicks",), "asia": ("views",)}  # noqa: RUF012
    HORIZON_US = join_world.HORIZON_US
    CASE = Case("count(*) AS n, sum(a.bytes) AS x, max(b.ms) AS high", ("a.page", "b.bytes"))
    STEP_S = 20  # by which the event times of a step are later than those before

    @classmethod
    def write_script(cls) -> list[Any]:
        rng = np.random.default_rng(5)
        return [
            {
                site: {stream: join_world.make_records(rng, 5, stream, step * cls.STEP_S) for stream in streams}
                for site, streams in cls.STREAMS.items()
            }
            for step in range(STEPS)
        ]

    @property
    def plans(self) -> Mapping[str, QueryPlan]:
        return plans_of(self.CASE.sql)

    def deploy_first(self) -> Deployed:
        return deploy_first(side_queries(self.plans.values()), Strength.FULL, lambda demand: len(demand.keys) + 1.0)

    def check(self) -> None:
        records = {stream: self.records_of(stream) for stream in self.CASE.streams}
        assert close(self.center.answers("q0"), self.CASE.expected(records))
        check_published(self.published)
        last = {p.window.start_us: p for p in self.published}
        assert {p.status for p in last.values()} == {FINAL}


class SharedWorld(QueriesWorld):
    """Queries of one stream that begin apart and are moved to a fragment that they share."""

    STREAMS = {"us": ("hits",), "eu": ("hits",)}  # noqa: RUF012
    HORIZON_US = 150 * SECOND  # beyond how late any record here comes
    QUERIES = (
        select("page, sum(bytes) AS b, approx_count_distinct(user) AS u", "page"),
        select("page, count(*) AS n, percentile_approx(ms, 0.5) AS m", "page", window="'1 minute', '20 seconds'"),
        select("approx_top_k(page, 2) AS top, stddev_pop(ms) AS s, min(ms) AS low"),
    )
    MOVE_STEP = 6

    @classmethod
    def write_script(cls) -> list[Any]:
        rng = np.random.default_rng(6)
        parts = {site: split_by_arrival(make_hits(rng, 120), rng) for site in cls.STREAMS}
        return [{site: {"hits": tables[step]} for site, tables in parts.items()} for step in range(STEPS)]

    def deploy_first(self) -> Deployed:
        return deploy_first(make_queries(*self.QUERIES), Strength.NONE, size)

    def consume(self) -> None:
        super().consume()
        core = self.center.core
        newer = self.deployed.with_ends(core.fragment_ends()).retire(core.fragments)
        if self.step == self.MOVE_STEP:
            newer = newer.move(share(newer.sharing.queries.values(), Strength.MAX, size))
        if newer is not self.deployed:
            self.deploy(newer)

    def find_lacking(self) -> Iterator[str]:
        yield from super().find_lacking()
        if not self.deployed.leaving:
            yield "a move in flight"

    def finish(self) -> None:
        super().finish()
        self.consume()

    def check(self) -> None:
        for name, query in self.deployed.sharing.queries.items():
            start_us = self.center.core.queries[name].sources.start_us
            assert start_us is not None
            wanted = expected_answers(self.records_of("hits"), query, start_us)
            found = self.center.answers(name)
            assert found.keys() == wanted.keys()
            for key, values in wanted.items():
                assert all(is_close(a, b) for a, b in zip(found[key], values, strict=True)), (name, key)
        check_published(self.published)
        assert not self.deployed.leaving, "the move has ended"
        assert self.deployed.retired
