"""The operators of queries as a graph to be placed: what each reads, what it produces, where it must run.

An operator's name is its signature: equal names are equal work on equal inputs, whichever query asked for it. A source
is pinned to the site of its stream, an answer's sink to the site that wants it; what is between may run at any site
that can compute. Partials of sites whose routes meet before the sink may be merged there or anywhere else: a merge of
those sites is an operator of its own, so that a plan over links that form a tree is an aggregation tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from catchment.errors import PlanError
from catchment.optimizer.placement.topology import Topology
from catchment.optimizer.sharing.demand import FragmentDemand
from catchment.optimizer.sharing.share import SharingState
from catchment.optimizer.sharing.statistics import Statistics


@dataclass(frozen=True)
class WanOperator:
    """One operator; `rate` is its output in bytes per second, `site` is where it must run, if that is fixed."""

    name: str
    inputs: tuple[str, ...] = ()
    rate: float = 0.0
    site: str | None = None

    def __post_init__(self) -> None:
        if not self.rate >= 0:
            raise PlanError(
                f"the operator {self.name!r} has the rate {self.rate} bytes per second", hint="rates are 0 or more"
            )


@dataclass(frozen=True)
class OperatorGraph:
    """Operators by name, and for each query those that it needs, inputs before their readers."""

    operators: Mapping[str, WanOperator]
    queries: Mapping[str, tuple[str, ...]]
    checked: frozenset[str] = field(default=frozenset(), compare=False, repr=False)  # queries known to be in order

    def __post_init__(self) -> None:
        for query, names in self.queries.items():
            if query in self.checked:
                continue
            seen: set[str] = set()
            for name in names:
                missing = [i for i in self._operator(name, query).inputs if i not in seen]
                if missing:
                    raise PlanError(
                        f"the operator {name!r} of query {query!r} reads {missing[0]!r} before it is there",
                        hint="operators are listed inputs first, without cycles",
                    )
                seen.add(name)

    def _operator(self, name: str, query: str) -> WanOperator:
        if name not in self.operators:
            raise PlanError(f"the query {query!r} needs the operator {name!r}, which does not exist")
        return self.operators[name]

    @classmethod
    def of(cls, queries: Mapping[str, Sequence[WanOperator]]) -> OperatorGraph:
        """Return the graph of some queries' operators; operators of one name must be equal."""
        operators: dict[str, WanOperator] = {}
        for query, needed in queries.items():
            for operator in needed:
                if operators.setdefault(operator.name, operator) != operator:
                    raise PlanError(f"two different operators are named {operator.name!r}, one of query {query!r}")
        return cls(operators, {q: tuple(o.name for o in needed) for q, needed in queries.items()})

    def join(self, other: OperatorGraph) -> OperatorGraph:
        """Return the graph with the queries of another; operators of one name are equal, which the caller ensures."""
        queries = {**self.queries, **other.queries}
        return OperatorGraph({**self.operators, **other.operators}, queries, frozenset(queries))

    def unshare(self) -> OperatorGraph:
        """Return the same queries with nothing shared but the sources."""
        return OperatorGraph.of({q: [self._rename(n, q) for n in names] for q, names in self.queries.items()})

    def _rename(self, name: str, query: str) -> WanOperator:
        found = self.operators[name]
        if not found.inputs:
            return found
        inputs = (i if not self.operators[i].inputs else f"{query}: {i}" for i in found.inputs)
        return replace(found, name=f"{query}: {name}", inputs=tuple(inputs))


def operators_of(
    state: SharingState, statistics: Statistics, topology: Topology, *, as_run: bool = False
) -> OperatorGraph:
    """Return the graph of shared queries.

    It has a source and a partial aggregation per fragment and site, merges of partials where the routes of sites meet,
    and per query the derivation of its answer and its sink.
    """
    return OperatorGraph.of({n: query_operators(state, n, statistics, topology, as_run=as_run) for n in state.queries})


