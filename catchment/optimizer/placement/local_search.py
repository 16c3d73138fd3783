"""Local search: from a placement, and from a few simple ones, to one that no small move improves.

Besides the given placement the search starts from everything at its query's sink, and from everything at the one site
where that is cheapest: from there it finds what the greedy, which never revises a choice, cannot.

A move takes operators from one site to another: one operator of one query, or of all queries that share it there,
alone, with everything that reads it up to what is pinned, or with its siblings that read the same input. A move that
lowers (overload, bytes, link cost) is taken, until a round finds none or `MAX_ROUNDS` have passed. The cost of a move
is computed from the flows of the queries that it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from catchment.errors import PlanError
from catchment.optimizer.placement.cost import Cost, Flow, cost_of, query_flows
from catchment.optimizer.placement.greedy import WanPlacement
from catchment.optimizer.placement.operators import OperatorGraph
from catchment.optimizer.placement.topology import LinkName

MAX_ROUNDS = 20  # rounds of a search, each of which tries every move

Sites = dict[tuple[str, str], str]
Keys = frozenset[tuple[str, str]]


def improve(placement: WanPlacement) -> WanPlacement:
    """Return a placement that costs no more."""
    found = [_search(trial) for trial in _starts(placement)]
    return min(found, key=lambda trial: trial.cost.key).to_placement()


def _starts(placement: WanPlacement) -> list[_Trial]:
    given = _Trial.of(placement, dict(placement.sites))
    plain = [_all_at(given, target) for target in placement.topology.compute_sites]
    reachable = [trial for trial in plain if trial is not None]
    at_sinks = _all_at(given, None)
    return [
        given,
        *([at_sinks] if at_sinks else []),
        *sorted(reachable, key=lambda trial: trial.cost.key)[:1],
    ]


def _all_at(trial: _Trial, target: str | None) -> _Trial | None:
    """Return the trial with every free operator at one site (None: at its query's sink); None if a route is missing."""
    graph = trial.placement.graph
    topology = trial.placement.topology
    sites = dict(trial.sites)
    for query, name in trial.sites:
        if graph.operators[name].site is None:
            wanted = target or graph.operators[graph.queries[query][-1]].site
            if wanted in topology.compute_sites:
                sites[query, name] = str(wanted)
    try:
        return _Trial.of(trial.placement, sites)
    except PlanError:
        return None


def _search(trial: _Trial) -> _Trial:
    placement = trial.placement
    for _ in range(MAX_ROUNDS):
        before = trial.cost.key
        for moved, target in _moves(placement.graph, trial.sites, placement.topology.compute_sites):
            changed = trial.move(moved, target)
            if changed is not None and changed.cost.key < trial.cost.key:
                trial = changed
        if trial.cost.key >= before:
            break
    return trial


def relocate(placement: WanPlacement, sites: Sites) -> WanPlacement:
    """Return the placement with other sites; the recorded choices stay those of the given placement."""
    return _Trial.of(placement, sites).to_placement()


@dataclass(frozen=True)
class _Trial:
    """Sites, the flows of each query that follow from them, and what links carry."""

    placement: WanPlacement
    sites: Sites
    flows: dict[str, dict[Flow, str]]
    users: dict[Flow, int]
    rates: dict[LinkName, float]

    @classmethod
    def of(cls, placement: WanPlacement, sites: Sites) -> _Trial:
        empty = cls(placement, sites, {}, {}, {})
        return empty._with({q: empty._flows_of(q, sites) for q in placement.graph.queries}, sites)

    @property
    def cost(self) -> Cost:
        cost = cost_of(self.rates, self.placement.topology)
        return cost if self.placement.capacity else replace(cost, overload=0.0)

    def move(self, moved: Keys, target: str) -> _Trial | None:
        """Return the trial after a move, or None where a route would be missing."""
        sites = {**self.sites, **dict.fromkeys(moved, target)}
        try:
            return self._with({q: self._flows_of(q, sites) for q in {q for q, _ in moved}}, sites)
        except PlanError:
            return None

    def _flows_of(self, query: str, sites: Sites) -> dict[Flow, str]:
        p = self.placement
        return dict(query_flows(p.graph, query, p.graph.queries[query], sites, p.topology, p.multicast))

    def _with(self, new: dict[str, dict[Flow, str]], sites: Sites) -> _Trial:
        users = dict(self.users)
        rates = dict(self.rates)
        for query, flows in new.items():
            self._count(self.flows.get(query, {}).items(), -1, users, rates)
            self._count(flows.items(), 1, users, rates)
        return _Trial(self.placement, sites, {**self.flows, **new}, users, rates)

    def _count(
        self, flows: Iterable[tuple[Flow, str]], step: int, users: dict[Flow, int], rates: dict[LinkName, float]
    ) -> None:
        for flow, producer in flows:
            before = users.get(flow, 0)
            users[flow] = before + step
            if (before > 0) != (before + step > 0):
                rate = self.placement.graph.operators[producer].rate
                rates[flow[1]] = rates.get(flow[1], 0.0) + step * rate

    def to_placement(self) -> WanPlacement:
        # Rates are summed from scratch, so that no rounding errors of the moves remain.
        fresh = _Trial(self.placement, self.sites, {}, {}, {})._with(self.flows, self.sites)
        return replace(self.placement, sites=self.sites, users=fresh.users, rates=fresh.rates)


def _moves(graph: OperatorGraph, sites: Sites, targets: tuple[str, ...]) -> Iterator[tuple[Keys, str]]:
    seen: set[Keys] = set()
    for moved in list(_movable(graph, sites)):
        if moved and moved not in seen:
            seen.add(moved)
            here = {sites[k] for k in moved}
            yield from ((moved, target) for target in targets if here != {target})


def _movable(graph: OperatorGraph, sites: Sites) -> Iterator[Keys]:
    """Yield sets of (query, operator) that may move together."""
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
    """Return an operator and what reads it, of one query, without what is pinned."""
    found = {name}
    for reader in graph.queries[query]:
        if found & set(graph.operators[reader].inputs):
            found.add(reader)
    return frozenset((query, n) for n in found if graph.operators[n].site is None)
