"""The forest of operators in which load is shed: streams at the roots, operators inside, queries at the leaves.

It is validated on construction, so an impossible forest cannot exist: every input is known, there are no cycles, rates
and times are numbers of at least 0, the capacity is above 0. (Babcock et al., section 2.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from catchment.errors import PlanError, QualityError
from catchment.quality.populations import Population
from catchment.shedding.laws import AnyNeed, Law, make_need
from catchment.shedding.strata import group_needs

WHOLE = ""  # the one stratum of a stream that is not stratified
_SHARES_TOLERANCE = 1e-6  # how far the shares of strata may be from 1 in all
_HINTS = {
    "rate": "a rate is in tuples per second",
    "selectivity": "a selectivity is tuples out per tuple in",
    "seconds_per_tuple": "0.000002 is two microseconds per tuple",
}


@dataclass(frozen=True)
class StreamNode:
    """A stream: its tuples per second, and, where it may be sampled by group, the share of each group."""

    name: str
    rate: float
    strata: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        _check_amount(self.rate, "rate", self.where)
        for name, share in self.strata:
            _check_amount(share, f"share of stratum {name!r}", self.where)
        total = math.fsum(share for _, share in self.strata)
        if self.strata and abs(total - 1.0) > _SHARES_TOLERANCE:
            raise PlanError(f"the shares of the strata add up to {total:g}, not to 1", where=self.where)

    @property
    def where(self) -> str:
        return f"stream {self.name!r}"

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """Return (stratum, share of the stream); one whole where there are no strata."""
        return self.strata or ((WHOLE, 1.0),)


@dataclass(frozen=True)
class OperatorNode:
    """An operator: what it reads, how many tuples come out per tuple that goes in, and what one costs.

    `picks` is the share of its input's tuples that it wants, where that can be decided before its input runs: an
    operator all of whose readers pick need not run on what none of them wants.
    """

    name: str
    input: str
    selectivity: float
    seconds_per_tuple: float
    picks: float = 1.0

    def __post_init__(self) -> None:
        _check_amount(self.selectivity, "selectivity", self.where)
        if not 0.0 <= self.picks <= 1.0:
            raise PlanError(f"what it picks is a share between 0 and 1, not {self.picks!r}", where=self.where)
        _check_amount(self.seconds_per_tuple, "seconds_per_tuple", self.where)

    @property
    def where(self) -> str:
        return f"operator {self.name!r}"


@dataclass(frozen=True)
class QueryNode:
    """A windowed aggregate at a leaf; `population` is that of the window's tuples that reach it.

    `weight` says how much worse an error of this query is than one of another. `max_error` is its contract: it is
    exceeded only when no other query can be sampled more. `groups` are its populations per group, by the names of its
    stream's strata; `mass` is the share of records whose groups the contract is about.
    """

    name: str
    input: str
    aggregate: str
    population: Population
    weight: float = 1.0
    max_error: float | None = None
    seconds_per_tuple: float = 0.0
    groups: tuple[tuple[str, Population], ...] = ()
    mass: float = 1.0

    def __post_init__(self) -> None:
        _check_amount(self.seconds_per_tuple, "seconds_per_tuple", self.where)
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise PlanError(f"a weight is a number above 0, not {self.weight!r}", where=self.where)
        if self.max_error is not None and not (math.isfinite(self.max_error) and self.max_error > 0):
            hint = "leave max_error out for a query without a contract"
            raise PlanError(f"max_error is above 0, not {self.max_error!r}", where=self.where, hint=hint)

    @property
    def where(self) -> str:
        return f"query {self.name!r}"

    def needs(self, strata: Iterable[str], delta: float, law: Law = Law.HOEFFDING) -> dict[str, tuple[AnyNeed, ...]]:
        """Return what the query needs of each stratum: that of all its groups, where the stream has no strata."""
        if not self.groups:
            alone = (make_need(law, self.aggregate, self.population, delta),)
            return dict.fromkeys(strata, alone)
        by_group = group_needs(self.aggregate, dict(self.groups), delta, self.mass, law)
        by_stratum = {name: (need,) for name, need in by_group.items()}
        return {s: tuple(by_group.values()) if s == WHOLE else by_stratum.get(s, ()) for s in strata}


Node = StreamNode | OperatorNode | QueryNode


@dataclass(frozen=True)
class ShedForest:
    """The nodes, the capacity in seconds of work per second, and delta, the chance of a miss that each query allows.

    `law` is that by which errors follow from rates.
    """

    capacity: float
    delta: float
    streams: tuple[StreamNode, ...]
    operators: tuple[OperatorNode, ...]
    queries: tuple[QueryNode, ...]
    where: str = field(default="plan", compare=False)
    law: Law = Law.HOEFFDING

    def __post_init__(self) -> None:
        if not (math.isfinite(self.capacity) and self.capacity > 0):
            hint = "capacity is in seconds of work per second: 1.0 is one core"
            raise PlanError(f"the capacity is a number above 0, not {self.capacity!r}", where=self.where, hint=hint)
        if not 0.0 < self.delta < 1.0:
            hint = "0.01 lets an answer miss its bound once in a hundred windows"
            raise PlanError(f"delta is a chance between 0 and 1, not {self.delta!r}", where=self.where, hint=hint)
        self._check_names()
        self._check_inputs()
        self._check_grounded()
        for query in self.queries:
            self._check_groups(query)

    def _check_names(self) -> None:
        seen: dict[str, str] = {}
        every: tuple[Node, ...] = (*self.streams, *self.readers)
        for node in every:
            if not node.name:
                raise PlanError("a stream, operator or query has no name", where=self.where)
            if node.name in seen:
                raise PlanError(f"the name {node.name!r} is used twice", where=f"{seen[node.name]} and {node.where}")
            seen[node.name] = node.where
        if not self.queries:
            raise PlanError("there are no queries, so there is nothing to answer", where=self.where)

    def _check_inputs(self) -> None:
        possible = {s.name for s in self.streams} | {o.name for o in self.operators}
        for node in self.readers:
            if node.input in possible:
                continue
            fault = f"its input {node.input!r} is not known" if node.input else "it reads nothing: it has no input"
            hint = f"an input is a stream or an operator: {', '.join(sorted(possible)) or 'there is none'}"
            raise PlanError(fault, where=node.where, hint=hint)

    def _check_grounded(self) -> None:
        """Follow the inputs to a stream; meeting an operator twice is a cycle."""
        by_name = {o.name: o for o in self.operators}
        grounded = {s.name for s in self.streams}
        for operator in self.operators:
            path: list[str] = []
            at = operator.name
            while at not in grounded:
                if at in path:
                    cycle = " <- ".join([*path[path.index(at) :], at])
                    hint = "every operator must lead back to a stream"
                    fault = f"the operators feed on each other: {cycle}"
                    raise PlanError(fault, where=by_name[at].where, hint=hint)
                path.append(at)
                at = by_name[at].input
            grounded.update(path)

    def _check_groups(self, query: QueryNode) -> None:
        try:
            query.needs((WHOLE,), self.delta)
        except QualityError as error:  # an unknown aggregate, an impossible mass
            raise PlanError(error.message, where=query.where, hint=error.hint) from error
        strata = {name for name, _ in self.stream_of[query.name].strata}
        unknown = sorted({name for name, _ in query.groups} - strata)
        if strata and unknown:
            hint = f"the strata of its stream are {', '.join(sorted(strata))}"
            raise PlanError(f"its group {unknown[0]!r} is no stratum", where=query.where, hint=hint)

    @cached_property
    def readers(self) -> tuple[OperatorNode | QueryNode, ...]:
        """Return all nodes that have an input."""
        return (*self.operators, *self.queries)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Return every stream, operator and query by name."""
        return {node.name: node for node in (*self.streams, *self.readers)}

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """Return the readers of each stream and operator."""
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.readers:
            readers[node.input].append(node.name)
        return {name: tuple(names) for name, names in readers.items()}

    @cached_property
    def picked_from(self) -> frozenset[str]:
        """Return the operators some of whose readers pick."""
        return frozenset(o.input for o in self.operators if o.picks < 1.0)

    def picks(self, name: str) -> float:
        """Return the share of its input's tuples that a reader wants."""
        node = self.nodes[name]
        return node.picks if isinstance(node, OperatorNode) else 1.0

    @cached_property
    def downward(self) -> tuple[str, ...]:
        """Return all names, each after what it reads."""
        order = [s.name for s in self.streams]
        for name in order:  # grows while it is walked
            order.extend(self.children[name])
        return tuple(order)

    @cached_property
    def stream_of(self) -> Mapping[str, StreamNode]:
        """Return the stream at the root of each node's tree."""
        roots: dict[str, StreamNode] = {}
        for name in self.downward:
            node = self.nodes[name]
            roots[name] = node if isinstance(node, StreamNode) else roots[node.input]
        return roots

    def strata(self, name: str) -> tuple[tuple[str, float], ...]:
        """Return (stratum, share) of the stream that feeds a node."""
        return self.stream_of[name].shares

    @cached_property
    def needs(self) -> Mapping[tuple[str, str], tuple[AnyNeed, ...]]:
        """Return what each query needs of each stratum of its stream."""
        found: dict[tuple[str, str], tuple[AnyNeed, ...]] = {}
        for query in self.queries:
            strata = [stratum for stratum, _ in self.strata(query.name)]
            found |= {(query.name, s): needs for s, needs in query.needs(strata, self.delta, self.law).items()}
        return found

    @cached_property
    def volumes(self) -> Mapping[str, float]:
        """Return the tuples per second that reach each node when nothing is shed."""
        into: dict[str, float] = {}
        for name in self.downward:
            node = self.nodes[name]
            if isinstance(node, StreamNode):
                into[name] = node.rate
                continue
            above = self.nodes[node.input]
            into[name] = into[above.name] * (above.selectivity if isinstance(above, OperatorNode) else 1.0)
        return into

    @cached_property
    def weights(self) -> Mapping[str, float]:
        """Return the load of each node when nothing is shed: its term of the load equation (equation 1)."""
        return {name: self.volumes[name] * _seconds(self.nodes[name]) for name in self.downward}

    @cached_property
    def load(self) -> float:
        """Return the load when nothing is shed."""
        return math.fsum(self.weights.values())


def _seconds(node: Node) -> float:
    return 0.0 if isinstance(node, StreamNode) else node.seconds_per_tuple


def _check_amount(value: float, what: str, where: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        hint = _HINTS.get(what, "a share is between 0 and 1")
        raise PlanError(f"the {what} is a number of at least 0, not {value!r}", where=where, hint=hint)
