"""The operators of queries as a graph to be placed: what each reads, what it gives, where it must be.

An operator's name is its signature: equal names are equal work on equal inputs, whoever asked for it. A source is
pinned to the site of its stream, an answer's sink to the site that wants it; what is between may run at any site that
can compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from catchment.errors import PlanError
from catchment.optimizer.share import SharingState
from catchment.optimizer.statistics import Statistics


@dataclass(frozen=True)
class Operator:
    """One operator; `rate` is what it gives, in bytes a second; `site` is where it must be, if that is fixed."""

    name: str
    inputs: tuple[str, ...] = ()
    rate: float = 0.0
    site: str | None = None

    def __post_init__(self) -> None:
        if not self.rate >= 0:
            raise PlanError(f"the operator {self.name!r} gives {self.rate} bytes a second", hint="rates are 0 or more")


@dataclass(frozen=True)
class OperatorGraph:
    """Operators by name, and for each query those it needs, inputs before who reads them."""

    operators: Mapping[str, Operator]
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
                    raise PlanError(f"the operator {name!r} of query {query!r} reads {missing[0]!r} before it is there",
                                    hint="operators are listed inputs first, without cycles")  # fmt: skip
                seen.add(name)

    def _operator(self, name: str, query: str) -> Operator:
        if name not in self.operators:
            raise PlanError(f"the query {query!r} needs the operator {name!r}, which there is not")
        return self.operators[name]

    @classmethod
    def of(cls, queries: Mapping[str, Sequence[Operator]]) -> OperatorGraph:
        """The graph of some queries' operators; operators of one name must be equal."""
        operators: dict[str, Operator] = {}
        for query, needed in queries.items():
            for operator in needed:
                if operators.setdefault(operator.name, operator) != operator:
                    raise PlanError(f"two different operators are named {operator.name!r}, one of query {query!r}")
        return cls(operators, {q: tuple(o.name for o in needed) for q, needed in queries.items()})

    def join(self, other: OperatorGraph) -> OperatorGraph:
        """With the queries of another graph; operators of one name must be equal, which the caller has seen to."""
        queries = {**self.queries, **other.queries}
        return OperatorGraph({**self.operators, **other.operators}, queries, frozenset(queries))

    def apart(self) -> OperatorGraph:
        """The same queries with nothing in common but the sources."""
        return OperatorGraph.of({q: [self._renamed(n, q) for n in names] for q, names in self.queries.items()})

    def _renamed(self, name: str, query: str) -> Operator:
        found = self.operators[name]
        if not found.inputs:
            return found
        inputs = (i if not self.operators[i].inputs else f"{query}: {i}" for i in found.inputs)
        return replace(found, name=f"{query}: {name}", inputs=tuple(inputs))


def operators_of(state: SharingState, statistics: Statistics) -> OperatorGraph:
    """The graph of shared queries: per fragment and site a source and a partial aggregation, a merge of the sites'
    partials, and per query the derivation of its answer and its sink."""
    return OperatorGraph.of({name: query_operators(state, name, statistics) for name in state.queries})


def query_operators(state: SharingState, query: str, statistics: Statistics) -> list[Operator]:
    """The operators of one query."""
    fragment = state.derivations[query].fragment
    demand, asked = state.fragments[fragment], state.queries[query]
    sites = demand.source.sites
    sources = [Operator(f"read {demand.source.stream} at {s}", (), statistics.raw(demand.source.stream, s), s)
               for s in sites]  # fmt: skip
    partials = [
        Operator(f"aggregate {fragment} of {s}", (source.name,), statistics.partials(demand, s))
        for s, source in zip(sites, sources, strict=True)
    ]
    merge = Operator(f"merge {fragment}", tuple(p.name for p in partials), statistics.merged(demand))
    answer = Operator(f"answer {query}", (merge.name,), statistics.answers(asked))
    return [*sources, *partials, merge, answer, Operator(f"publish {query}", (answer.name,), 0.0, asked.sink)]
