"""The cloud: a control plane over a data plane, and the account that says when to place views anew. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from catchment.feeds.cloud.choose_hosts import place_one_by_one
from catchment.feeds.cloud.controller import FeedController
from catchment.feeds.cloud.reoptimize import ReoptimizeRule
from catchment.feeds.cloud.router import DataPlane, Deliver
from catchment.feeds.cloud.routes import Hosts
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import ViewGraph, generate_views
from catchment.feeds.protocol.messages import FeedEvent, Upward


class Cloud:
    """Takes messages of devices and says what to send to devices."""

    def __init__(
        self,
        graph: ViewGraph,
        plane: DataPlane,
        rates: Mapping[str, float] | None = None,
        rule: ReoptimizeRule | None = None,
    ) -> None:
        self.plane = plane
        self.controller = FeedController(graph, plane)
        self.controller.rates.update(rates or {})  # expected, until devices have reported theirs
        self.rule = rule or ReoptimizeRule()
        self.reoptimizer = self.rule.build()
        self.redeployed = 0

    @property
    def graph(self) -> ViewGraph:
        return self.controller.graph

    def deploy(self, hosts: Hosts) -> list[Deliver]:
        """Bring views to these hosts."""
        return self.controller.deploy(hosts)

    def receive(self, device: str, message: Upward) -> Iterable[Deliver]:
        """Answer one message; what it returns is to be sent, in order, before the next is handed in."""
        if not isinstance(message, FeedEvent):
            return self.controller.handle(device, message)
        return self.plane.absorb([message]) if self.controller.admits(device, message) else ()

    def take(self) -> Iterable[Deliver]:
        """What there is to send beside the answers: nothing, for this cloud answers at once."""
        return ()

    drain = take

    def review(self, period_s: float) -> list[Deliver]:
        """Book the last period, and redeploy when the present placement has lost too much."""
        rates = self.controller.rates
        for view, count in self.plane.take_matched().items():
            rates[view] = count / period_s
        best = self.reoptimizer.observe(self.graph, self.controller.settled(), rates, period_s)
        if best is None:
            return []
        self.redeployed += 1
        return self.deploy(best)

    def views_of(self, data: ReferenceData) -> ViewGraph:
        """The views that the program has over other reference data."""
        return generate_views(self.graph.program, data)

    def update(self, newer: ViewGraph) -> list[Deliver]:
        """Follow a change of the reference data: added views go where they add least; the rest stays."""
        added = self.graph.delta_to(newer).added
        kept = {name: host for name, host in self.controller.settled().items() if name in newer.views}
        placed = place_one_by_one(newer, kept, added, self.controller.rates, self.rule.costs)
        return self.controller.update(newer, {v.name: placed[v.name] for v in added})
