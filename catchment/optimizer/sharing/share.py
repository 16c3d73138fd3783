"""Sharing of fragments between queries, in four strengths; adding or dropping a query gives another value.

Invariants: every query has exactly one derivation, from a fragment that exists and runs at all its sites; a fragment
exists while a query uses it, and runs at the sites that its queries want; adding or dropping a query leaves the
derivations of all others as they were. Jonathan, Chandra, Weissman, "Multi-Query Optimization in Wide-Area Streaming
Analytics" (SoCC'18), section 4, calls equal fragments IN-OP sharing, and what queries of different sites have in common
partial-input sharing; deriving the partials of one fragment from another's goes beyond both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from catchment.errors import PlanError
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery
from catchment.optimizer.sharing.derive import Derivation, derivation_of, is_derivable, is_told_by, reads_part_of
from catchment.optimizer.sharing.generalize import generalizations
from catchment.project.options import did_you_mean
from catchment.query.fragment import Fragment
from catchment.storage.codec import stored

# Most groups of one stream that are compared pair by pair. With more, only merges of whole groups are missed, because
# each query was put into its best group when it was added.
MAX_PAIRED_GROUPS = 32
LEAST_GAIN = 0.1  # share of the present bytes per second that a better plan must save
MAX_WIDENED = 8  # how many groups, the most similar first, a query of a batch tries to widen
MAX_REPLANNED = 32  # running queries that are planned again when one comes

BytesOf = Callable[[FragmentDemand], float]


stored()(Strength)  # a sharing state holds one; commands offer it without importing storage


@stored()
@dataclass(frozen=True)
class SharingState:
    """Which fragments run, and how each query's partials come from one of them."""

    strength: Strength
    queries: Mapping[str, SharedQuery] = field(default_factory=dict)
    fragments: Mapping[str, FragmentDemand] = field(default_factory=dict)
    derivations: Mapping[str, Derivation] = field(default_factory=dict)

    def users(self, fragment: str) -> tuple[str, ...]:
        """Return the queries whose partials come from a fragment."""
        return tuple(q for q, d in self.derivations.items() if d.fragment == fragment)

    def fragment(self, name: str) -> Fragment:
        """Return a fragment as a site runs it."""
        return replace(self.fragments[name].fragment(), name=name)

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", Strength(self.strength))

    def add(self, query: SharedQuery, leave: Collection[str] = (), suffix: str = "") -> SharingState:
        """Return the state with one more query; what runs for others is used or left alone, never changed.

        Fragments to `leave` are about to end and serve no new query; the name of a new fragment ends with the suffix. A
        query that begins in the past gets a fragment of its own: what others have merged of theirs is not known by key.
        """
        if query.name in self.queries:
            raise PlanError(f"the query {query.name!r} is already there", hint="drop it first, or choose another name")
        reused = self._reuse(query, leave) if query.start is None else None
        derivation = reused or self._new(query, suffix)
        fragments = self.fragments
        if derivation.fragment not in fragments:
            fragments = {**fragments, derivation.fragment: query.demand}
        return replace(
            self,
            queries={**self.queries, query.name: query},
            fragments=fragments,
            derivations={**self.derivations, query.name: derivation},
        )

    def plan_again(
        self, query: SharedQuery, bytes_of: BytesOf, leave: Collection[str] = (), fixed: Collection[str] = ()
    ) -> SharingState | None:
        """Return the sharing of all queries and one more, planned together; None if that does not pay.

        Where a running fragment serves the query, nothing is changed. Queries of `fixed` fragments stay where they
        are, and so do those of the fragments least like the query, where there are many queries. A query that changes
        its fragment is sent twice for about one window; a tenth of what begins anew is added to what a plan sends,
        which spreads that over ten windows.
        """
        if self.strength in (Strength.NONE, Strength.STRICT) or self._reuse(query, leave) is not None:
            return None
        running = {name: d for name, d in self.fragments.items() if name not in leave and self.users(name)}
        known = _Batch(self.strength, bytes_of)
        movable = self._most_similar(query, [name for name in running if name not in fixed])
        queries = [self.queries[q] for name in movable for q in self.users(name)]
        found = share([*queries, query], self.strength, known.bytes_of)
        now = sum(known.bytes_of(running[name]) for name in movable) + known.bytes_of(query.demand)
        begun = [d for d in found.fragments.values() if d not in running.values()]
        then = sum(map(known.bytes_of, found.fragments.values())) + LEAST_GAIN * sum(map(known.bytes_of, begun))
        return self._replace(movable, found) if then < now else None

    def _most_similar(self, query: SharedQuery, names: Collection[str]) -> list[str]:
        """Return the fragments most like a query, those that have at most `MAX_REPLANNED` users together."""
        chosen: list[str] = []
        users = 0
        for name in sorted(names, key=lambda n: _distance(self.fragments[n], query.demand)):
            users += len(self.users(name))
            if users > MAX_REPLANNED:
                break
            chosen.append(name)
        return chosen

    def _replace(self, names: Collection[str], other: SharingState) -> SharingState:
        """Return the state with the queries and fragments of another one in place of some fragments."""
        fragments = {f: d for f, d in self.fragments.items() if f not in names}
        return replace(
            self,
            queries={**self.queries, **other.queries},
            fragments={**fragments, **other.fragments},
            derivations={**self.derivations, **other.derivations},
        )

    def drop(self, name: str) -> SharingState:
        """Return the state without a query; a fragment that nobody uses any more ends."""
        if name not in self.queries:
            raise PlanError(f"there is no query {name!r}", hint=did_you_mean(name, self.queries))
        queries = {q: v for q, v in self.queries.items() if q != name}
        derivations = {q: d for q, d in self.derivations.items() if q != name}
        users: dict[str, list[FragmentDemand]] = {}
        for query, derivation in derivations.items():
            users.setdefault(derivation.fragment, []).append(queries[query].demand)
        # It ends at sites that only the dropped query wanted, for good: it never begins under its name again there.
        fragments = {f: d.at_sites_of(users[f]) for f, d in self.fragments.items() if f in users}
        return replace(self, queries=queries, fragments=fragments, derivations=derivations)

    def _new(self, query: SharedQuery, suffix: str) -> Derivation:
        demand = query.demand
        name = query.name + demand.source.name_end if self.strength is Strength.NONE else demand.name
        derivation = derivation_of(query, demand, name + suffix)
        assert derivation is not None
        return derivation

    def _reuse(self, query: SharedQuery, leave: Collection[str]) -> Derivation | None:
        """Return the derivation from the smallest running fragment that serves the query, if one does."""
        serving = [n for n, demand in self.fragments.items() if n not in leave and self._serves(demand, query.demand)]
        if not serving:
            return None
        least = min(serving, key=lambda n: (len(self.fragments[n].keys), len(self.fragments[n].aggregates), n))
        return derivation_of(query, self.fragments[least], least)

    def _serves(self, shared: FragmentDemand, own: FragmentDemand) -> bool:
        if self.strength is Strength.NONE:
            return False
        if self.strength is Strength.STRICT:
            return replace(own, source=shared.source) == shared and reads_part_of(own, shared)
        return is_derivable(own, shared)


