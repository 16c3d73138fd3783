"""Planning of many queries for many sites gives what planning them one by one does.

Catches: a quick way that forgets what an earlier query needs, an estimate that is remembered for another demand, sites
that are not tried though they would send less.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.placement.internet import make_internet
from catchment.optimizer.choices import Strength
from catchment.optimizer.placement import greedy
from catchment.optimizer.placement.greedy import WanPlacement, place_greedily
from catchment.optimizer.placement.operators import operators_of
from catchment.optimizer.sharing.demand_estimate import DemandEstimate
from catchment.optimizer.sharing.derive import is_derivable
from catchment.optimizer.sharing.share import SharingState, share
from catchment.optimizer.sharing.statistics import Statistics

SITES, QUERIES = 100, 24  # more sites than an operator is tried at


@pytest.mark.parametrize("strength", [Strength.NONE, Strength.FULL])
@pytest.mark.parametrize("seed", [1, 2])
def test_queries_placed_together_are_where_they_are_if_placed_one_by_one(seed: int, strength: Strength) -> None:
    world = make_internet(SITES, QUERIES, seed)
    sharing = share(world.queries, strength, world.statistics.sent_bytes_per_s)
    graph = operators_of(sharing, world.statistics, world.topology)
    empty = WanPlacement(world.topology, multicast=strength is Strength.FULL)
    together = place_greedily(empty, graph)
    one_by_one = empty
    for query, names in graph.queries.items():
        one_by_one = one_by_one.add(query, [graph.operators[n] for n in names])
    assert (together.sites, together.users) == (one_by_one.sites, one_by_one.users)
    assert together.rates == pytest.approx(one_by_one.rates)
    assert together.decisions == one_by_one.decisions
    assert together.graph == one_by_one.graph
    quiet = place_greedily(empty, graph, explains=False)
    assert (quiet.sites, quiet.decisions) == (together.sites, {})
    assert empty.sites == {}, "what a placement begins with is not changed"
    begun = place_greedily(empty, graph)
    more = place_greedily(begun, operators_of(_renamed(sharing), world.statistics, world.topology))
    assert {key: more.sites[key] for key in begun.sites} == begun.sites
    assert len(more.graph.queries) == 2 * len(begun.graph.queries)


def _renamed(sharing: SharingState) -> SharingState:
    names = {name: f"again_{name}" for name in sharing.queries}
    return replace(
        sharing,
        queries={names[n]: replace(q, name=names[n]) for n, q in sharing.queries.items()},
        derivations={names[n]: replace(d, query=names[n]) for n, d in sharing.derivations.items()},
    )


@pytest.mark.parametrize("seed", range(4))
def test_of_many_sites_those_on_the_routes_are_enough(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_internet(SITES, 6, seed)
    sharing = share(world.queries, Strength.FULL, world.statistics.sent_bytes_per_s)
    graph = operators_of(sharing, world.statistics, world.topology)
    few = place_greedily(WanPlacement(world.topology, multicast=True), graph).cost
    monkeypatch.setattr(greedy, "MAX_TRIED_SITES", SITES)
    every = place_greedily(WanPlacement(world.topology, multicast=True), graph).cost
    assert few.key[:2] == pytest.approx(every.key[:2])


def test_remembered_estimates_are_those_of_the_same_demand_and_rate() -> None:
    world = make_internet(SITES, 40, 3)
    known = world.statistics
    for query in (*world.queries, *reversed(world.queries)):
        demand = query.demand
        stream = known.of(demand.source.stream)
        each = [DemandEstimate(demand, stream, None).bytes_per_s(stream.rows_at((s,))) for s in demand.source.sites]
        assert known.sent_bytes_per_s(demand) == pytest.approx(sum(each))
    faster = replace(known, streams={n: replace(s, wire_ratio=0.5) for n, s in known.streams.items()})
    demand = world.queries[0].demand
    assert faster.sent_bytes_per_s(demand) == pytest.approx(known.sent_bytes_per_s(demand) / 2)
    assert faster == Statistics(faster.streams)


def test_every_query_is_derivable_from_the_fragment_that_it_shares() -> None:
    world = make_internet(SITES, 120, 4)
    sharing = share(world.queries, Strength.FULL, world.statistics.sent_bytes_per_s)
    assert len(sharing.fragments) < len(world.queries)
    for name, query in sharing.queries.items():
        assert is_derivable(query.demand, sharing.fragments[sharing.derivations[name].fragment])
