"""Local search: from any placement to one that no small move improves.

A move takes an operator from one site to another: for one query, or for all queries that share it there, alone or
with everything that reads it up to what is pinned, or with its siblings that read the same input. The first move that
lowers (overload, bytes, link cost) is taken, until there is none or `MAX_ROUNDS` have passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from catchment.optimizer.cost import Cost, Flow, cost_of, flows, link_rates
from catchment.optimizer.operators import OperatorGraph
from catchment.optimizer.place import Placement

MAX_ROUNDS = 20

Keys = frozenset[tuple[str, str]]


def improve(placement: Placement) -> Placement:
    """A placement that costs no more."""
    sites = dict(placement.sites)
    best = _cost(placement, sites)
    for _ in range(MAX_ROUNDS):
        found = best
        for moved, target in _moves(placement.graph, sites, placement.topology.compute_sites):
            changed = {**sites, **dict.fromkeys(moved, target)}
            if not _reachable(placement, moved, changed):
                continue
            cost = _cost(placement, changed)
            if cost.key < found.key:
                sites, found = changed, cost
        if found.key >= best.key:
            break
        best = found
    return relocated(placement, sites)


def relocated(placement: Placement, sites: dict[tuple[str, str], str]) -> Placement:
    """The placement with other sites; the choices of what moved are those of its greedy start."""
    users: dict[Flow, int] = {}
    for query, names in placement.graph.queries.items():
        mine = OperatorGraph(placement.graph.operators, {query: names})
        for flow in dict(flows(mine, sites, placement.topology, placement.multicast)):
            users[flow] = users.get(flow, 0) + 1
    rates = link_rates(placement.graph, sites, placement.topology, placement.multicast)
    return replace(placement, sites=sites, users=users, rates=rates)


def _cost(placement: Placement, sites: dict[tuple[str, str], str]) -> Cost:
    rates = link_rates(placement.graph, sites, placement.topology, placement.multicast)
    cost = cost_of(rates, placement.topology)
    return cost if placement.capacity else replace(cost, overload=0.0)


def _moves(
    graph: OperatorGraph, sites: dict[tuple[str, str], str], targets: tuple[str, ...]
) -> Iterator[tuple[Keys, str]]:
    seen: set[Keys] = set()
    for moved in _movable(graph, sites):
        if moved and moved not in seen:
            seen.add(moved)
            here = {sites[k] for k in moved}
            yield from ((moved, target) for target in targets if here != {target})


def _movable(graph: OperatorGraph, sites: dict[tuple[str, str], str]) -> Iterator[Keys]:
    """Sets of (query, operator) that may move together."""
    free = [k for k in sites if graph.operators[k[1]].site is None]
    shared: dict[tuple[str, str], set[tuple[str, str]]] = {}
    siblings: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for query, name in free:
        at = sites[query, name]
        shared.setdefault((name, at), set()).add((query, name))
        for read in graph.operators[name].inputs:
            siblings.setdefault((read, at), set()).add((query, name))
    for group in (*shared.values(), *siblings.values()):
        yield frozenset(group)
    for query, name in free:
        yield frozenset([(query, name)])
        yield _downstream(graph, query, name)
    for group in shared.values():
        yield frozenset(k for query, name in group for k in _downstream(graph, query, name))


def _downstream(graph: OperatorGraph, query: str, name: str) -> Keys:
    """An operator and what reads it, of one query, without what is pinned."""
    found = {name}
    for reader in graph.queries[query]:
        if found & set(graph.operators[reader].inputs):
            found.add(reader)
    return frozenset((query, n) for n in found if graph.operators[n].site is None)


def _reachable(placement: Placement, moved: Keys, sites: dict[tuple[str, str], str]) -> bool:
    """Whether every way that the moved operators then need exists."""
    route, graph = placement.topology.route, placement.graph
    for query in {q for q, _ in moved}:
        for reader in graph.queries[query]:
            for read in graph.operators[reader].inputs:
                if route(sites[query, read], sites[query, reader]) is None:
                    return False
    return True
