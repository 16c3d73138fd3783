"""Sharing of fragments between queries, in four strengths, as a value that queries are added to and dropped from.

Invariants: every query has exactly one derivation, from a fragment that exists; a fragment exists while a query uses
it; adding or dropping a query leaves the derivations of all others as they were. Jonathan, Chandra, Weissman, "Multi-
Query Optimization in Wide-Area Streaming Analytics" (SoCC'18), section 4, calls equal fragments IN-OP sharing; what
one fragment's partials tell of another's goes beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from catchment.errors import PlanError
from catchment.optimizer.demand import Demand, Query
from catchment.optimizer.derive import Derivation, derivation_of, is_derivable
from catchment.optimizer.generalize import generalize
from catchment.options import did_you_mean
from catchment.query.fragment import Fragment

# Above this many groups of a batch, groups are not compared pair by pair any more: each query has found its best
# group when it came, and only merges of whole groups are missed.
MAX_PAIRED_GROUPS = 64

BytesOf = Callable[[Demand], float]


class Strength(StrEnum):
    """How much is shared."""

    NONE = "none"  # nothing
    STRICT = "strict"  # equal fragments are one (IN-OP)
    FULL = "full"  # and what can be derived is not computed again, where that sends fewer bytes
    MAX = "max"  # and whatever can be shared is, without looking at bytes or bandwidth


@dataclass(frozen=True)
class SharingState:
    """Which fragments run, and how each query's partials come from one of them."""

    strength: Strength
    queries: Mapping[str, Query] = field(default_factory=dict)
    fragments: Mapping[str, Demand] = field(default_factory=dict)
    derivations: Mapping[str, Derivation] = field(default_factory=dict)

    def users(self, fragment: str) -> tuple[str, ...]:
        """The queries whose partials come from a fragment: its reference count is their number."""
        return tuple(q for q, d in self.derivations.items() if d.fragment == fragment)

    def fragment(self, name: str) -> Fragment:
        """A fragment as a site runs it."""
        return replace(self.fragments[name].fragment(), name=name)

    def add(self, query: Query) -> SharingState:
        """The state with one query more; what runs for others is used or left alone, never changed."""
        if query.name in self.queries:
            raise PlanError(f"the query {query.name!r} is already there", hint="drop it first, or choose another name")
        derivation = self._reused(query) or self._new(query)
        fragments = self.fragments
        if derivation.fragment not in fragments:
            fragments = {**fragments, derivation.fragment: query.demand}
        return replace(
            self,
            queries={**self.queries, query.name: query},
            fragments=fragments,
            derivations={**self.derivations, query.name: derivation},
        )

    def drop(self, name: str) -> SharingState:
        """The state without a query; a fragment that nobody uses any more ends."""
        if name not in self.queries:
            raise PlanError(f"there is no query {name!r}", hint=did_you_mean(name, self.queries))
        derivations = {q: d for q, d in self.derivations.items() if q != name}
        used = {d.fragment for d in derivations.values()}
        return replace(
            self,
            queries={q: v for q, v in self.queries.items() if q != name},
            fragments={f: d for f, d in self.fragments.items() if f in used},
            derivations=derivations,
        )

    def _new(self, query: Query) -> Derivation:
        name = query.name if self.strength is Strength.NONE else query.demand.name
        derivation = derivation_of(query, query.demand, name)
        assert derivation is not None
        return derivation

    def _reused(self, query: Query) -> Derivation | None:
        """From the least fragment that tells the query's partials, if one does."""
        if self.strength in (Strength.NONE, Strength.STRICT):
            return None  # a fragment named by its contents is found again by that name
        fit = [n for n, shared in self.fragments.items() if is_derivable(query.demand, shared)]
        if not fit:
            return None
        least = min(fit, key=lambda n: (len(self.fragments[n].keys), len(self.fragments[n].aggregates), n))
        return derivation_of(query, self.fragments[least], least)


@dataclass(frozen=True)
class _Group:
    """Queries of a batch that are served by one demand."""

    demand: Demand
    members: tuple[Query, ...]

    def widened(self, other: _Group) -> _Group | None:
        """Both groups in one, or None where not every member could certainly be derived."""
        demand = generalize(self.demand, other.demand)
        if demand is None:
            return None
        unsure = [g for g in (self, other) if g.demand is not demand]
        if not all(is_derivable(m.demand, demand) for g in unsure for m in g.members):
            return None
        return _Group(demand, (*self.members, *other.members))


def share(queries: Iterable[Query], strength: Strength, bytes_of: BytesOf) -> SharingState:
    """The sharing of queries that are planned together, before anything runs.

    `bytes_of` estimates what a fragment sends a second over all its sites. Here, unlike in `add`, a fragment may be
    made finer for several queries at once.
    """
    state = SharingState(strength)
    if strength in (Strength.NONE, Strength.STRICT):
        for query in queries:
            state = state.add(query)
        return state
    groups: list[_Group] = []
    names: set[str] = set()
    for query in queries:
        if query.name in names:
            raise PlanError(f"two queries are named {query.name!r}", hint="names are unique")
        names.add(query.name)
        _place(_Group(query.demand, (query,)), groups, strength, bytes_of)
    _merge_pairs(groups, strength, bytes_of)
    return _as_state(groups, strength)


def _place(new: _Group, groups: list[_Group], strength: Strength, bytes_of: BytesOf) -> None:
    """Put a query in the group where it adds least, or in one of its own where that is less still."""
    wider = [(i, w) for i, g in enumerate(groups) if (w := g.widened(new)) is not None]
    added = {i: bytes_of(w.demand) - bytes_of(groups[i].demand) for i, w in wider}
    best = min(wider, key=lambda pair: added[pair[0]], default=None)
    if best is None or (strength is Strength.FULL and added[best[0]] >= bytes_of(new.demand)):
        groups.append(new)
    else:
        groups[best[0]] = best[1]


def _merge_pairs(groups: list[_Group], strength: Strength, bytes_of: BytesOf) -> None:
    """Merge the pair that saves most, again and again; with strength max, any that can be merged."""
    while 1 < len(groups) <= MAX_PAIRED_GROUPS:
        found = [
            (bytes_of(a.demand) + bytes_of(b.demand) - bytes_of(w.demand), i, j, w)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
            if (w := a.widened(b)) is not None
        ]
        best = max(found, key=lambda f: f[:3], default=None)
        if best is None or (strength is Strength.FULL and best[0] <= 0):
            return
        _, i, j, merged = best
        groups[:] = [g for k, g in enumerate(groups) if k not in (i, j)] + [merged]


def _as_state(groups: list[_Group], strength: Strength) -> SharingState:
    members = {m.name: (m, g.demand) for g in groups for m in g.members}
    derivations: dict[str, Derivation] = {}
    for name, (query, demand) in members.items():
        found = derivation_of(query, demand, demand.name)
        assert found is not None
        derivations[name] = found
    queries = {name: query for name, (query, _) in members.items()}
    return SharingState(strength, queries, {g.demand.name: g.demand for g in groups}, derivations)
