"""Stopped worlds of one query: sites of every policy, under a contract, that shed, and behind a relay."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from catchment.center.core import CenterCore
from catchment.center.events import Publish
from catchment.center.query import CenterQuery, RepairRule
from catchment.center.statuses import EXACT, FINAL
from catchment.quality.contract import Contract
from catchment.site.events import FragmentAdded
from catchment.site.policies.registry import policy_by_name
from catchment.storage.host import Host
from catchment.timeline import END_OF_TIME_US, SECOND_US, WindowSpec
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from tests.worlds import contract_site
from tests.worlds.contract_site import ContractSite, summed
from tests.worlds.relay_world import Tree
from tests.worlds.shed_partials import shed_fragment
from tests.worlds.shed_site import SheddingSite
from tests.worlds.stopped_world import Notes, StoppedWorld, check_published, read_published
from tests.worlds.world import (
    Center,
    Record,
    Site,
    Tables,
    assert_well_published,
    deliver_some,
    make_fragment,
    naive,
)

STEPS = 24
STEP_US = 8
WINDOW = WindowSpec(12, 5)
HORIZON_US = 10_000  # beyond how late any record here comes
REPAIR = RepairRule(spread_us=40, max_age_us=200)


def make_batches(sites: Sequence[str], seed: int) -> list[dict[str, list[Record]]]:
    """Records of each site by step; about one of five is late."""
    chance = random.Random(seed)

    def draw(step: int) -> Record:
        late_us = chance.randrange(40) if chance.random() < 0.2 else 0
        return max(0, step * STEP_US + chance.randrange(STEP_US) - late_us), chance.choice("abc"), chance.randrange(50)

    return [{site: [draw(step) for _ in range(4)] for site in sites} for step in range(STEPS)]


def mark_after(step: int) -> int:
    """Return the mark that a site states after a step: what comes before it is late."""
    return step * STEP_US - 4


class OneQueryWorld(StoppedWorld):
    """A center with one query, and sites."""

    center: Center

    def past_tables(self, notes: Notes, center_query: CenterQuery) -> Tables:
        tables = Tables(center_query.fragment)
        tables.published = read_published(notes)
        tables.done = set(notes["done"])
        return tables

    @property
    @abstractmethod
    def senders(self) -> Sequence[Site]: ...

    @property
    def hosts(self) -> Sequence[Host[Any, Any]]:
        return [self.center.host, *(site.host for site in self.senders)]

    @property
    def outboxes(self) -> Sequence[Outbox]:
        return [site.outbox for site in self.senders]

    @property
    def inboxes(self) -> Sequence[tuple[Inbox, int]]:
        return [(self.center.inbox, self.center.consumer.position)]

    @property
    def center_core(self) -> CenterCore:
        return self.center.core

    @property
    def published(self) -> list[Publish]:
        return self.center.tables.published

    @property
    def done(self) -> set[int]:
        return self.center.tables.done

    def restart(self) -> None:
        self.center.crash()
        for site in self.senders:
            site.crash()

    def deliver(self, all_of_it: bool = False) -> None:
        for site in self.senders:
            deliver_some(site, self.center, self.chance, all_of_it)

    def consume(self) -> None:
        self.center.consume(discard=self.step % 2 == 0)
        self.center.tick()

    @property
    def records(self) -> list[Record]:
        return [record for step in self.script for batch in step.values() for record in batch]


class StarWorld(OneQueryWorld):
    """Sites that send straight to the center, each with another policy."""

    POLICIES = {  # noqa: RUF012
        "site0": "streaming",
        "site1": "batching",
        "site2": "spillway",
        "site3": "hybrid:0.25+lru",
        "site4": "lazy-empirical",
    }

    @classmethod
    def write_script(cls) -> list[Any]:
        return make_batches(list(cls.POLICIES), seed=1)

    def open(self, notes: Notes) -> None:
        fragment = make_fragment(WINDOW)
        query = CenterQuery("q", fragment, WINDOW, tuple(self.POLICIES), HORIZON_US, freshness_us=30, repair=REPAIR)
        self.center = Center(self.folder / "center", query, self.clock, self.past_tables(notes, query))
        self.sites = [Site(self.folder / n, n, fragment, p, self.clock) for n, p in self.POLICIES.items()]

    @property
    def senders(self) -> Sequence[Site]:
        return self.sites

    def take(self, step: dict[str, list[Record]]) -> None:
        for site in self.sites:
            site.batch(step[site.name], mark_after(self.step))
        self.clock.advance(STEP_US)
        self.deliver()

    def finish(self) -> None:
        for site in self.sites:
            site.batch([], END_OF_TIME_US)
        self.deliver(all_of_it=True)
        self.center.consume()
        self.center.tick()

    def check(self) -> None:
        assert self.center.tables.answer() == naive(WINDOW, self.records)
        assert_well_published(self.center)


class SheddingWorld(OneQueryWorld):
    """Sites that take samples, and owe the rest for a while."""

    NAMES = ("site0", "site1")
    RATES = (1.0, 0.5, 0.3, 0.7)  # at which batches are taken, in turn

    @classmethod
    def write_script(cls) -> list[Any]:
        return make_batches(cls.NAMES, seed=2)

    def open(self, notes: Notes) -> None:
        fragment = shed_fragment(WINDOW)
        query = CenterQuery("q", fragment, WINDOW, self.NAMES, HORIZON_US, repair=REPAIR)
        self.center = Center(self.folder / "center", query, self.clock, self.past_tables(notes, query))
        self.sites = [SheddingSite(self.folder / n, n, fragment, "batching", self.clock) for n in self.NAMES]
        for site in self.sites:  # history survives: a site takes one batch per step
            site.raw = {number: step[site.name] for number, step in enumerate(self.script[: self.step])}

    @property
    def senders(self) -> Sequence[Site]:
        return self.sites

    def take(self, step: dict[str, list[Record]]) -> None:
        for site in self.sites:
            site.take(step[site.name], mark_after(self.step), self.RATES[self.step % len(self.RATES)])
            if self.step % 3 == 0:
                site.repair()
        self.clock.advance(STEP_US)
        self.deliver()

    def finish(self) -> None:
        for site in self.sites:
            site.take([], END_OF_TIME_US, 1.0)
            while site.repair():
                pass
        self.deliver(all_of_it=True)
        self.center.consume()
        self.center.tick()

    def find_lacking(self) -> Iterator[str]:
        yield from super().find_lacking()
        yield from (f"debts of {site.name}" for site in self.sites if not len(site.core.debts))

    def check(self) -> None:
        assert self.center.tables.answer() == naive(WINDOW, self.records)
        assert_well_published(self.center)
        last = {p.window.start_us: p for p in self.published}
        assert all(p.lowest_rate == 1.0 for p in last.values())


class ControlledSite(ContractSite):
    """A site under a contract; its name says by which slack controller it keeps it."""

    def open(self) -> None:
        slack = contract_site.plan(self.name.replace("fixed", "fixed:0.5"))
        self.open_with(FragmentAdded(self.fragment, policy_by_name(self.policy), slacks=(slack,)))


class ContractWorld(OneQueryWorld):
    """Sites whose slack controllers decide when a window is let go, each a controller of another kind."""

    NAMES = ("adaptive", "progress", "conformal", "mp-k-slack", "pd", "fixed")
    SOURCES = ("a", "b", "c")
    STEPS = 50
    checkpoint_step = 20
    STEP_US = SECOND_US // 2

    @classmethod
    def write_script(cls) -> list[Any]:
        """Every source reports ten times per second, in its own order; now and then it is held back for a while."""
        chance = random.Random(3)
        steps: list[dict[str, list[contract_site.Row]]] = [{n: [] for n in cls.NAMES} for _ in range(cls.STEPS)]
        for site in cls.NAMES:
            for source in cls.SOURCES:
                arrival_us = 0
                for event_us in range(0, cls.STEPS * cls.STEP_US, SECOND_US // 10):
                    held_us = round(chance.uniform(1, 4) * SECOND_US) if chance.random() < 0.02 else 0
                    arrival_us = max(arrival_us, event_us + held_us)
                    step = min(arrival_us // cls.STEP_US, cls.STEPS - 1)
                    steps[step][site].append((f"{site}-{source}", event_us, chance.randrange(1, 10)))
        return steps

    def open(self, notes: Notes) -> None:
        fragment, window = contract_site.FRAGMENT, contract_site.WINDOW
        query = CenterQuery("q", fragment, window, self.NAMES, 3600 * SECOND_US, contract=Contract(0.05))
        self.center = Center(self.folder / "center", query, self.clock, self.past_tables(notes, query))
        self.sites = [ControlledSite(self.folder / n, n, fragment, "batching", self.clock) for n in self.NAMES]

    @property
    def senders(self) -> Sequence[Site]:
        return self.sites

    def take(self, step: dict[str, list[contract_site.Row]]) -> None:
        self.clock.advance(self.STEP_US)
        for site in self.sites:
            if step[site.name]:
                site.take(step[site.name])
            site.tick()
        self.deliver()

    def finish(self) -> None:
        for site in self.sites:
            site.end()
        self.deliver(all_of_it=True)
        self.center.consume()
        self.clock.advance(20 * SECOND_US)
        self.center.tick()

    def check(self) -> None:
        rows = [row for step in self.script for batch in step.values() for row in batch]
        assert self.center.tables.answer() == summed(rows)
        check_published(self.published)
        last = {p.window.start_us: p for p in self.published}
        assert {p.status for p in last.values()} <= {EXACT, FINAL}
        assert all(p.coverage == 1.0 for p in last.values())


class RelayWorld(OneQueryWorld):
    """Two sites behind a relay, and one that sends straight to the center."""

    HOPS = {"a": "hub", "b": "hub", "c": "center", "hub": "center"}  # noqa: RUF012

    @classmethod
    def write_script(cls) -> list[Any]:
        return make_batches(("a", "b", "c"), seed=4)

    def open(self, notes: Notes) -> None:
        fragment = make_fragment(WINDOW)
        query = CenterQuery("q", fragment, WINDOW, ("a", "b", "c"), HORIZON_US)
        tables = self.past_tables(notes, query)
        self.tree = Tree(self.folder, self.HOPS, WINDOW, fragment=fragment, clock=self.clock, tables=tables)
        self.center = self.tree.center

    @property
    def senders(self) -> Sequence[Site]:
        return list(self.tree.sites.values())

    @property
    def hosts(self) -> Sequence[Host[Any, Any]]:
        return [*super().hosts, *(relay.pipeline.host for relay in self.tree.relays.values())]

    @property
    def outboxes(self) -> Sequence[Outbox]:
        return [*super().outboxes, *(relay.outbox for relay in self.tree.relays.values())]

    @property
    def inboxes(self) -> Sequence[tuple[Inbox, int]]:
        relays = [(relay.inbox, relay.pipeline.consumer.position) for relay in self.tree.relays.values()]
        return [*super().inboxes, *relays]

    def find_lacking(self) -> Iterator[str]:
        yield from super().find_lacking()
        yield from (f"segments of {r.name}" for r in self.tree.relays.values() if not r.outbox.pending())

    def take(self, step: dict[str, list[Record]]) -> None:
        for site in self.senders:
            site.batch(step[site.name], mark_after(self.step))
        self.clock.advance(STEP_US)
        for sender in self.HOPS:
            self.tree.deliver(sender, self.chance)

    def consume(self) -> None:
        for relay in self.tree.relays.values():
            relay.consume()
        super().consume()

    def restart(self) -> None:
        super().restart()
        for relay in self.tree.relays.values():
            relay.crash()

    def finish(self) -> None:
        for site in self.senders:
            site.batch([], END_OF_TIME_US)
        self.tree.settle()
        self.center.tick()

    def check(self) -> None:
        assert self.center.tables.answer() == naive(WINDOW, self.records)
        assert_well_published(self.center)
        assert all(relay.pipeline.finished for relay in self.tree.relays.values())
