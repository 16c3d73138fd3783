"""When to move views: keep an account of what the present placement has lost, and move when that is too much.

The account holds, for the events counted since it was opened, the cost of the present placement less that of the best
fixed one for the same events. Costs are linear in the counts, so one optimisation over the sums gives the best one. The
rule, and its guarantee, are those of `catchment.optimizer.move_account`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from catchment.errors import FeedError
from catchment.feeds.cloud.budgets import Budgets
from catchment.feeds.cloud.choose_hosts import Strategy, expected_rates, least_traffic
from catchment.feeds.cloud.edges import STAR, EdgeTree, folded, unfolded
from catchment.feeds.cloud.place_at_edges import place_at_edges
from catchment.feeds.cloud.retention import Retention
from catchment.feeds.cloud.routes import CLOUD, Hosts, predict, routes_of, source_of
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.optimizer.move_account import PATIENCE, MoveAccount

RedeployCost = Callable[[ViewGraph, Hosts, Hosts, Mapping[str, float]], float]


@dataclass(frozen=True)
class MovePrice:
    """What it costs to move views, in events.

    Each device that is concerned exchanges messages, each view is installed and uninstalled, and for one lifetime
    both its hosts compute it.
    """

    per_device: float = 6.0  # the messages to open, to mark and to close, and their answers
    per_view: float = 3.0  # install and uninstall are as long as about three events
    costs: LinkCosts = field(default_factory=LinkCosts)
    tree: EdgeTree = STAR

    def __call__(self, graph: ViewGraph, old: Hosts, new: Hosts, rates: Mapping[str, float]) -> float:
        moved = [graph.views[name] for name in graph.views if old[name] != new[name]]
        devices = {device for view in moved for device in graph.origins(view.name)}
        messages = self.per_view * len(moved) + self.per_device * len(devices)
        prices = [self.costs.upload_of(device) + self.costs.download_of(device) for device in devices - {CLOUD}]
        message_cost = messages * sum(prices) / max(1, len(prices)) / 2
        lifetimes = [graph.program.templates[view.template].lifetime_us for view in moved]
        return message_cost + self._overlap(graph, old, new, rates) * max(lifetimes, default=0) / 1e6

    def _overlap(self, graph: ViewGraph, old: Hosts, new: Hosts, rates: Mapping[str, float]) -> float:
        """Return cost per second of running both placements, over that of the old one."""
        feeds = {i for name in graph.views if old[name] != new[name] for i in graph.views[name].inputs}
        cost = 0.0
        for feed in feeds:
            readers = graph.consumers[feed]
            sources = {source_of(graph, hosts, feed) for hosts in (old, new)}
            before = routes_of(feed, [source_of(graph, old, feed)], [(v, old[v.name]) for v in readers], self.tree)
            both = routes_of(feed, sources, [(v, h[v.name]) for v in readers for h in (old, new)], self.tree)
            running_both = self.costs.of_messages(both.uploads, both.downloads)
            cost += rates.get(feed, 0.0) * (running_both - self.costs.of_messages(before.uploads, before.downloads))
        return cost


@dataclass(frozen=True)
class ReoptimizeRule:
    """How views are placed, how much may be lost before they move, and what their hosts keep."""

    costs: LinkCosts = field(default_factory=LinkCosts)
    patience: float = PATIENCE
    strategy: Strategy = least_traffic
    retention: Retention = field(default_factory=Retention)
    budgets: Budgets = field(default_factory=Budgets)
    tree: EdgeTree = field(default_factory=EdgeTree)

    def __post_init__(self) -> None:
        if self.patience <= 0:
            raise FeedError(f"patience must be positive, not {self.patience}")

    def place(self, graph: ViewGraph, weights: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, str]:
        """Return where views are computed best, by how many events there are and come per second."""
        best = self.strategy(graph, weights, self.costs)
        if self.budgets.are_bound:
            from catchment.feeds.cloud.place_within import place_within  # SciPy is needed here only

            best = place_within(graph, best, expected_rates(graph, rates), self.costs, self.budgets)
        fitted = self.fit(graph, best, rates)
        if self.strategy is not least_traffic:
            return fitted
        return place_at_edges(graph, fitted, weights, self.costs, self.tree)

    def fit(
        self, graph: ViewGraph, hosts: Hosts, rates: Mapping[str, float], movable: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return a placement with the cloud in place of devices that could not keep, or may not compute, their views.

        With `movable`, only these views go elsewhere.
        """
        star = folded(hosts, self.tree)
        kept = self.retention.fit(graph, star, rates)
        if movable is not None:
            kept = {**star, **{name: kept[name] for name in movable}}
        fitted = self.budgets.fit(graph, kept, expected_rates(graph, rates), self.costs, movable)
        return unfolded(fitted, hosts, self.tree)

    def build(self, redeploy_cost: RedeployCost | None = None) -> ViewReoptimizer:
        return ViewReoptimizer(self, redeploy_cost or MovePrice(costs=self.costs, tree=self.tree))


class ViewReoptimizer:
    """Decide when the views of one placement move; its account holds events, weighed by the costs of links."""

    def __init__(self, rule: ReoptimizeRule, redeploy_cost: RedeployCost) -> None:
        self.rule = rule
        self.redeploy_cost = redeploy_cost
        self.account = MoveAccount(rule.patience)
        self.events: dict[str, float] = {}  # per feed, since the account was opened
        self.open_s = 0.0

    @property
    def lost(self) -> float:
        """What the present placement has lost since the account was opened."""
        return self.account.lost

    def observe(
        self, graph: ViewGraph, hosts: Hosts, rates: Mapping[str, float], period_s: float
    ) -> dict[str, str] | None:
        """Book a period with these rates, and return the placement to deploy when it is time."""
        if period_s <= 0:
            raise FeedError(f"a period of {period_s} seconds cannot be booked")
        self.open_s += period_s
        for feed, rate in rates.items():
            self.events[feed] = self.events.get(feed, 0.0) + rate * period_s
        average = {feed: count / self.open_s for feed, count in self.events.items()}
        best = self.rule.place(graph, self.events, average)
        lost = self._cost(graph, hosts) - self._cost(graph, best)
        move = self.account.should_move(lost, self.redeploy_cost(graph, hosts, best, average))
        if not self.account.lost:
            self.open_account()
        return best if move else None

    def open_account(self) -> None:
        """Reset the account: nothing was lost yet."""
        self.account.reset()
        self.events.clear()
        self.open_s = 0.0

    def _cost(self, graph: ViewGraph, hosts: Hosts) -> float:
        traffic = predict(graph, hosts, self.events, self.rule.tree)
        return self.rule.costs.of_messages(traffic.up, traffic.down)
