"""What is deployed: the sharing that runs, and what must still be known of what no longer runs.

A project is deployed when it first runs, and brought up to date with its views at every later run. Queries are added
and dropped while everything runs; each change gives another value. Invariants: adding or dropping a query leaves the
derivations of all others as they were, unless they are planned again with it, which moves some; the name of
a fragment (it ends with the version that began it) or of a dropped query is never used again, because what was sent and
published under it would be mistaken for something else.
The name of a view can be: its next definition is another query (`catchment.query.definition_names`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import lcm

from catchment.errors import PlanError
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.optimizer.sharing.fragment_sites import sharing_at_sites
from catchment.optimizer.sharing.renewal import earliest_starts, queries_to_renew
from catchment.optimizer.sharing.share import BytesOf, SharingState
from catchment.project.site_orders import SiteOrders
from catchment.query.definition_names import definition_name, number_of, view_of
from catchment.query.fragment import Fragment
from catchment.query.view_start import ViewStart
from catchment.query.window_repair import WindowRepair
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, SECOND_US, START_OF_TIME_US

# Definitions of ended fragments are kept, so that segments of them that are still in flight are accepted and ignored.
# Beyond this many the oldest are forgotten, and such a segment would be refused.
MAX_RETIRED = 1_000
# Fragments that queries have left are computed until their windows are final. While there are so many, nothing moves.
MAX_LEAVING = 12
MAX_HANDOVER_US = 600 * SECOND_US  # of event time; for longer nobody waits for slices that start together


# version 3 has starts, 4 definitions, 5 renewals, 6 repairs, 7 handovers, 8 sinks, 9 hops, hops_of and hubs
@stored(
    version=9,
    migrations={
        1: lambda fields: fields | {"orders": SiteOrders()},
        2: dict,
        3: dict,
        4: dict,
        5: dict,
        6: dict,
        7: dict,
        8: dict,
    },
)
@dataclass(frozen=True)
class Deployed:
    """The sharing in force, its version, and its past.

    `sinks` has what is deployed for each site beside the center at which views are answered, with a version of its own;
    a change of one is a new version of the whole. Orders to sites are those of the whole.
    """

    sharing: SharingState
    version: int = 1
    begun: tuple[str, ...] = ()  # fragments that were begun during a run: each site reports from which instant on
    submitted: Mapping[str, str] = field(default_factory=dict)  # views that came by `submit`, with their SQL
    dropped: tuple[str, ...] = ()
    retired: Mapping[str, FragmentDemand] = field(default_factory=dict)  # ended; segments may still be in flight
    leaving: Mapping[str, int | None] = field(default_factory=dict)  # fragment -> until which instant it is wanted
    orders: SiteOrders = field(default_factory=SiteOrders)
    starts: Mapping[str, ViewStart] = field(default_factory=dict)  # fragments that begin in the past, and where
    definitions: Mapping[str, int] = field(default_factory=dict)  # views with more than one, and how many those are
    renewals: Mapping[str, int] = field(default_factory=dict)  # query -> how often its fragment was renewed
    repairs: Mapping[str, WindowRepair] = field(default_factory=dict)  # by the view that computes windows again
    handovers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # fragment -> those that end where it begins
    sinks: Mapping[str, Deployed] = field(default_factory=dict)
    hops: Mapping[str, str] = field(default_factory=dict)  # sites that were moved to another next site than is declared
    hops_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # fragments begun since -> hops of that time
    hubs: tuple[str, ...] = ()  # sites that others were ever moved to

    def with_sinks(self, sinks: Mapping[str, Deployed]) -> Deployed:
        """Return the deployment with this deployed at other sinks; a new version, if that is something else."""
        known = {sink: deployed.version for sink, deployed in self.sinks.items()}
        if known == {sink: deployed.version for sink, deployed in sinks.items()}:
            return replace(self, sinks=sinks)
        return replace(self, sinks=sinks, version=self.version + 1)

    def at_sink(self, sink: str) -> Deployed:
        """Return what is deployed at a sink beside the center, under the orders of the whole; nothing if it is new."""
        known = self.sinks.get(sink) or Deployed(SharingState(self.sharing.strength))
        return replace(known, orders=self.orders)

    def add(self, query: SharedQuery, sql: str | None = None, bytes_of: BytesOf | None = None) -> Deployed:
        """Return the deployment with one more query.

        Where `bytes_of` says what fragments send, all queries are planned again with it if that pays, and those that
        change their fragment move; else what runs for others is not changed.
        """
        definition = query.view or query.name
        view = view_of(definition)
        if definition != self.next_name(view) and definition not in self.views:  # the other side of a join may be there
            raise PlanError(
                f"a query {definition!r} was dropped, and its answers are kept",
                hint=f"answers of two queries under one name could not be told apart: name it {self.next_name(view)!r}",
            )
        number = number_of(definition)
        definitions = self.definitions if number == 1 else {**self.definitions, view: number}
        submitted = self.submitted if sql is None else {**self.submitted, view: sql}
        named = replace(
            self,
            submitted=submitted,
            definitions=definitions,
            dropped=tuple(n for n in self.dropped if n != view),
        )
        may_move = query.start is None and self.may_move and query.name not in self.sharing.queries
        if bytes_of is not None and may_move:
            # A query that begins in the past is not moved: who follows both changes at once would not read its past.
            target = self.sharing.plan_again(query, bytes_of, self.leaving, self.starts)
            if target is not None:
                wanted = {f: d for f, d in target.fragments.items() if f not in self.leaving or target.users(f)}
                return named.move(replace(target, fragments=wanted))
        sharing = self.sharing.add(query, self.leaving, f"_{self.version + 1}")
        new = tuple(f for f in sharing.fragments if f not in self.sharing.fragments)
        starts = self.starts if query.start is None else {**self.starts, **dict.fromkeys(new, query.start)}
        return replace(
            named,
            sharing=sharing,
            begun=(*self.begun, *new),
            starts=starts,
            hops_of=self._with_hops(new),
            version=self.version + 1,
        )

    def add_composed(self, definition: str, sql: str) -> Deployed:
        """Return the deployment with one more view that reads another one: nothing is sent for it."""
        view = view_of(definition)
        number = number_of(definition)
        return replace(
            self,
            submitted={**self.submitted, view: sql},
            definitions=self.definitions if number == 1 else {**self.definitions, view: number},
            dropped=tuple(n for n in self.dropped if n != view),
            version=self.version + 1,
        )

    def query_name(self, view: str) -> str:
        """Return the name of a view's newest definition."""
        return definition_name(view, self.definitions.get(view, 1))

    def next_name(self, view: str) -> str:
        """Return the name of the definition that a view would get now: a new one, if it has or had one."""
        number = self.definitions.get(view, 1)
        was_used = view in self.dropped or view in self.submitted or self.query_name(view) in self.views
        return definition_name(view, number + was_used)

    def drop(self, name: str) -> Deployed:
        """Return the deployment without a query, or without its sides; what nobody else needs ends.

        A view that reads another one has none. What computes windows of it again ends with it.
        """
        repairing = next((n for n, repair in self.repairs.items() if repair.view == name), None)
        if repairing is not None:
            return self.drop(repairing).drop(name)
        sharing = self.sharing
        for part in self.parts(name):
            sharing = sharing.drop(part)
        left = {f: self.sharing.fragments[f] for f in self.leaving}
        view = view_of(name)
        submitted = {n: sql for n, sql in self.submitted.items() if n != view}
        repairs = {n: repair for n, repair in self.repairs.items() if n != name}
        changed = replace(
            self, submitted=submitted, dropped=(*self.dropped, view), repairs=repairs, version=self.version + 1
        )
        return changed._with({**left, **sharing.fragments}, sharing)

    def move(self, target: SharingState) -> Deployed:
        """Return the same queries over the fragments of another sharing.

        Fragments that no query uses any more end when the windows that they feed are final. Those whose queries all go
        to one fragment that begins now hand over to it: each site ends the one where it begins the other. Nothing
        moves before every site has done that.
        """
        if self.is_handing_over:
            return self
        names = {f: self._name_for(f, demand) for f, demand in target.fragments.items()}
        fragments = {names[f]: demand for f, demand in target.fragments.items()}
        derivations = {q: replace(d, fragment=names[d.fragment]) for q, d in target.derivations.items()}
        new = tuple(f for f in fragments if f not in self.sharing.fragments)
        left = {f: None for f in self.sharing.fragments if f not in fragments}
        kept = {f: self.sharing.fragments[f] for f in left}
        sharing = replace(target, fragments={**kept, **fragments}, derivations=derivations)
        return replace(
            self,
            sharing=sharing,
            begun=(*self.begun, *new),
            leaving={**left, **self.leaving},
            handovers={**self.handovers, **self._find_handovers(left, new, sharing)},
            hops_of=self._with_hops(new),
            version=self.version + 1,
        )

    def reroute(self, hops: Mapping[str, str], moved: Collection[str]) -> Deployed:
        """Return the deployment with these next sites, of those that have others than are declared.

        `moved` are all sites whose routes are others than before. What comes from one of them is computed by a new
        fragment from the next slice on, which takes the new route; the old one ends where it always went. One that
        begins in the past stays on its route: who follows both changes at once would not read its past.
        """
        if not self.may_move or self.repairs or dict(hops) == dict(self.hops):
            return self
        olds = [
            name
            for name, demand in self.lasting.fragments.items()
            if name not in self.starts and not set(moved).isdisjoint(demand.source.sites)
        ]
        names = {old: f"{old}_{self.version + 1}" for old in olds}
        fragments = {names.get(f, f): d for f, d in self.lasting.fragments.items()}
        derivations = {
            q: replace(d, fragment=names.get(d.fragment, d.fragment)) for q, d in self.sharing.derivations.items()
        }
        there = replace(self, hops=dict(hops), hubs=tuple(sorted({*self.hubs, *hops.values()})))
        if not names:
            return replace(there, version=self.version + 1)
        kept = {f: self.sharing.fragments[f] for f in self.leaving}
        target = replace(self.sharing, fragments={**kept, **fragments}, derivations=derivations)
        return there._begin_instead(names, target)

    def _begin_instead(self, names: Mapping[str, str], target: SharingState) -> Deployed:
        """Return the deployment in which fragments hand over to others that compute the same, old name -> new."""
        sharing = replace(target, fragments={**target.fragments, **{f: self.sharing.fragments[f] for f in names}})
        left = dict.fromkeys(names)
        new = tuple(names.values())
        return replace(
            self,
            sharing=sharing,
            begun=(*self.begun, *new),
            leaving={**left, **self.leaving},
            handovers={**self.handovers, **self._find_handovers(left, new, sharing)},
            hops_of=self._with_hops(new),
            version=self.version + 1,
        )

    def _with_hops(self, begun: Iterable[str]) -> dict[str, Mapping[str, str]]:
        """Return the hops of fragments, with some that begin now."""
        return {**self.hops_of, **(dict.fromkeys(begun, self.hops) if self.hops else {})}

    def _find_handovers(
        self, left: Collection[str], new: Collection[str], sharing: SharingState
    ) -> dict[str, tuple[str, ...]]:
        """Return the fragments that begin now, each with those that are left and hand over to it.

        Both have a slice that starts at the same instant at least every `MAX_HANDOVER_US`: nobody waits for longer.
        """
        found: dict[str, tuple[str, ...]] = {}
        for old in left:
            users = [q for q in self.sharing.users(old) if q in sharing.derivations]
            heirs = {sharing.derivations[q].fragment for q in users}
            if len(heirs) == 1 and heirs <= set(new):
                (heir,) = heirs
                found[heir] = (*found.get(heir, ()), old)
        return {heir: olds for heir, olds in found.items() if _period_us(sharing, (heir, *olds)) <= MAX_HANDOVER_US}

    @property
    def is_handing_over(self) -> bool:
        """Whether some site may not have begun a fragment yet that others hand over to."""
        ends = [self.leaving.get(old, START_OF_TIME_US) for olds in self.handovers.values() for old in olds]
        return any(end_us is None or end_us == END_OF_TIME_US for end_us in ends)

    @property
    def may_move(self) -> bool:
        """Whether queries may change their fragments now: one handover at a time, and not while much was left."""
        return len(self.leaving) < MAX_LEAVING and not self.is_handing_over

    @property
    def begun_after(self) -> dict[str, tuple[str, ...]]:
        """The fragments that were begun during a run, each with those that end where it begins."""
        return {name: self.handovers.get(name, ()) for name in self.begun}

    def renew(
        self, streams: Collection[str], sites: Collection[str], starts: Mapping[str, ViewStart | None]
    ) -> Deployed:
        """Return the deployment in which all that is answered from some streams at some sites is computed again.

        That is done by new fragments. Each is as the one before, under a name of its own: whatever is still on its way
        of the old one cannot be mistaken for it. `starts` says from where on each query is to be computed again; None:
        with what comes. The queries that share a fragment, and the sides of a join, go together.
        """
        renewed = queries_to_renew(self.sharing, self.leaving, streams, sites)
        gone = {self.derivation(q).fragment for q in renewed}
        left = {f for f in self.leaving if self.sharing.fragments[f].source.stream in streams}
        names = {f: f"{f}_{self.version + 1}" for f in self.sharing.fragments if f in gone}
        fragments = {names.get(f, f): d for f, d in self.sharing.fragments.items() if f not in left}
        derivations = {
            q: replace(d, fragment=names.get(d.fragment, d.fragment)) for q, d in self.sharing.derivations.items()
        }
        changed = replace(self, version=self.version + 1)._with(
            fragments, replace(self.sharing, derivations=derivations)
        )
        return replace(
            changed,
            begun=(*changed.begun, *names.values()),
            hops_of=changed._with_hops(names.values()),
            starts={**changed.starts, **earliest_starts(renewed, derivations, starts)},
            renewals={**self.renewals, **{q: self.renewals.get(q, 0) + 1 for q in renewed}},
        )

    def repair(self, name: str, repair: WindowRepair) -> Deployed:
        """Return the deployment in which a view computes windows of another one again, and nothing beyond them."""
        ends = {self.derivation(part).fragment: repair.until_us for part in self.parts(name)}
        return replace(self, repairs={**self.repairs, name: repair}, leaving={**self.leaving, **ends})

    def with_ends(self, ends: Mapping[str, int]) -> Deployed:
        """Return the deployment with the instants until which the fragments that are being left are wanted."""
        known = {f: ends.get(f, until) for f, until in self.leaving.items()}
        return self if known == self.leaving else replace(self, leaving=known, version=self.version + 1)

    def retire(self, needed: frozenset[str]) -> Deployed:
        """Return the deployment without those fragments that were left and are no longer needed."""
        over = [f for f in self.leaving if f not in needed and not self.sharing.users(f)]
        if not over:
            return self
        fragments = {f: d for f, d in self.sharing.fragments.items() if f not in over}
        return replace(self, version=self.version + 1)._with(fragments, self.sharing)

    @property
    def lasting(self) -> SharingState:
        """The sharing without the fragments that are being left."""
        fragments = {f: d for f, d in self.sharing.fragments.items() if f not in self.leaving}
        return replace(self.sharing, fragments=fragments)

    def with_orders(self, orders: SiteOrders) -> Deployed:
        """Return the deployment with other orders of sites."""
        return replace(self, orders=orders, version=self.version + 1)

    def with_sites(self, planned: Iterable[SharedQuery]) -> Deployed:
        """Return the deployment with queries over the sites of their newest plans; fragments keep their names."""
        sharing = sharing_at_sites(self.sharing, planned)
        is_same = sharing.queries == self.sharing.queries and sharing.fragments == self.sharing.fragments
        return replace(self, sharing=sharing, version=self.version + (not is_same))

    @property
    def known(self) -> dict[str, Fragment]:
        """Every fragment of which something may land."""
        ended = {n: replace(d.fragment(), name=n) for n, d in self.retired.items()}
        return {**ended, **{n: self.sharing.fragment(n) for n in self.sharing.fragments}}

    def parts(self, view: str) -> tuple[str, ...]:
        """Return the queries that a view is: itself, or the sides of its join."""
        return tuple(n for n, q in self.sharing.queries.items() if view in (n, q.view))

    @property
    def views(self) -> tuple[str, ...]:
        """Everything that is answered: the newest definition of each view."""
        return tuple(dict.fromkeys(q.view or n for n, q in self.sharing.queries.items()))

    def derivation(self, query: str) -> Derivation:
        return self.sharing.derivations[query]

    @property
    def strength(self) -> Strength:
        return self.sharing.strength

    def _name_for(self, name: str, demand: FragmentDemand) -> str:
        """Return the running fragment of a demand, or a new name."""
        is_used = name not in self.leaving or bool(self.sharing.users(name))
        if self.sharing.fragments.get(name) == demand and is_used:
            return name
        running = [n for n, d in self.sharing.fragments.items() if d == demand and n not in self.leaving]
        return running[0] if running else f"{name}_{self.version + 1}"

    def _with(self, fragments: Mapping[str, FragmentDemand], sharing: SharingState) -> Deployed:
        """Return the same with another sharing and these fragments; those that are gone are retired."""
        over = {f: d for f, d in self.sharing.fragments.items() if f not in fragments}
        retired = dict([*self.retired.items(), *over.items()][-MAX_RETIRED:])
        return replace(
            self,
            sharing=replace(sharing, fragments=fragments),
            begun=tuple(f for f in self.begun if f not in over),
            starts={f: start for f, start in self.starts.items() if f not in over},
            retired=retired,
            hops_of={f: hops for f, hops in self.hops_of.items() if f in fragments or f in retired},
            leaving={f: until for f, until in self.leaving.items() if f not in over},
            handovers={
                heir: tuple(old for old in olds if old not in over)
                for heir, olds in self.handovers.items()
                if heir not in over
            },
        )


def _period_us(sharing: SharingState, names: Collection[str]) -> int:
    """Return after how long the slices of some fragments start together again."""
    return lcm(*(sharing.fragments[name].slicing.period_us for name in names))
