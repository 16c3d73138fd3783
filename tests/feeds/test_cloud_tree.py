"""Placement inside the cloud: each step the cheapest, and the two steps together the cheapest of all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from catchment.errors import FeedError
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.assign import assign, place
from catchment.feeds.placement.pair_views.cloud_tree import CloudTree, place_in_cloud
from tests.worlds.feeds_brute import graph_of, random_pairs


def _costs(tree: CloudTree, pairs: np.ndarray, rates: np.ndarray, where: np.ndarray, device_links: bool) -> np.ndarray:
    """What every link carries, for each row of `where`: cloud nodes first, then devices, as sites of the views."""
    nodes = len(tree.parent)
    node = np.where(where >= nodes, tree.gateway[np.maximum(where - nodes, 0)], where)
    cost = np.zeros(len(where))
    for device in range(len(tree.gateway)):
        sent, carried = np.zeros(len(where)), np.zeros((nodes, len(where)))
        for p, side in ((p, s) for p in range(len(pairs)) for s in (0, 1) if pairs[p, s] == device):
            away = where[:, p] != nodes + device
            rate = np.where(away, rates[p, side], 0.0)
            np.maximum(sent, rate, out=sent)
            cost += np.where(away & (where[:, p] >= nodes), rate, 0.0) * device_links
            for link in np.flatnonzero(tree.parent >= 0):
                under = tree.under(int(link))
                crosses = under[tree.gateway[device]] != under[node[:, p]]
                np.maximum(carried[link], np.where(crosses, rate, 0.0), out=carried[link])
        cost += sent * device_links + tree.link_cost @ carried
    return cost


def _random_case(rng: np.random.Generator, whole: bool) -> tuple[CloudTree, int, np.ndarray, np.ndarray]:
    devices, pairs = random_pairs(rng, 5, 4)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    nodes = int(rng.integers(1, 5))
    parent = [-1, *(int(rng.integers(0, node)) for node in range(1, nodes))]
    tree = CloudTree.of(parent, rng.random(nodes) * 2, rng.integers(0, nodes, devices))
    shape = (len(pairs), 2)
    return tree, devices, pairs, rng.integers(0, 5, shape).astype(float) if whole else rng.random(shape)


@pytest.mark.parametrize("costs", [DeviceCosts(1.0, 1.0), DeviceCosts(3.0, 1.0)], ids=["symmetric", "upload dear"])
def test_the_second_step_is_the_cheapest_given_the_first(costs: DeviceCosts) -> None:
    rng = np.random.default_rng(17)
    for turn in range(80):
        tree, devices, pairs, rates = _random_case(rng, bool(turn % 2))
        first = assign(graph_of(devices, pairs, rates), costs)
        second, site, nodes = place_in_cloud(first, tree), place(first).site, len(tree.parent)
        choices = [range(nodes) if s == AT_CLOUD else [nodes + int(s)] for s in site]
        every = np.asarray(list(itertools.product(*choices)))
        assert second.cost == pytest.approx(_costs(tree, pairs, rates, every, False).min(), abs=1e-9)
        mine = np.where(second.node == AT_CLOUD, nodes + site, second.node)[None]
        assert _costs(tree, pairs, rates, mine, False)[0] == pytest.approx(second.cost, abs=1e-9)


def test_two_steps_are_the_optimum_over_the_whole_network() -> None:
    rng = np.random.default_rng(18)
    for turn in range(80):
        tree, devices, pairs, rates = _random_case(rng, bool(turn % 2))
        first = assign(graph_of(devices, pairs, rates), DeviceCosts(1.0, 1.0))
        second, nodes = place_in_cloud(first, tree), len(tree.parent)
        every = np.asarray(list(itertools.product(*([*range(nodes), nodes + a, nodes + b] for a, b in pairs))))
        assert first.cost + second.cost == pytest.approx(_costs(tree, pairs, rates, every, True).min(), abs=1e-9)


@pytest.mark.parametrize(
    ("parent", "cost", "gateway", "says"),
    [
        ([-1, 2, 1], [0.0, 1.0, 1.0], [0, 0], "no tree"),
        ([-1, -1], [0.0, 1.0], [0, 0], "no tree"),
        ([-1, 0], [0.0, -1.0], [0, 0], "cost of its link"),
        ([-1, 0], [0.0, 1.0], [0, 2], "none of the 2 nodes"),
    ],
)
def test_a_cloud_that_is_no_tree_is_refused(
    parent: list[int], cost: list[float], gateway: list[int], says: str
) -> None:
    with pytest.raises(FeedError, match=says):
        CloudTree.of(parent, cost, gateway)


def test_every_device_needs_a_gateway() -> None:
    found = assign(graph_of(2, np.asarray([[0, 1]]), np.ones((1, 2))), DeviceCosts(1.0, 1.0))
    with pytest.raises(FeedError, match="1 gateways for 2 devices"):
        place_in_cloud(found, CloudTree.of([-1], [0.0], [0]))
