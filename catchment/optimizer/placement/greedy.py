"""Greedy placement: Algorithms 1 and 2 of Sana (Jonathan et al., SoCC'18, section 5), query by query in their order.

Invariant: placing a query changes no site of another. For each operator, inputs first, the possible choices are listed
(share it where it runs, deploy it where its inputs already arrive, deploy it anywhere else), each with the bytes that
it really adds and the capacity that it really exceeds, and the cheapest is taken. The choices are kept, so that a plan
can be explained. The paper's own order of preference is in `catchment.sim.printed_placement`, for comparison.
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
    """How an operator of a new query comes to run at a site."""

    PINNED = "pinned"  # it must run there
    IN_OP = "in-op"  # it already runs there, for another query
    IN = "in"  # it is deployed where some of its inputs already arrive
    LOCAL = "local"  # it is deployed where all its inputs are
    DEPLOY = "deploy"  # it is deployed somewhere else


MAX_TRIED_SITES = 64  # up to so many sites that compute, an operator is tried at each
MAX_ON_ROUTES = 12  # of more, so many of those on the routes of its inputs are tried
NO_RATE = 1e-9  # rates up to this, in bytes per second, are rounding errors


@dataclass(frozen=True)
class PlacementChoice:
    """One way to place an operator: what it adds in bytes per second, over capacity, and in link cost.

    `ahead` is the least that its output must still cost on the route to the sink: the egress of Algorithm 1, on the
    links really used.
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
    capacity: bool = True  # whether the bandwidth of links counts
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
        """Return the placement with one more query."""
        if query in self.graph.queries:
            raise PlanError(f"the query {query!r} is already placed")
        return QueryArrival.of(self, query, operators).place(rule or choose_cheapest)

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
            rates={n: r for n, r in rates.items() if r > NO_RATE},
        )


Rule = Callable[["QueryArrival", WanOperator, tuple[PlacementChoice, ...]], PlacementChoice]


def choose_cheapest(
    arrival: QueryArrival, operator: WanOperator, choices: tuple[PlacementChoice, ...]
) -> PlacementChoice:
    """Return the choice of least overload, then least bytes (those still ahead included), then least link cost."""
    return min(choices, key=lambda c: c.key)


def place_greedily(
    empty: WanPlacement, graph: OperatorGraph, rule: Rule | None = None, *, explains: bool = True
) -> WanPlacement:
    """Return a placement of every query of a graph, added one after another.

    Unless it `explains`, the choices are not kept: of thousands of queries they take more memory than the placement.
    """
    placing = _Placing.of(empty)
    for query, names in graph.queries.items():
        placing.add(query, [graph.operators[n] for n in names], rule or choose_cheapest, explains)
    return replace(placing.placement, graph=empty.graph.join(graph))


@dataclass(frozen=True)
class _Placing:
    """A placement that many queries are added to: what it holds is changed in place, and copied once."""

    placement: WanPlacement
    operators: dict[str, WanOperator]
    sites: dict[tuple[str, str], str]
    decisions: dict[tuple[str, str], PlacementDecision]
    users: dict[Flow, int]
    rates: dict[LinkName, float]
    homes: dict[str, tuple[str, ...]]  # operator -> the sites where it runs

    @classmethod
    def of(cls, empty: WanPlacement) -> _Placing:
        operators, sites = dict(empty.graph.operators), dict(empty.sites)
        decisions, users, rates = dict(empty.decisions), dict(empty.users), dict(empty.rates)
        graph = OperatorGraph(operators, empty.graph.queries, frozenset(empty.graph.queries))
        placement = replace(empty, graph=graph, sites=sites, decisions=decisions, users=users, rates=rates)
        homes: dict[str, tuple[str, ...]] = {}
        for (_, name), site in sites.items():
            _add_home(homes, name, site)
        return cls(placement, operators, sites, decisions, users, rates, homes)

    def add(self, query: str, operators: list[WanOperator], rule: Rule, explains: bool) -> None:
        """Place one more query."""
        if query in self.placement.graph.queries:
            raise PlanError(f"the query {query!r} is already placed")
        arrival = QueryArrival.of(self.placement, query, operators, self.homes)
        arrival.choose(rule)
        self.operators.update(arrival.graph.operators)
        self.sites.update(arrival.sites)
        for (_, name), site in arrival.sites.items():
            _add_home(self.homes, name, site)
        if explains:
            self.decisions.update(((d.query, d.operator), d) for d in arrival.decisions)
        for flow in arrival.flows:
            self.users[flow] = self.users.get(flow, 0) + 1
        self.rates.update(arrival.rates)


def _add_home(homes: dict[str, tuple[str, ...]], name: str, site: str) -> None:
    if site not in homes.get(name, ()):
        homes[name] = (*homes.get(name, ()), site)


