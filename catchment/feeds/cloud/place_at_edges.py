"""The second step of a placement: which views that devices leave to the cloud are computed at its edge clouds. Pure.

The first step has placed views between devices and the cloud as a whole. Here an edge cloud stands where a device
stood: the feeds of its devices, and the views that they compute, are born at it, and a view over those of one edge
cloud alone stays there. So the same optimum is found, for the links between edge clouds and cloud. If messages cost the
same both ways on every link, the two steps together are the optimum over the whole tree (Chandramouli et al., VLDB'13,
section 4.2, theorem 8).

What settled views read crosses links anyway. So for each feed that one reads from elsewhere there is a view here that
joins it with an anchor: a feed of the settled view's place that would be too dear to send anywhere.

Where an edge cloud's data comes to a view by two inputs, views go one by one where they add least, and nothing is
proved; never is more sent than with all these views at the cloud. Views with a window, a table or an operator stay
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from catchment.feeds.cloud.choose_hosts import (
    Rates,
    all_at_cloud,
    meets_itself,
    place_hierarchy,
    place_one_by_one,
    stays_at_cloud,
)
from catchment.feeds.cloud.edges import EdgeTree
from catchment.feeds.cloud.routes import CLOUD, Hosts, predict
from catchment.feeds.forms.physical_view import PhysicalView, ViewRow
from catchment.feeds.language.view_graph import SourceFeed, ViewGraph
from catchment.feeds.placement.costs import LinkCosts

ANCHORED = 1e6  # times what all feeds have together is the rate of an anchor


def place_at_edges(graph: ViewGraph, hosts: Hosts, rates: Rates, costs: LinkCosts, tree: EdgeTree) -> dict[str, str]:
    """Return a placement over devices and the cloud with edge clouds in place of the cloud where that sends less."""
    if not tree.edge_of:
        return dict(hosts)
    lifted = _Lifted.of(graph, hosts, rates, tree)
    placed = all_at_cloud(lifted.graph, lifted.rates, costs)
    if any(meets_itself(lifted.graph, view) for view in lifted.graph.views.values()):
        placed = place_one_by_one(lifted.graph, placed, lifted.graph.views.values(), lifted.rates, costs)
    else:
        placed.update(place_hierarchy(lifted.graph, lifted.rates, costs))
    chosen = {**hosts, **{name: placed[name] for name in lifted.open}}

    def cost(some: Hosts) -> float:
        traffic = predict(graph, some, rates, tree)
        return costs.of_messages(traffic.up, traffic.down)

    return chosen if cost(chosen) <= cost(hosts) else dict(hosts)


@dataclass(frozen=True)
class _Lifted:
    """The views that are open here, with all else as feeds of edge clouds and the cloud."""

    graph: ViewGraph
    rates: Mapping[str, float]
    open: frozenset[str]

    @classmethod
    def of(cls, graph: ViewGraph, hosts: Hosts, rates: Rates, tree: EdgeTree) -> _Lifted:
        views = {name: view for name, view in graph.views.items() if hosts[name] == CLOUD and _may_leave(graph, view)}

        def place_of(name: str) -> str:
            born = graph.feeds[name].device if name in graph.feeds else hosts[name]
            return tree.edge_of.get(born, CLOUD)

        read = {name for view in views.values() for name in view.inputs if name not in views}
        feeds = {name: SourceFeed(name, name, place_of(name)) for name in read}
        settled = [view for view in graph.views.values() if view.name not in views]
        before: dict[str, PhysicalView] = {}  # views stand after those that they read
        after: dict[str, PhysicalView] = {}
        for view in settled:
            place = tree.edge_of.get(hosts[view.name], CLOUD)
            anchor = SourceFeed(f"anchor@{place}", "anchor", place)
            for name in view.inputs:
                if name in views or (name in read and feeds[name].device != place):
                    feeds[anchor.name] = anchor
                    (after if name in views else before).update(_anchored(view, name, anchor.name))
        heavy = ANCHORED * (1.0 + sum(rates.get(name, 0.0) for name in (*read, *views)))
        anchors = {name: heavy for name, feed in feeds.items() if feed.kind == "anchor"}
        return cls(
            ViewGraph(graph.program, feeds, {**before, **views, **after}), {**rates, **anchors}, frozenset(views)
        )


def _anchored(view: PhysicalView, feed: str, anchor: str) -> dict[str, PhysicalView]:
    """Return a view that reads a feed as a settled view does, and has to be where that is."""
    row = ViewRow((feed, anchor), (view.share_of(feed), 1.0), (feed, anchor), (), anchor)
    name = f"{view.name} reads {feed}"
    return {name: PhysicalView(name, view.template, (feed, anchor), (row,))}


def _may_leave(graph: ViewGraph, view: PhysicalView) -> bool:
    template = graph.program.templates[view.template]
    return not stays_at_cloud(graph, view) and not graph.program.has_operator(template)