def query_operators(
    state: SharingState, query: str, statistics: Statistics, topology: Topology, *, as_run: bool = False
) -> list[WanOperator]:
    """Return the operators of one query.

    With `as_run` each is pinned to where a run has it: partials at their sites, or for a light site at the next one
    that computes, and merges on the route.
    """
    fragment = state.derivations[query].fragment
    demand = state.fragments[fragment]
    asked = state.queries[query]
    sites = asked.demand.source.sites
    sources = [
        WanOperator(f"read {demand.source.stream} at {s}", (), statistics.raw_bytes_per_s(demand.source.stream, s), s)
        for s in sites
    ]
    partials = [
        WanOperator(
            f"aggregate {fragment} of {s}",
            (source.name,),
            statistics.partial_bytes_per_s(demand, s),
            _evaluated_at(s, asked.sink, topology) if as_run else None,
        )
        for s, source in zip(sites, sources, strict=True)
    ]
    merges = _Merging(fragment, demand, statistics, as_run).tree(
        dict(zip(sites, partials, strict=True)), asked.sink, topology
    )
    at = asked.sink if as_run else None
    answer = WanOperator(f"answer {query}", (merges[-1].name,), statistics.answer_bytes_per_s(asked), at)
    return [*sources, *partials, *merges, answer, WanOperator(f"publish {query}", (answer.name,), 0.0, asked.sink)]


def _evaluated_at(site: str, sink: str, topology: Topology) -> str:
    """Return where a run evaluates the records of a site: there, or at the next one on the route that computes."""
    if site in topology.compute_sites:
        return site
    return next((end for _, end in topology.required_route(site, sink) if end in topology.compute_sites), sink)


@dataclass(frozen=True)
class _Part:
    """Partials on their route: who produces them, of which sites, and how these were merged, as text."""

    operator: WanOperator
    sites: tuple[str, ...]
    label: str


@dataclass
class _Merging:
    """The merges of one fragment, inputs first.

    The name of a merge contains the tree below it, so that queries whose routes meet in the same way share it; in a run
    it contains the site too.
    """

    fragment: str
    demand: FragmentDemand
    statistics: Statistics
    as_run: bool
    made: list[WanOperator] = field(default_factory=list)

    def tree(self, partials: Mapping[str, WanOperator], sink: str, topology: Topology) -> list[WanOperator]:
        """Return at least one merge: one at every site before the sink where partials meet, the farthest first.

        `partials` are those that a query wants, by their sites.
        """
        arriving = {s: [_Part(operator, (s,), s)] for s, operator in partials.items()}
        for site in sites_on_routes(tuple(partials), sink, topology):
            here = arriving.pop(site)
            going = here[0] if len(here) == 1 else self._merge(here, site)
            arriving.setdefault(_next(site, sink, topology), []).append(going)
        last = [part for parts in arriving.values() for part in parts]
        if len(last) > 1 or not self.made:
            self._merge(last, sink)
        return self.made

    def _merge(self, parts: list[_Part], at: str) -> _Part:
        parts = sorted(parts, key=lambda part: part.label)  # whichever way they come, it is the same merge
        sites = tuple(s for p in parts for s in p.sites)
        label = f"({' + '.join(p.label for p in parts)})"
        flat = not self.made and len(sites) == len(self.demand.source.sites)
        name = merge_name(self.fragment) if flat else f"{merge_name(self.fragment)} {label}"
        name, site = (f"{name} at {at}", at) if self.as_run else (name, None)
        rate = self.statistics.merged_bytes_per_s(self.demand, sites)
        self.made.append(WanOperator(name, tuple(p.operator.name for p in parts), rate, site))
        return _Part(self.made[-1], sites, label)


def merge_name(fragment: str) -> str:
    """Return the common beginning of the names of all merges of a fragment."""
    return f"merge {fragment}"


def sites_on_routes(origins: Sequence[str], sink: str, topology: Topology) -> list[str]:
    """Return every site on the routes from the origins to the sink, without the sink, the farthest from it first."""
    found: dict[str, int] = {}
    for site in origins:
        while site != sink and site not in found and topology.route(site, sink) is not None:
            found[site] = len(topology.required_route(site, sink))
            site = _next(site, sink, topology)
    return sorted(found, key=lambda s: (-found[s], s))


def _next(site: str, sink: str, topology: Topology) -> str:
    return topology.required_route(site, sink)[0][1]
