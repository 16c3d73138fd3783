"""When to place again: keep an account of what the present placement has lost, and act when it is too much.

The account holds, for the events counted since it was opened, the cost of the present placement less that
of the best fixed one for the same events (costs are linear in the counts, so one optimisation over the sums
tells it). When the present placement is itself the best, nothing was lost and a new account is opened. When
the loss passes `patience` times the cost of redeploying, the best placement of the account is deployed.

With two placements to choose from and patience 2 the total cost is at most 3 times that of a clairvoyant,
up to a constant. The rule as stated by Chandramouli et al. (VLDB'13, section 4.5) acts at once the
overhead, patience 1; an adversary makes that cost 4 times the optimum: hit the present placement for one
overhead and it moves, for two overheads in all, while staying put costs half of what is hit. With n
placements no deterministic rule is better than 2n - 1 (Borodin, Linial and Saks, 1992).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.choose_hosts import Strategy, least_traffic
from catchment.feeds.cloud.routes import Hosts, predict, routes_of, source_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts

RedeployCost = Callable[[ViewGraph, Hosts, Hosts, Mapping[str, float]], float]


@dataclass(frozen=True)
class MovePrice:
    """What it costs to move views, in events: messages a device, their contents a view, and two hosts for one
    lifetime."""

    a_device: float = 6.0  # told to open, to mark, to close; and the answers
    a_view: float = 3.0  # install and uninstall are as long as about three events
    costs: LinkCosts = field(default_factory=LinkCosts)

    def __call__(self, graph: ViewGraph, old: Hosts, new: Hosts, rates: Mapping[str, float]) -> float:
        moved = [graph.views[name] for name in graph.views if old[name] != new[name]]
        devices = {device for view in moved for device in graph.origins(view.name)}
        told = (self.a_view * len(moved) + self.a_device * len(devices)) * (self.costs.upload + self.costs.download) / 2
        lifetimes = [graph.program.templates[view.template].lifetime_us for view in moved]
        return told + self._overlap(graph, old, new, rates) * max(lifetimes, default=0) / 1e6

    def _overlap(self, graph: ViewGraph, old: Hosts, new: Hosts, rates: Mapping[str, float]) -> float:
        """Cost per second of running both placements, over that of the old one."""
        feeds = {i for name in graph.views if old[name] != new[name] for i in graph.views[name].inputs}
        cost = 0.0
        for feed in feeds:
            readers, sources = graph.consumers[feed], {source_of(graph, h, feed) for h in (old, new)}
            before = routes_of(feed, [source_of(graph, old, feed)], [(v, old[v.name]) for v in readers])
            both = routes_of(feed, sources, [(v, h[v.name]) for v in readers for h in (old, new)])
            up = sum(both.uploads.values()) - sum(before.uploads.values())
            down = sum(both.downloads.values()) - sum(before.downloads.values())
            cost += rates.get(feed, 0.0) * (self.costs.upload * up + self.costs.download * down)
        return cost


@dataclass(frozen=True)
class ReoptimizeRule:
    """How the account is kept."""

    costs: LinkCosts = field(default_factory=LinkCosts)
    patience: float = 2.0
    strategy: Strategy = least_traffic

    def __post_init__(self) -> None:
        if self.patience <= 0:
            raise FeedError(f"patience must be positive, not {self.patience}")

    def build(self, redeploy_cost: RedeployCost | None = None) -> Reoptimizer:
        return Reoptimizer(self, redeploy_cost or MovePrice(costs=self.costs))


class Reoptimizer:
    """The account of one placement."""

    def __init__(self, rule: ReoptimizeRule, redeploy_cost: RedeployCost) -> None:
        self.rule = rule
        self.redeploy_cost = redeploy_cost
        self.events: dict[str, float] = {}  # per feed, since the account was opened
        self.open_s = 0.0
        self.lost = 0.0
        self.price = 0.0  # of redeploying to the best placement of the account

    def observe(
        self, graph: ViewGraph, hosts: Hosts, rates: Mapping[str, float], period_s: float
    ) -> dict[str, str] | None:
        """Book a period with these rates; the placement to deploy, when it is time."""
        if period_s <= 0:
            raise FeedError(f"a period of {period_s} seconds cannot be booked")
        self.open_s += period_s
        for feed, rate in rates.items():
            self.events[feed] = self.events.get(feed, 0.0) + rate * period_s
        best = self.rule.strategy(graph, self.events, self.rule.costs)
        self.lost = self._cost(graph, hosts) - self._cost(graph, best)
        average = {feed: count / self.open_s for feed, count in self.events.items()}
        self.price = self.redeploy_cost(graph, hosts, best, average)
        if self.lost <= 0:
            self.open_account()
            return None
        if self.lost <= self.rule.patience * self.price:
            return None
        self.open_account()
        return best

    def open_account(self) -> None:
        """Begin anew: nothing was lost yet."""
        self.events.clear()
        self.open_s = self.lost = self.price = 0.0

    def _cost(self, graph: ViewGraph, hosts: Hosts) -> float:
        return predict(graph, hosts, self.events).cost(self.rule.costs.upload, self.rule.costs.download)