@dataclass(frozen=True)
class _Group:
    """Queries of a batch that are served by one demand."""

    demand: FragmentDemand
    members: tuple[SharedQuery, ...]


def share(queries: Iterable[SharedQuery], strength: Strength, bytes_of: BytesOf) -> SharingState:
    """Return the sharing of queries that are planned together, before anything runs.

    `bytes_of` estimates the bytes per second that a fragment sends from all its sites. Unlike in `add`, one fragment
    may be widened for several queries at once.
    """
    if strength is Strength.NONE:
        return _share_nothing(queries)
    if strength is Strength.STRICT:
        state = SharingState(strength)
        for query in queries:
            state = state.add(query)
        return state
    batch = _Batch(strength, bytes_of)
    names: set[str] = set()
    for query in queries:
        if query.name in names:
            raise PlanError(f"two queries are named {query.name!r}", hint="names are unique")
        names.add(query.name)
        batch.place(_Group(query.demand, (query,)))
    batch.merge_pairs()
    return _as_state(batch.groups, strength)


@dataclass
class _Batch:
    """Groups under construction; what a demand sends is estimated once."""

    strength: Strength
    estimate: BytesOf
    groups: list[_Group] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)
    told: dict[tuple[str, str], bool] = field(default_factory=dict)  # whether one content tells another
    of_stream: dict[str, list[int]] = field(default_factory=dict)  # where the groups of each stream are

    def bytes_of(self, demand: FragmentDemand) -> float:
        if demand.fingerprint not in self.known:
            self.known[demand.fingerprint] = self.estimate(demand)
        return self.known[demand.fingerprint]

    def is_derivable(self, own: FragmentDemand, shared: FragmentDemand) -> bool:
        """Return whether a demand is derivable from another; what depends on their contents is found out once."""
        key = own.content, shared.content
        if key not in self.told:
            is_same = own.source.at_any_site == shared.source.at_any_site
            self.told[key] = is_same and is_told_by(own, shared)
        return self.told[key] and own.source.can_leave_out(shared.source.sites)

    def widen(self, one: _Group, other: _Group) -> _Group | None:
        """Return both groups in one that sends least, or None where not every member could certainly be derived."""
        members = (*one.members, *other.members)
        possible = [
            demand
            for demand in generalizations(one.demand, other.demand)
            if all(self.is_derivable(m.demand, demand) for m in members)
        ]
        return _Group(min(possible, key=self.bytes_of), members) if possible else None

    def place(self, new: _Group) -> None:
        """Put a query into the group where it adds least, or into one of its own where that adds even less."""
        peers = self.of_stream.setdefault(new.demand.source.stream, [])
        for i in peers:
            group = self.groups[i]
            if self.is_derivable(new.demand, group.demand):
                self.groups[i] = _Group(group.demand, (*group.members, *new.members))
                return
        like = sorted(peers, key=lambda i: _distance(self.groups[i].demand, new.demand))
        wider = [(i, w) for i in like[:MAX_WIDENED] if (w := self.widen(self.groups[i], new)) is not None]
        added = {i: self.bytes_of(w.demand) - self.bytes_of(self.groups[i].demand) for i, w in wider}
        best = min(wider, key=lambda pair: added[pair[0]], default=None)
        if best is None or (self.strength is Strength.FULL and added[best[0]] >= self.bytes_of(new.demand)):
            peers.append(len(self.groups))
            self.groups.append(new)
        else:
            self.groups[best[0]] = best[1]

    def merge_pairs(self) -> None:
        """Merge pairs of each stream that has not too many groups."""
        merged: list[_Group] = []
        for peers in self.of_stream.values():
            groups = [self.groups[i] for i in peers]
            merged += groups if len(groups) > MAX_PAIRED_GROUPS else self._merge_pairs_of(groups)
        self.groups = merged

    def _merge_pairs_of(self, groups: list[_Group]) -> list[_Group]:
        """Merge the pair that saves most, again and again; with strength max, any that can be merged."""
        live = dict(enumerate(groups))
        pairs = {(i, j): self._pair(live[i], live[j]) for i in live for j in live if j < i}
        while True:
            found = [(saved, pair, w) for pair, (saved, w) in pairs.items() if w is not None]
            best = max(found, key=lambda f: f[:2], default=None)
            if best is None or (self.strength is Strength.FULL and best[0] <= 0):
                break
            gone = set(best[1])
            new = max(live) + 1
            live = {i: g for i, g in live.items() if i not in gone}
            pairs = {p: v for p, v in pairs.items() if not gone & set(p)}
            pairs |= {(new, i): self._pair(best[2], g) for i, g in live.items()}
            live[new] = best[2]
        return list(live.values())

    def _pair(self, a: _Group, b: _Group) -> tuple[float, _Group | None]:
        """Return the bytes per second that one group for both saves, and that group."""
        wider = self.widen(a, b)
        if wider is None:
            return 0.0, None
        return self.bytes_of(a.demand) + self.bytes_of(b.demand) - self.bytes_of(wider.demand), wider


