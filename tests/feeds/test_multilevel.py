"""Views over views: the placement is the cheapest of all that the links allow."""

from __future__ import annotations

import numpy as np
import pytest

from catchment.errors import FeedError
from catchment.feeds.placement.budget import Budget
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.outcome import AT_CLOUD
from catchment.feeds.placement.pair_views.assign import assign
from catchment.feeds.placement.views_over_views.assign_views import ViewAssignment, assign_views
from catchment.feeds.placement.views_over_views.hierarchy import VIEW, Hierarchy, device_trees
from tests.worlds.feeds_brute import graph_of, hierarchy_of_pairs, random_hierarchy, random_pairs, view_costs

RATIOS = ((1.0, 1.0), (1.0, 2.0), (2.0, 1.0), (5.0, 1.0), (20.0, 1.0))


def _check(found: ViewAssignment, costs: np.ndarray, sites: np.ndarray) -> None:
    assert found.cost == pytest.approx(costs.min(), abs=1e-9)
    assert found.optimal
    mine = np.flatnonzero((sites == found.site).all(axis=1))
    assert costs[mine] == pytest.approx(found.cost, abs=1e-9), "the sites do not cost what is claimed"


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda r: f"Cu={r[0]:g},Cd={r[1]:g}")
@pytest.mark.parametrize("whole_rates", [True, False], ids=["tied", "distinct"])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_views_are_placed_at_the_least_cost_of_all_placements(
    levels: int, whole_rates: bool, ratio: tuple[float, float]
) -> None:
    rng = np.random.default_rng([levels, whole_rates, int(ratio[0] * 10)])
    for _ in range(30):
        h = random_hierarchy(rng, whole_rates, levels)
        found = assign_views(h, DeviceCosts(*ratio))
        _check(found, *view_costs(h, np.full(h.devices, ratio[0]), np.full(h.devices, ratio[1])))
        if ratio[0] <= ratio[1]:
            assert found.conflicts == 0


@pytest.mark.parametrize("ratio", [(1.0, 1.0), (4.0, 1.0)])
def test_budgets_hold_for_views_over_views_at_the_least_cost(ratio: tuple[float, float]) -> None:
    rng = np.random.default_rng(12)
    for _ in range(100):
        h = random_hierarchy(rng, True, 3)
        capacity = rng.integers(0, 3, h.devices).astype(float)
        found = assign_views(h, DeviceCosts(*ratio), budget=Budget(capacity))
        up, down = np.full(h.devices, ratio[0]), np.full(h.devices, ratio[1])
        _check(found, *view_costs(h, up, down, capacity.tolist()))


def test_one_level_of_views_is_the_assignment_of_pairs() -> None:
    rng = np.random.default_rng(13)
    for turn in range(60):
        devices, pairs = random_pairs(rng, 12, 30)
        graph = graph_of(devices, pairs, rng.integers(0, 6, (len(pairs), 2)).astype(float))
        costs = DeviceCosts(RATIOS[turn % 5][0], RATIOS[turn % 5][1])
        views = assign_views(hierarchy_of_pairs(graph), costs)
        flat = assign(graph, costs)
        assert views.cost == pytest.approx(flat.cost, abs=1e-9)
        assert views.all_upload_cost == pytest.approx(flat.all_upload_cost)
        assert views.conflicts == flat.conflicts


def _friend_finder(rng: np.random.Generator, users: int) -> tuple[Hierarchy, dict[str, np.ndarray]]:
    """G_p: positions of p, N_p: p's friends, at the cloud, J_p = G_p with N_p, V_pq = J_p with G_q."""
    friends = np.triu(rng.random((users, users)) < 0.4, 1)
    friends = friends | friends.T
    p, q = np.nonzero(friends)
    rate = {
        "G->J": rng.random(users) * 3,
        "N->J": rng.random(users) * 0.5,
        "J->V": rng.random(len(p)),
        "G->V": rng.random(len(p)),
    }
    joined, view = 2 * users + np.arange(users), 3 * users + np.arange(len(p))
    home = [*range(users), *[AT_CLOUD] * users, *[VIEW] * (users + len(p))]
    feed = np.concatenate((np.arange(users), users + np.arange(users), joined[p], q))
    target = np.concatenate((joined, joined, view, view))
    h = Hierarchy.of(users, home, feed, target, np.concatenate([rate[k] for k in ("G->J", "N->J", "J->V", "G->V")]))
    return h, {**rate, "p": p, "q": q}


