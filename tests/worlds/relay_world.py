"""A tree of sites without Spark: real relays between the sites and the center of `world`, on a clock of the tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from catchment.center.query import CenterQuery
from catchment.progress.admission import Admission
from catchment.project.config import Project
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.project.sections import Defaults, Link
from catchment.project.sections import Site as Place
from catchment.query.fragment import Fragment
from catchment.relay.events import Carried
from catchment.relay.pipeline import RelayPipeline
from catchment.site.policies.registry import policy_by_name
from catchment.timeline import ManualClock, WindowSpec
from catchment.wire.frames.codec import decode_segment
from catchment.wire.messages import Relayed, Segment
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from tests.worlds.world import Center, Site, Tables, make_fragment

PAIR = {"a": "hub", "b": "hub", "hub": "center"}


def project_of(folder: Path, hops: Mapping[str, str], wait_us: int) -> Project:
    """A project whose links are these, each site by the one it sends to."""
    links = {(a, b): Link(a, b) for a, b in hops.items()}
    places = {name: Place(name) for name in dict.fromkeys([*hops, *hops.values()])}
    return Project("tree", folder, "center", places, links, defaults=Defaults(relay_wait_us=wait_us))


def carried(fragment: Fragment, routes: Routes, relay: str, origins: Sequence[str], policy: str) -> Carried:
    senders = ((s, routes.sender(relay, s)) for s in origins)
    return Carried(fragment, policy_by_name(policy), tuple((s, sender) for s, sender in senders if sender is not None))


class Relay:
    """A relay whose sender is never started: tests carry its segments."""

    def __init__(self, tree: Tree, name: str, policy: str) -> None:
        self.tree, self.name, self.policy = tree, name, policy
        self.open()

    def open(self) -> None:
        tree = self.tree
        self.pipeline = RelayPipeline(
            tree.project,
            self.name,
            tree.admission.check,
            self._sender,
            tree.clock,
        )
        self.pipeline.carry([carried(tree.fragment, tree.routes, self.name, tree.origins, self.policy)])

    def _sender(self, outbox: Outbox) -> Sender:
        def unused() -> LocalUplink:
            raise AssertionError("tests carry the segments")

        return Sender(outbox, unused, clock=self.tree.clock)

    @property
    def outbox(self) -> Outbox:
        return self.pipeline.outbox

    @property
    def inbox(self) -> Inbox:
        return self.pipeline.inbox

    def consume(self) -> None:
        self.pipeline.tick()
        self.pipeline.core.validate()

    def crash(self) -> None:
        self.pipeline.host.journal.close()
        self.open()


class Tree:
    """Sites and relays by the site that each sends to: {"a": "hub", "hub": "center"}; those that nobody sends to are
    the origins."""

    def __init__(
        self,
        folder: Path,
        hops: Mapping[str, str],
        window: WindowSpec,
        policy: str = "batching",
        horizon: int = 10_000,
        wait_us: int = 50,
        freshness: int | None = None,
        fragment: Fragment | None = None,
        clock: ManualClock | None = None,
        tables: Tables | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.fragment = fragment or make_fragment(window)
        self.project = project_of(folder, hops, wait_us)
        self.routes = Routes.of(self.project)
        self.origins = tuple(s for s in hops if s not in hops.values())
        self.relays = {r: Relay(self, r, policy) for r in self.routes.relays}
        query = CenterQuery("q", self.fragment, window, self.origins, horizon, freshness)
        self.center = Center(folder / "center", query, self.clock, tables)
        self.sites = {s: Site(folder / s, s, self.fragment, policy, self.clock) for s in self.origins}
        self._heard: dict[tuple[str, int], Segment] = {}

    @property
    def admission(self) -> Admission:
        """What every inbox of the tree takes: the stream is born at all its sites."""
        births = {self.fragment.stream: tuple(self.routes.hops)}
        return Admission({"q": self.fragment}, Routings.only(self.routes), births)

    @property
    def heard(self) -> list[Relayed]:
        """Every fact that relays have brought to the center, in the order of their segments."""
        return [r for _, segment in sorted(self._heard.items()) for r in segment.relayed()]

    @property
    def roles(self) -> list[Center | Site | Relay]:
        """Everyone who can crash."""
        return [self.center, *self.sites.values(), *self.relays.values()]

    def inbox_of(self, sender: str) -> Inbox:
        to = self.routes.hops[sender]
        return self.relays[to].inbox if to in self.relays else self.center.inbox

    def deliver(self, sender: str, chance: random.Random, all_of_it: bool = False) -> None:
        """Some pending segments, in any order, some twice; some acks are lost."""
        outbox = (self.relays.get(sender) or self.sites[sender]).outbox
        pending = [p.sequence for p in outbox.pending()]
        chance.shuffle(pending)
        for sequence in pending:
            data = outbox.read(sequence)
            assert data is not None
            if all_of_it or chance.random() < 0.6:
                for _ in range(chance.choice([1, 1, 2])):
                    self.inbox_of(sender).accept(data)
                if self.routes.hops[sender] == "center":
                    self._heard[sender, sequence] = decode_segment(data)
                if all_of_it or chance.random() < 0.8:
                    outbox.ack(sequence)

    def settle(self) -> None:
        """Everything that was sent arrives, hop by hop."""
        chance = random.Random(0)
        for site in self.sites:
            self.deliver(site, chance, all_of_it=True)
        for name, relay in sorted(self.relays.items(), key=lambda r: -len(self.routes.route(r[0]))):
            relay.consume()
            self.deliver(name, chance, all_of_it=True)
        self.center.consume()