def _share_nothing(queries: Iterable[SharedQuery]) -> SharingState:
    """Return the state in which every query has a fragment of its own."""
    empty = SharingState(Strength.NONE)
    found = {query.name: query for query in queries}
    derivations = {name: empty.add(query).derivations[name] for name, query in found.items()}
    fragments = {derivations[name].fragment: query.demand for name, query in found.items()}
    return replace(empty, queries=found, fragments=fragments, derivations=derivations)


def _distance(left: FragmentDemand, right: FragmentDemand) -> int:
    """Return how different two demands are, by the keys, conditions and windows that only one of them has."""
    apart = 1_000 if left.source.at_any_site != right.source.at_any_site else 0
    differing = (set(left.by_sql) ^ set(right.by_sql)) | (set(left.conditions) ^ set(right.conditions))
    return apart + 2 * len(differing) + len(set(left.windows) ^ set(right.windows))


def _as_state(groups: list[_Group], strength: Strength) -> SharingState:
    members = {m.name: (m, g.demand) for g in groups for m in g.members}
    derivations: dict[str, Derivation] = {}
    for name, (query, demand) in members.items():
        found = derivation_of(query, demand, demand.name)
        assert found is not None
        derivations[name] = found
    queries = {name: query for name, (query, _) in members.items()}
    return SharingState(strength, queries, {g.demand.name: g.demand for g in groups}, derivations)
