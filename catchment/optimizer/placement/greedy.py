"""Greedy placement: Algorithms 1 and 2 of Sana (Jonathan et al., SoCC'18, section 5), query by query as they come.

Invariant: placing a query changes no site of another. For each operator, inputs first, the choice set is made (share
it where it runs, deploy it where its inputs already arrive, deploy it anywhere else), each choice with the bytes it
really adds and the capacity it really exceeds; the set is kept, so that a plan can be explained. The rule `corrected`
takes the cheapest of all; `printed` follows the paper's order of preference and its tests, errata included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from catchment.errors import PlanError
from catchment.optimizer.placement.cost import Cost, Flow, cost_of, query_flows
from catchment.optimizer.placement.operators import OperatorGraph, WanOperator
from catchment.optimizer.placement.topology import LinkName, Topology


class PlacementKind(StrEnum):
    """How an operator of a new query comes to run."""

    PINNED = "pinned"  # it must be there
    IN_OP = "in-op"  # it runs there already, for another query
    IN = "in"  # it is deployed where some of its inputs already arrive
    LOCAL = "local"  # it is deployed where all its inputs are
    DEPLOY = "deploy"  # it is deployed somewhere else


@dataclass(frozen=True)
class PlacementChoice:
    """One way to place an operator: what it adds in bytes a second, over capacity, and in link cost.

    `ahead` is the least that its output then still has to cost on its way to the sink: the egress of Algorithm 1, on
    the links really used.
    """

    kind: PlacementKind
    site: str
    added: Cost
    ahead: Cost

    @property
    def key(self) -> tuple[float, float, float, str]:
        return *(self.added + self.ahead).key, self.site


@dataclass(frozen=True)
class PlacementDecision:
    """An operator of a query with the choice that was taken and those that were not."""

    query: str
    operator: str
    chosen: PlacementChoice
    choices: tuple[PlacementChoice, ...]


@dataclass(frozen=True)
class WanPlacement:
    """Where the operators of each query run, and why. Adding a query gives another placement."""

    topology: Topology
    multicast: bool
    capacity: bool = True  # look at bandwidth
    graph: OperatorGraph = field(default_factory=lambda: OperatorGraph({}, {}))
    sites: Mapping[tuple[str, str], str] = field(default_factory=dict)
    decisions: Mapping[tuple[str, str], PlacementDecision] = field(default_factory=dict)
    users: Mapping[Flow, int] = field(default_factory=dict)
    rates: Mapping[LinkName, float] = field(default_factory=dict)

    def running(self, operator: str) -> tuple[str, ...]:
        """Return the sites where an operator runs."""
        return tuple(dict.fromkeys(s for (_, name), s in self.sites.items() if name == operator))

    @property
    def cost(self) -> Cost:
        return cost_of(self.rates, self.topology)

    def add(self, query: str, operators: list[WanOperator], rule: Rule | None = None) -> WanPlacement:
        """Return the placement with one query more."""
        if query in self.graph.queries:
            raise PlanError(f"the query {query!r} is already placed")
        return _Arrival.of(self, query, operators).placed(rule or corrected)

    def drop(self, query: str) -> WanPlacement:
        """Return the placement without a query; flows that nobody else needs end."""
        if query not in self.graph.queries:
            raise PlanError(f"the query {query!r} is not placed")
        names = self.graph.queries[query]
        mine = dict(query_flows(self.graph, query, names, self.sites, self.topology, self.multicast))
        users = {f: n - (f in mine) for f, n in self.users.items()}
        rates = dict(self.rates)
        for flow, producer in mine.items():
            if not users[flow]:
                rates[flow[1]] -= self.graph.operators[producer].rate
        queries = {q: n for q, n in self.graph.queries.items() if q != query}
        needed = {n for names in queries.values() for n in names}
        return replace(
            self,
            graph=OperatorGraph({n: o for n, o in self.graph.operators.items() if n in needed}, queries),
            sites={k: s for k, s in self.sites.items() if k[0] != query},
            decisions={k: d for k, d in self.decisions.items() if k[0] != query},
            users={f: n for f, n in users.items() if n},
            rates={n: r for n, r in rates.items() if r > 1e-9},
        )


Rule = Callable[["_Arrival", WanOperator, tuple[PlacementChoice, ...]], PlacementChoice]


def corrected(arrival: _Arrival, operator: WanOperator, choices: tuple[PlacementChoice, ...]) -> PlacementChoice:
    """Return the choice of least overload, then least bytes (those still ahead included), then least link cost."""
    return min(choices, key=lambda c: c.key)


def printed(arrival: _Arrival, operator: WanOperator, choices: tuple[PlacementChoice, ...]) -> PlacementChoice:
    """Algorithm 2 as printed: IN-OP before IN before local before least link cost, with Algorithm 1's tests.

    Line 6 is as printed too: a share that is all new has an extra output of 0.
    """
    for kind in (PlacementKind.IN_OP, PlacementKind.IN):
        fit = [c for c in choices if c.kind is kind and arrival.printed_test(operator, c)]
        if fit:
            return min(fit, key=lambda c: (c.added.wan_bytes_per_s, c.site))
    local = [c for c in choices if c.kind is PlacementKind.LOCAL]
    return local[0] if local else min(choices, key=lambda c: (c.added.link_cost, c.site))


RULES: Mapping[str, Rule] = {"corrected": corrected, "printed": printed}


def place_greedily(empty: WanPlacement, graph: OperatorGraph, rule: Rule | None = None) -> WanPlacement:
    """Return every query of a graph, one after another."""
    placement = empty
    for query, names in graph.queries.items():
        placement = placement.add(query, [graph.operators[n] for n in names], rule)
    return placement


@dataclass
class _Arrival:
    """A query while it is being placed; what it adds is collected here and becomes a placement at the end."""

    base: WanPlacement
    query: str
    operators: list[WanOperator]
    graph: OperatorGraph
    sites: dict[tuple[str, str], str]
    flows: dict[Flow, str]
    rates: dict[LinkName, float]
    decisions: list[PlacementDecision]
    homes: dict[str, tuple[str, ...]]
    ahead: dict[str, tuple[float, str | None]]

    @classmethod
    def of(cls, base: WanPlacement, query: str, operators: list[WanOperator]) -> _Arrival:
        mine = OperatorGraph.of({query: operators})
        for operator in operators:
            known = base.graph.operators.get(operator.name)
            if known is not None and known != operator:
                raise PlanError(f"two different operators are named {operator.name!r}, one of query {query!r}")
        names = {o.name for o in operators}
        homes: dict[str, tuple[str, ...]] = {}
        for (_, name), site in base.sites.items():
            if name in names and site not in homes.get(name, ()):
                homes[name] = (*homes.get(name, ()), site)
        return cls(base, query, operators, mine, {}, {}, dict(base.rates), [], homes, _look_ahead(operators))

    def placed(self, rule: Rule) -> WanPlacement:
        for operator in self.operators:
            choices = tuple(self._choices(operator))
            chosen = choices[0] if len(choices) == 1 else rule(self, operator, choices)
            self._enact(operator, chosen)
            self.decisions.append(PlacementDecision(self.query, operator.name, chosen, choices))
        base, users = self.base, dict(self.base.users)
        for flow in self.flows:
            users[flow] = users.get(flow, 0) + 1
        decided = {(d.query, d.operator): d for d in self.decisions}
        return replace(
            base,
            graph=base.graph.join(self.graph),
            sites={**base.sites, **self.sites},
            decisions={**base.decisions, **decided},
            users=users,
            rates=self.rates,
        )

    def _choices(self, operator: WanOperator) -> Iterator[PlacementChoice]:
        if operator.site is not None:
            if operator.site not in self.base.topology.sites:
                raise PlanError(f"the operator {operator.name!r} must run at {operator.site!r}, which is no site")
            yield self._choice(operator, operator.site, PlacementKind.PINNED, self._needed(operator, operator.site))
            return
        reachable = [s for s in self.base.topology.compute_sites if self._reaches(operator, s)]
        if not reachable:
            raise PlanError(
                f"no site that can compute is reached by all inputs of {operator.name!r} of query {self.query!r}, "
                "and reaches its sink",
                hint="add [[links]] to catchment.toml",
            )
        for site in reachable:
            needed = self._needed(operator, site)
            yield self._choice(operator, site, self._kind(operator, site, needed), needed)

    def _reaches(self, operator: WanOperator, site: str) -> bool:
        route, sink = self.base.topology.route, self.ahead[operator.name][1]
        arrives = all(route(self.sites[self.query, i], site) is not None for i in operator.inputs)
        return arrives and (sink is None or route(site, sink) is not None)

    def _kind(self, operator: WanOperator, site: str, needed: Mapping[Flow, str]) -> PlacementKind:
        if site in self.homes.get(operator.name, ()):
            return PlacementKind.IN_OP
        places = {self.sites[self.query, i] for i in operator.inputs}
        if places == {site}:
            return PlacementKind.LOCAL
        if self.base.multicast and any(f in self.base.users for f in needed):
            return PlacementKind.IN
        return PlacementKind.DEPLOY

    def _needed(self, operator: WanOperator, site: str) -> dict[Flow, str]:
        sites = {
            **{(self.query, i): self.sites[self.query, i] for i in operator.inputs},
            (self.query, operator.name): site,
        }
        names = (operator.name,)
        return dict(query_flows(self.graph, self.query, names, sites, self.base.topology, self.base.multicast))

    def _choice(
        self, operator: WanOperator, site: str, kind: PlacementKind, needed: Mapping[Flow, str]
    ) -> PlacementChoice:
        added: dict[LinkName, float] = {}
        for flow, producer in needed.items():
            if flow not in self.base.users and flow not in self.flows:
                added[flow[1]] = added.get(flow[1], 0.0) + self.graph.operators[producer].rate
        return PlacementChoice(kind, site, self._cost(added), self._ahead(operator, site))

    def _cost(self, added: Mapping[LinkName, float]) -> Cost:
        over = total = link_cost = 0.0
        for name, rate in added.items():
            link, carried = self.base.topology.links[name], self.rates.get(name, 0.0)
            over += max(0.0, carried + rate - max(link.bandwidth_bytes_per_s, carried))
            total += rate
            link_cost += rate * link.cost_per_byte
        return Cost(over if self.base.capacity else 0.0, total, link_cost)

    def _ahead(self, operator: WanOperator, site: str) -> Cost:
        """Return the least that must still be sent: the smallest output from here on, over the way to the sink."""
        least, sink = self.ahead[operator.name]
        way = self.base.topology.required_route(site, sink) if sink is not None else ()
        return self._cost(dict.fromkeys(way, least))

    def _enact(self, operator: WanOperator, chosen: PlacementChoice) -> None:
        for flow, producer in self._needed(operator, chosen.site).items():
            if flow not in self.base.users and flow not in self.flows:
                self.rates[flow[1]] = self.rates.get(flow[1], 0.0) + self.graph.operators[producer].rate
            self.flows[flow] = producer
        self.sites[self.query, operator.name] = chosen.site

    def printed_test(self, operator: WanOperator, choice: PlacementChoice) -> bool:
        """Lines 5 to 15 of Algorithm 1: room for the extra output, and for the inputs that do not arrive yet."""
        room_out = self._room(choice.site, outgoing=True)
        if choice.kind is PlacementKind.IN_OP:
            readers = self._readers_of(operator.name)
            mine = {r for r, o in self.graph.operators.items() if operator.name in o.inputs}
            extra = len(mine & readers) / len(readers) * operator.rate if readers else 0.0
            return room_out > extra
        arriving = choice.added.wan_bytes_per_s
        return room_out > operator.rate and self._room(choice.site, outgoing=False) > arriving

    def _readers_of(self, name: str) -> set[str]:
        return {reader for reader, o in self.base.graph.operators.items() if name in o.inputs}

    def _room(self, site: str, *, outgoing: bool) -> float:
        links = [n for n in self.base.topology.links if n[0 if outgoing else 1] == site]
        return sum(max(0.0, self.base.topology.links[n].bandwidth_bytes_per_s - self.rates.get(n, 0.0)) for n in links)


def _look_ahead(operators: list[WanOperator]) -> dict[str, tuple[float, str | None]]:
    """For each operator the smallest output from it on until a pinned reader, and that reader's site."""
    ahead: dict[str, tuple[float, str | None]] = {}
    readers: dict[str, WanOperator] = {i: o for o in operators for i in o.inputs}
    for operator in reversed(operators):
        reader = readers.get(operator.name)
        if reader is None or reader.site is not None:
            ahead[operator.name] = operator.rate, reader.site if reader else None
        else:
            least, sink = ahead[reader.name]
            ahead[operator.name] = min(operator.rate, least), sink
    return ahead