def _closed_form(rate: dict[str, np.ndarray], users: int, up: float, down: float) -> float:
    """Each user takes the cheaper of its join at the cloud and on its device, by the formula."""

    def least(own: np.ndarray, other: np.ndarray, lowest: float) -> float:
        thresholds = [t for t in [0.0, lowest, *own.tolist()] if t >= lowest]
        return min(up * t + down * float(other[own > t].sum()) for t in thresholds)

    total = 0.0
    for user in range(users):
        theirs, mine = rate["q"] == user, rate["p"] == user
        feed = (rate["G->V"][theirs], rate["J->V"][theirs])
        at_cloud = least(*feed, float(rate["G->J"][user]))
        join = least(rate["J->V"][mine], rate["G->V"][mine], 0.0)
        total += min(at_cloud, least(*feed, 0.0) + down * float(rate["N->J"][user]) + join)
    return total


@pytest.mark.parametrize(("up", "down"), [(1.0, 1.0), (1.0, 1.7)])
def test_the_friend_finder_has_its_closed_form(up: float, down: float) -> None:
    rng = np.random.default_rng(14)
    for users in (3, 8, 40):
        h, rate = _friend_finder(rng, users)
        found = assign_views(h, DeviceCosts(up, down))
        assert found.cost == pytest.approx(_closed_form(rate, users, up, down), rel=1e-12)
        assert found.conflicts == 0


def test_the_price_of_the_parents_other_inputs_is_counted() -> None:
    """The upper view would stay with the lower one, but its other input is dear: algorithm 3 as printed pays 16."""
    rates = {"G0 -> J": 2.0, "N -> J": 1.0, "J -> V": 8.0, "G1 -> V": 7.5}
    h = Hierarchy.of(2, [0, 1, AT_CLOUD, VIEW, VIEW], [0, 2, 3, 1], [3, 3, 4, 4], list(rates.values()))
    found = assign_views(h, DeviceCosts(1.0, 1.0))
    assert found.site[3:].tolist() == [AT_CLOUD, AT_CLOUD]
    assert found.cost == 9.5


def test_uploads_say_which_inputs_come_by_the_cloud() -> None:
    h = Hierarchy.of(2, [0, 1, VIEW], [0, 1], [2, 2], [5.0, 1.0])
    found = assign_views(h, DeviceCosts(1.0, 1.0))
    assert found.site.tolist() == [0, 1, 0]
    assert found.upload.tolist() == [False, True]


def test_without_time_views_stay_viable_and_the_gap_is_true() -> None:
    rng = np.random.default_rng(15)
    seen = 0
    for _ in range(40):
        h = random_hierarchy(rng, False, 2)
        costs = view_costs(h, np.full(h.devices, 10.0), np.ones(h.devices))[0]
        found = assign_views(h, DeviceCosts(10.0, 1.0), time_limit_s=0.0)
        assert costs.min() - 1e-9 <= found.cost
        assert found.cost * (1 - found.gap) <= costs.min() + 1e-9
        seen += not found.optimal
    assert seen


def test_a_cycle_of_views_is_refused_by_name() -> None:
    with pytest.raises(FeedError, match=r"a cycle of views: (1 -> 2 -> 1|2 -> 1 -> 2)"):
        Hierarchy.of(1, [0, VIEW, VIEW], [0, 2, 1], [1, 1, 2], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("home", "feed", "view", "rate", "says"),
    [
        ([0, VIEW], [0, 1], [1, 1], [1.0, 1.0], "its own input"),
        ([0, VIEW], [0], [1], [-1.0], "negative"),
        ([0, VIEW], [0], [1], [float("nan")], "not finite"),
        ([0, VIEW], [0, 0], [1, 1], [1.0, 2.0], "repeats an edge"),
        ([0, VIEW], [0], [7], [1.0], "does not exist"),
        ([0, 0], [0], [1], [1.0], "only views have inputs"),
        ([5, VIEW], [0], [1], [1.0], "known device"),
        ([0, VIEW, VIEW], [0], [1], [1.0], "no input"),
    ],
)
def test_bad_views_are_refused(home: list[int], feed: list[int], view: list[int], rate: list[float], says: str) -> None:
    with pytest.raises(FeedError, match=says):
        Hierarchy.of(1, home, feed, view, rate)


def test_a_feed_that_reaches_a_view_by_two_inputs_is_refused() -> None:
    h = Hierarchy.of(2, [0, 1, VIEW, VIEW], [0, 1, 2, 0], [2, 2, 3, 3], [1.0] * 4)
    with pytest.raises(FeedError, match="feed of device 0 reaches view 3 by two"):
        device_trees(h)
