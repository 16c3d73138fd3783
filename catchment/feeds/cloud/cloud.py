"""The cloud: a control plane over a data plane, and the account that says when to move views. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from catchment.feeds.cloud.budgets import loads_of
from catchment.feeds.cloud.choose_hosts import expected_rates, least_traffic, place_one_by_one
from catchment.feeds.cloud.controller import RELAYED_UP, FeedController
from catchment.feeds.cloud.edges import folded
from catchment.feeds.cloud.program_state import store_program
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import AbsorbingPlane, ControlledPlane, Deliver
from catchment.feeds.cloud.routes import Hosts
from catchment.feeds.forms.physical_view import template_of
from catchment.feeds.language.continued import continue_program, ended_templates, without_templates
from catchment.feeds.language.program_form import compile_feeds
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import RejectJoined, ViewGraph, generate_views
from catchment.feeds.protocol.messages import FeedEvent, RelayedMessage, Upward


class PlacingCloud(Protocol):
    """A cloud of feeds as those see it who decide about its views."""

    @property
    def controller(self) -> FeedController: ...

    @property
    def graph(self) -> ViewGraph: ...

    @property
    def wanted(self) -> FeedProgram:
        """The program that it was opened with, which may be newer than the one that it has."""

    @property
    def redeployed(self) -> int:
        """How often a review has moved views."""

    @property
    def forgotten(self) -> int:
        """How many events a bound took at the cloud while a match was still possible."""

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Bring views to these hosts."""

    def review(self, period_s: float) -> list[Deliver]:
        """Book the last period, and redeploy when the present placement has lost too much."""

    def views_of(self, data: ReferenceData, reject: RejectJoined | None = None) -> ViewGraph:
        """Generate the views that the program has over other reference data; with `reject`, without wrong rows."""

    def update(self, newer: ViewGraph) -> list[Deliver]:
        """Follow a change of the reference data, or of the devices that are there."""

    def retire(self, device: str) -> list[Deliver]:
        """Forget a device that has left for good, and end the views that hold its data."""

    def change_program(self, wanted: FeedProgram) -> list[Deliver]:
        """Bring the program to another one, as far as that is possible now; to be asked again until it is there."""


class FeedCloud(PlacingCloud, Protocol):
    """A cloud of feeds as its drivers see it: in their own process, or on Spark."""

    def receive(self, device: str, message: Upward) -> Iterable[Deliver]:
        """Take one message of a device, and answer it now or with a later `take`."""

    def take(self) -> Iterable[Deliver]:
        """Take what there is to send beside the answers."""

    def drain(self) -> Iterable[Deliver]:
        """Do as `take`, after everything received has been processed."""

    def publish(self, stream: str, row: tuple[Any, ...], now_us: int) -> list[Deliver]:
        """Let a record of a stream of the cloud be born."""