@dataclass
class QueryArrival:
    """A query while it is being placed; what it adds is collected here and becomes a placement at the end."""

    base: WanPlacement
    query: str
    operators: list[WanOperator]
    graph: OperatorGraph
    sites: dict[tuple[str, str], str]
    flows: dict[Flow, str]
    rates: dict[LinkName, float]
    decisions: list[PlacementDecision]
    homes: Mapping[str, tuple[str, ...]]
    ahead: dict[str, tuple[float, str | None]]

    @classmethod
    def of(
        cls,
        base: WanPlacement,
        query: str,
        operators: list[WanOperator],
        homes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> QueryArrival:
        """Return a query that is to be added; `homes` says where operators run, if that is known."""
        mine = OperatorGraph.of({query: operators})
        for operator in operators:
            known = base.graph.operators.get(operator.name)
            if known is not None and known != operator:
                raise PlanError(f"two different operators are named {operator.name!r}, one of query {query!r}")
        if homes is None:
            found: dict[str, tuple[str, ...]] = {}
            names = {o.name for o in operators}
            for (_, name), site in base.sites.items():
                if name in names:
                    _add_home(found, name, site)
            homes = found
        return cls(base, query, operators, mine, {}, {}, dict(base.rates), [], homes, _look_ahead(operators))

    def choose(self, rule: Rule) -> None:
        """Take every operator of the query to where the rule chooses."""
        for operator in self.operators:
            choices = tuple(self._choices(operator))
            chosen = choices[0] if len(choices) == 1 else rule(self, operator, choices)
            self._take(operator, chosen)
            self.decisions.append(PlacementDecision(self.query, operator.name, chosen, choices))

    def place(self, rule: Rule) -> WanPlacement:
        """Return the placement with every operator of the query where the rule chooses."""
        self.choose(rule)
        base = self.base
        users = dict(base.users)
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
            yield self._choice(operator, operator.site, PlacementKind.PINNED, self._flows_into(operator, operator.site))
            return
        reachable = [s for s in self._tried_sites(operator) if self._reaches(operator, s)]
        if not reachable:
            raise PlanError(
                f"no site that can compute is reached by all inputs of {operator.name!r} of query {self.query!r}, "
                "and reaches its sink",
                hint="add [[links]] to catchment.toml",
            )
        for site in reachable:
            needed = self._flows_into(operator, site)
            yield self._choice(operator, site, self._kind(operator, site, needed), needed)

    def _tried_sites(self, operator: WanOperator) -> list[str]:
        """Return the sites at which an operator is tried: all that compute or, of very many, those on its way.

        These are the sites where it runs already, and those on the routes of its inputs to the sink: first the ones
        that most routes pass, and nearest to the inputs.
        """
        topology = self.base.topology
        if len(topology.compute_sites) <= MAX_TRIED_SITES:
            return list(topology.compute_sites)
        sink = self.ahead[operator.name][1]
        passed: dict[str, int] = {}
        for place in (self.sites[self.query, i] for i in operator.inputs):
            route = topology.route(place, sink) if sink is not None else ()
            for site in (place, *(link[1] for link in route or ())):
                passed[site] = passed.get(site, 0) + 1
        most = sorted(passed, key=lambda site: -passed[site])[:MAX_ON_ROUTES]
        computing = topology.computes
        return [s for s in dict.fromkeys((*self.homes.get(operator.name, ()), *most)) if s in computing]

    def _reaches(self, operator: WanOperator, site: str) -> bool:
        route = self.base.topology.route
        sink = self.ahead[operator.name][1]
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

    def _flows_into(self, operator: WanOperator, site: str) -> dict[Flow, str]:
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
            link = self.base.topology.links[name]
            carried = self.rates.get(name, 0.0)
            over += max(0.0, carried + rate - max(link.bandwidth_bytes_per_s, carried))
            total += rate
            link_cost += rate * link.cost_per_byte
        return Cost(over if self.base.capacity else 0.0, total, link_cost)

    def _ahead(self, operator: WanOperator, site: str) -> Cost:
        """Return the least that must still be sent: the smallest output from here on, over the route to the sink."""
        least, sink = self.ahead[operator.name]
        route = self.base.topology.required_route(site, sink) if sink is not None else ()
        return self._cost(dict.fromkeys(route, least))

    def _take(self, operator: WanOperator, chosen: PlacementChoice) -> None:
        for flow, producer in self._flows_into(operator, chosen.site).items():
            if flow not in self.base.users and flow not in self.flows:
                self.rates[flow[1]] = self.rates.get(flow[1], 0.0) + self.graph.operators[producer].rate
            self.flows[flow] = producer
        self.sites[self.query, operator.name] = chosen.site


def _look_ahead(operators: list[WanOperator]) -> dict[str, tuple[float, str | None]]:
    """Return for each operator the smallest output from it to the next pinned reader, and that reader's site."""
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