class CloudControl:
    """What every cloud has in common: the control plane, and the account that decides when views move."""

    def __init__(
        self,
        graph: ViewGraph,
        plane: ControlledPlane,
        rates: Mapping[str, float] | None = None,
        rule: ReoptimizeRule | None = None,
    ) -> None:
        self._controlled = plane
        self.rule = rule or ReoptimizeRule()
        self.tree = self.rule.tree
        self.controller = FeedController(graph, plane, self.tree)
        self.controller.rates.update(rates or {})  # expected, until devices have reported theirs
        self.compiled = compile_feeds(graph.program)
        self.reoptimizer = self.rule.build()
        self.redeployed = 0

    @property
    def graph(self) -> ViewGraph:
        return self.controller.graph

    @property
    def wanted(self) -> FeedProgram:
        return self.graph.program

    @property
    def forgotten(self) -> int:
        """How many events a bound took at the cloud while a match was still possible."""
        return self._controlled.forgotten

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Bring views to these hosts; views that a device could not keep go to the cloud."""
        return self.controller.deploy(self._fit(self.graph, hosts))

    def _fit(self, graph: ViewGraph, hosts: Hosts) -> dict[str, str]:
        """Return these hosts, without devices that could not keep their views beside those that they have."""
        kept = {name: host for name, host in self.controller.current_hosts().items() if name in graph.views}
        fitted = self.rule.fit(graph, {**kept, **hosts}, self.controller.rates, hosts.keys())
        return {name: fitted[name] for name in hosts}

    def review(self, period_s: float) -> list[Deliver]:
        """Book the last period, and redeploy when the present placement has lost too much."""
        hosts = self.decide(period_s)
        return [] if hosts is None else self.controller.deploy(hosts)

    def decide(self, period_s: float) -> dict[str, str] | None:
        """Book the last period; return the placement to deploy when the present one has lost too much."""
        rates = self.controller.rates
        for view, count in self._controlled.take_matched().items():
            rates[view] = count / period_s
        hosts = self.controller.current_hosts()
        best = self.reoptimizer.observe(self.graph, hosts, rates, period_s)
        if best is None and self._is_over_budget(hosts):
            best = hosts  # what is over a budget leaves at once, whatever that costs
        if best is None:
            return None
        self.redeployed += 1
        return self._fit(self.graph, best)

    def _is_over_budget(self, hosts: Hosts) -> bool:
        budgets = self.rule.budgets
        if not budgets.are_bound or len(hosts) < len(self.graph.views):
            return False
        rates = expected_rates(self.graph, self.controller.rates)
        return bool(budgets.exceeded(loads_of(self.graph, folded(hosts, self.tree), rates)))

    def update(self, newer: ViewGraph) -> list[Deliver]:
        """Follow a change of the reference data, or of the devices that are there."""
        return self.controller.update(newer, self.hosts_for_added(newer))

    def reads(self, stream: str, row: tuple[Any, ...]) -> bool:
        """Return whether a record of a stream of the cloud would become an event that some view reads."""
        declared = self.graph.program.streams[stream]
        if declared.device is not None and row[declared.column_names.index(declared.device)] is None:
            return False
        return any(True for _ in self.born_events(stream, row))

    def born_events(self, stream: str, row: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield the feeds that views read and that a record of a stream of the cloud belongs to, with its values."""
        part = self.graph.program.streams[stream].part_of(row)
        for kind, values in self.compiled.feeds_of(stream, row):
            if f"{kind}@{part}" in self.graph.feeds:
                yield f"{kind}@{part}", values

    def change_program(self, wanted: FeedProgram) -> list[Deliver]:
        """Bring the program to another one, as far as that is possible now; to be asked again until it is there."""
        change = self.next_program(wanted)
        if change is None:
            return []
        newer, left = change
        told = self.update(left)
        self.follow_program(newer)
        return told

    def follow_program(self, program: FeedProgram) -> None:
        """Take another program, in which every view that there is means what it did."""
        self.controller.follow_program(program)
        self.compiled = compile_feeds(program)

    def next_program(self, wanted: FeedProgram) -> tuple[FeedProgram, ViewGraph] | None:
        """Return the program that can be taken now, and the views that go on in it; None if it is there already.

        A view whose name comes back with another meaning waits until no device has the earlier one: matches that a
        device found under the old meaning are not taken for those of the new one.
        """
        present = self.graph.program
        ended = ended_templates(present, wanted)
        held = {template_of(name) for name in self.controller.locations.held}
        waits = {name for name in wanted.templates if name in held and (name in ended or name not in present.templates)}
        newer = continue_program(present, without_templates(wanted, waits))
        if store_program(newer) == store_program(continue_program(present, present)):
            return None
        return newer, self.graph.without_templates(ended_templates(present, newer))

    def hosts_for_added(self, newer: ViewGraph) -> dict[str, str]:
        """Say where the views of a newer graph that are not here yet are to be computed; the others stay.

        They go where they add least; the first ones of all, and those of other strategies, go where the strategy says.
        """
        rates = expected_rates(newer, self.controller.rates)
        added = self.graph.delta_to(newer).added
        kept = {name: host for name, host in self.controller.current_hosts().items() if name in newer.views}
        if kept and self.rule.strategy is least_traffic:
            placed = place_one_by_one(newer, kept, added, rates, self.rule.costs, self.tree)
        else:
            placed = self.rule.place(newer, rates, rates)
        return self._fit(newer, {view.name: placed[view.name] for view in added})

    def retire(self, device: str) -> list[Deliver]:
        """Forget a device that has left for good, and end the views that hold its data."""
        others = {name for name in self.graph.devices if name != device}
        told = self.update(self.graph.restricted_to(others))
        self.controller.forget(device)
        return [delivery for delivery in told if delivery.device != device]


class Cloud(CloudControl):
    """A cloud that answers every message at once."""

    def __init__(
        self,
        graph: ViewGraph,
        plane: AbsorbingPlane,
        rates: Mapping[str, float] | None = None,
        rule: ReoptimizeRule | None = None,
    ) -> None:
        super().__init__(graph, plane, rates, rule)
        self.rule.retention.check(graph, self.controller.rates)
        self.plane = plane

    def receive(self, device: str, message: Upward) -> Iterable[Deliver]:
        """Answer one message; what it returns is to be sent, in order, before the next is handed in."""
        if isinstance(message, RelayedMessage):
            return self._receive_relayed(device, message)
        if not isinstance(message, FeedEvent):
            return self.controller.handle(device, message)
        return self.plane.absorb([message]) if self.controller.admits(device, message) else ()

    def _receive_relayed(self, edge: str, relayed: RelayedMessage) -> Iterable[Deliver]:
        """Answer a device that is attached to an edge cloud."""
        message = relayed.message
        if not self.controller.attach(relayed.device, edge, message) or not isinstance(message, RELAYED_UP):
            return ()
        return self.controller.handle(relayed.device, message)

    def follow_program(self, program: FeedProgram) -> None:
        """Take another program, in which every view that there is means what it did."""
        super().follow_program(program)
        self.plane.follow_program(self.compiled)

    def publish(self, stream: str, row: tuple[Any, ...], now_us: int) -> list[Deliver]:
        """Let a record of a stream of the cloud be born; it becomes an event of every feed that a view reads."""
        events = self.born_events(stream, row)
        return [delivery for feed, values in events for delivery in self.plane.publish(feed, now_us, values)]

    def take(self) -> Iterable[Deliver]:
        """Return nothing: all answers were given at once."""
        return ()

    drain = take

    def views_of(self, data: ReferenceData, reject: RejectJoined | None = None) -> ViewGraph:
        """Generate the views that the program has over other reference data; with `reject`, without wrong rows."""
        return generate_views(self.graph.program, data, reject)
