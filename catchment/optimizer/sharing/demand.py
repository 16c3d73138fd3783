"""A demand: what a query needs of a stream's partials, in normal form, without the names that the query uses.

Two demands are comparable when they read the same stream through the same look-ups. Keys and aggregates are named by
what they compute, so the union of two demands never confuses them. An aggregate is replaced by its *atoms*, so that
each state is carried once: avg is a sum and a count, all variances and deviations are one kind of state, so are
correlations and regressions, quantiles of one sketch are that sketch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import pyarrow as pa

from catchment.aggregates import Aggregate, make_aggregate, quote
from catchment.aggregates.covariation import COVARIANCES, Covariation
from catchment.aggregates.percentiles import Percentile
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.aggregates.simple import AllOrAny, Average
from catchment.aggregates.sketches import SketchAggregate
from catchment.aggregates.spread import Spread
from catchment.aggregates.topk import ApproxTopK
from catchment.aggregates.value_by import ValueBy
from catchment.optimizer.normal_form.expressions import normal_text
from catchment.optimizer.normal_form.normalize import aggregate_name, digest, key_name, normalize
from catchment.project.routes import Routes
from catchment.query.catalog import Catalog
from catchment.query.fragment import Explode, Fragment, Key, Lookup
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import Filter, describe_aggregate, describe_window, find
from catchment.query.sql.view_options import QUARANTINE, ViewOptions
from catchment.query.view_start import ViewStart
from catchment.storage.codec import stored
from catchment.timeline import Slicing, WindowSpec

TEXT_BYTES = 16  # assumed size of a text, whose width is not declared
SKETCH_BYTES = 512  # assumed size of a sketch of few values; a full one takes some thousands


def _without_slack(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 3 of version 2, in which a fragment waited for late records by one contract."""
    return {name: value for name, value in fields.items() if name != "slack"}


# version 2 has on_error, version 4 explodes, version 5 comes_by, version 6 sink
@stored(version=6, migrations={1: dict, 2: _without_slack, 3: dict, 4: dict, 5: dict})
@dataclass(frozen=True)
class DemandSource:
    """A stream with its look-ups: what two demands must have in common to be shared, but for the sites.

    `sites` are those whose records are wanted, of those where the stream is born. `comes_by` has all of the latter,
    each with the neighbour of the center by which its partials arrive: what comes by one is merged before, and is not
    told apart.
    `types` are the types of its columns, by their texts. `policy` is in it because a fragment leaves its site by one
    policy, `on_error` because the records that it takes depend on it; each is empty where the query does not ask for
    it. How long a query waits is not: a fragment has a mark per query. `sink` is the site beside the center that it is
    sent to, and empty for the center: what one of them is sent, the others are not.
    """

    stream: str
    event_time: str
    sites: tuple[str, ...]
    lookups: tuple[Lookup, ...] = ()
    types: tuple[tuple[str, pa.DataType], ...] = ()
    policy: str = ""
    on_error: str = ""
    explodes: tuple[Explode, ...] = ()
    comes_by: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    sink: str = ""

    @cached_property
    def at_any_site(self) -> DemandSource:
        """The same, whichever sites it is read at."""
        return replace(self, sites=(), comes_by=())

    def unite_sites(self, other: DemandSource) -> DemandSource:
        """Return it read at the sites of both."""
        if set(other.sites) <= set(self.sites):
            return self
        if set(self.sites) <= set(other.sites):
            return other
        wanted = {*self.sites, *other.sites}
        ordered = [site for site, _ in (*self.comes_by, *other.comes_by) if site in wanted]
        return replace(self, sites=tuple(dict.fromkeys((*ordered, *sorted(wanted)))))

    def can_leave_out(self, sites: Collection[str]) -> bool:
        """Return whether the center can tell its own sites from the others among these."""
        if not self.site_set.issubset(sites):
            return False
        by = self._neighbour_of
        wanted = self._neighbours
        return not by or not any(by.get(site, site) in wanted for site in sites if site not in self.site_set)

    @cached_property
    def site_set(self) -> frozenset[str]:
        """Its sites, to look one up."""
        return frozenset(self.sites)

    @cached_property
    def _neighbour_of(self) -> Mapping[str, str]:
        return dict(self.comes_by)

    @cached_property
    def _neighbours(self) -> frozenset[str]:
        """The neighbours of the center by which its sites come."""
        return frozenset(self._neighbour_of.get(site, site) for site in self.sites)

    @property
    def name_end(self) -> str:
        """What the names of its fragments end with, so that those for different sinks differ."""
        return f"_at_{self.sink}" if self.sink else ""

    @property
    def adds_rows(self) -> bool:
        """Whether a record may become several rows, or none, before conditions are looked at."""
        return bool(self.lookups or self.explodes)

    @property
    def max_errors(self) -> int | None:
        """How many failing records per window are set aside; None where the first one suspends the fragment."""
        return int(self.on_error.rpartition(" ")[2]) if self.on_error else None

    @cached_property
    def type_of(self) -> Mapping[str, pa.DataType]:
        return dict(self.types)

    @cached_property
    def texts(self) -> frozenset[str]:
        """The columns that hold texts."""
        return frozenset(c for c, t in self.types if pa.types.is_string(t) or pa.types.is_large_string(t))


@stored()
@dataclass(frozen=True)
class FragmentDemand:
    """Keys, atoms, windows and conditions over a source; but for sites, tuples are sorted: equal demands are equal."""

    source: DemandSource
    keys: tuple[Key, ...]
    aggregates: tuple[Aggregate, ...]
    windows: tuple[WindowSpec, ...]
    conditions: tuple[str, ...] = ()

    @cached_property
    def by_sql(self) -> Mapping[str, Key]:
        """The keys by the texts of their expressions."""
        return {k.sql: k for k in self.keys}

    @cached_property
    def slicing(self) -> Slicing:
        return Slicing.of(self.windows)

    @cached_property
    def fingerprint(self) -> str:
        return self._digest(self.source.sites)

    @cached_property
    def content(self) -> str:
        """What it computes, whichever sites it is read at."""
        return self._digest(())

    def _digest(self, sites: Sequence[str]) -> str:
        lookups = (f"{k.how} {k.table} {k.alias} {k.on}" for k in self.source.lookups)
        return digest(
            [
                self.source.stream,
                *sites,
                *lookups,
                *(str(explode) for explode in self.source.explodes),
                "keys",
                *(k.sql for k in self.keys),
                "aggregates",
                *(describe_aggregate(a) for a in self.aggregates),
                "windows",
                *(describe_window(w) for w in self.windows),
                "where",
                *self.conditions,
                *([self.source.policy] if self.source.policy else []),
                *([self.source.on_error] if self.source.on_error else []),
            ]
        )

    @property
    def name(self) -> str:
        """A name that depends on the contents alone."""
        return f"{self.source.stream}_{self.fingerprint[:8]}{self.source.name_end}"

    def at_sites_of(self, others: Iterable[FragmentDemand]) -> FragmentDemand:
        """Return the demand at the sites where others want it, of those where it is."""
        wanted = {site for other in others for site in other.source.sites}
        left = tuple(site for site in self.source.sites if site in wanted)
        return self if left == self.source.sites else replace(self, source=replace(self.source, sites=left))

    def fragment(self) -> Fragment:
        """Return the fragment that a site runs for the demand."""
        where = " AND ".join(f"({c})" for c in self.conditions) if len(self.conditions) > 1 else None
        return Fragment(
            self.name,
            self.source.stream,
            self.source.event_time,
            self.keys,
            self.aggregates,
            self.windows,
            where or next(iter(self.conditions), None),
            self.source.lookups,
            self.source.explodes,
        )


@stored(version=2, migrations={1: dict})  # version 2 has start
@dataclass(frozen=True)
class SharedQuery:
    """A query as sharing sees it: its name, where its answers are wanted, its own fragment, and its demand.

    With a `start` it begins in the past, and so with a fragment of its own if others run already.
    """

    name: str
    sink: str
    own: Fragment
    demand: FragmentDemand
    key_of: Mapping[str, str]  # its own key names to the names in the demand
    result_bytes: int = 0  # size of one row of its answers
    has_contract: bool = False
    view: str = ""  # the view that it is a side of, if it is one
    start: ViewStart | None = None

    @property
    def window(self) -> WindowSpec:
        return self.own.windows[0]


def queries_of_plan(plan: QueryPlan, catalog: Catalog) -> tuple[SharedQuery, ...]:
    """Return a planned view as sharing sees it: one query, or those of its sides."""
    found = tuple(query_of_plan(side, catalog) for side in plan.sides)
    return found if plan.sides == (plan,) else tuple(replace(q, view=plan.name) for q in found)


def query_of_plan(plan: QueryPlan, catalog: Catalog) -> SharedQuery:
    """Return a planned view of one stream as sharing sees it."""
    normal = normalize(plan)
    atoms = {a.name: a for given in plan.aggregate.aggregates for a in atoms_of(given)}
    keys = {k.name: k for k in normal.aggregate.keys}
    conditions = next((f.conditions for f in find(normal.root, Filter)), ())
    demand = FragmentDemand(
        _source(normal, catalog),
        tuple(sorted(keys.values(), key=lambda k: k.name)),
        tuple(atoms[n] for n in sorted(atoms)),
        (plan.window,),
        conditions,
    )
    names = {own.name: key_name(replace(own, sql=normal_text(own.sql))) for own in plan.aggregate.keys}
    width = sum(width_of(c.type) for c in plan.columns)
    contract = plan.options.max_error is not None
    return SharedQuery(
        plan.name, plan.root.site, plan.fragment, demand, names, width, contract, start=plan.options.start
    )


def _source(normal: QueryPlan, catalog: Catalog) -> DemandSource:
    fragment = normal.fragment
    owners = {fragment.stream: catalog.streams[fragment.stream].columns}
    owners |= {k.alias: catalog.tables[k.table].readable_columns for k in fragment.lookups}
    types = {f"{quote(owner)}.{quote(c.name)}": c.type for owner, columns in owners.items() for c in columns}
    types |= {f"{quote(e.alias)}.{quote(name)}": type_ for e in fragment.explodes for name, type_ in e.columns}
    scan = normal.scan
    ordered = tuple(sorted(types.items(), key=str))
    policy = normal.options.policy or ""
    if policy == catalog.project.defaults.policy:
        policy = ""  # the default is the same policy whether it is named or not
    return DemandSource(
        scan.stream,
        scan.event_time,
        scan.sites,
        fragment.lookups,
        ordered,
        policy,
        _on_error(normal.options),
        fragment.explodes,
        tuple(_ways(catalog, scan.stream)),
        catalog.project.sink,
    )


def _ways(catalog: Catalog, stream: str) -> Iterator[tuple[str, str]]:
    """Yield the sites where a stream is born, each with the last on its route to the center."""
    routes = Routes.of(catalog.project)
    for site in catalog.streams[stream].sites or ():
        yield site, routes.sites_on_route(site)[-1] if routes.reaches(site) else site


def atoms_of(aggregate: Aggregate) -> tuple[Aggregate, ...]:
    """Return the aggregates whose states, in order, are those of this one; named by what they compute."""
    normal = replace(aggregate, argument=normal_text(aggregate.argument)) if aggregate.argument else aggregate
    if isinstance(normal, Average):
        parts = [make_aggregate(f, normal.argument, normal.argument_type, name="atom") for f in ("sum", "count")]
    elif isinstance(normal, Spread):
        parts = [replace(normal, function="var_pop")]
    elif isinstance(normal, AllOrAny):
        parts = [make_aggregate(normal.which, normal.argument, normal.argument_type, name="atom")]
    elif isinstance(normal, ValueBy):
        parts = [replace(normal, function=f"{normal.which}_by")]
    elif isinstance(normal, Covariation):
        parts = [replace(normal, function="covar_pop" if normal.function in COVARIANCES else "corr")]
    elif isinstance(normal, ApproxPercentile):
        parts = [replace(normal, ranks=(0.5,), many=False)]
    elif isinstance(normal, Percentile):
        parts = [replace(normal, function="percentile", ranks=(0.5,), many=False)]
    elif isinstance(normal, ApproxTopK):
        parts = [replace(normal, k=1)]
    else:
        parts = [normal]
    return tuple(replace(part, name=aggregate_name(part)) for part in parts)


RECORDS = atoms_of(make_aggregate("count", None, None, name="records"))[0]  # the atom of count(*)


def counted_argument(atom: Aggregate) -> str:
    """Return the expression whose values, with their counts, tell the states of a sketch; empty where none does."""
    is_told = isinstance(atom, SketchAggregate) and atom.takes_counts
    return atom.argument or "" if is_told else ""


def spell_out(demand: FragmentDemand, arguments: Collection[str]) -> FragmentDemand:
    """Return the demand with these expressions as keys, in place of the sketches of their values."""
    replaced = [a for a in demand.aggregates if counted_argument(a) in arguments]
    if not replaced:
        return demand
    keys = {k.name: k for k in demand.keys}
    for atom in replaced:
        assert atom.argument is not None
        if atom.argument not in demand.by_sql:
            key = Key("key", atom.argument, atom.argument_type)
            key = replace(key, name=key_name(key))
            keys[key.name] = key
    atoms = {a.name: a for a in (*demand.aggregates, RECORDS) if a not in replaced}
    return replace(
        demand,
        keys=tuple(keys[n] for n in sorted(keys)),
        aggregates=tuple(atoms[n] for n in sorted(atoms)),
    )


@cache
def width_of(type_: pa.DataType) -> int:
    """Return about how many bytes a value takes on the wire."""
    if pa.types.is_boolean(type_):
        return 1
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return TEXT_BYTES
    if pa.types.is_binary(type_):
        return SKETCH_BYTES
    return int(type_.bit_width) // 8 if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) else TEXT_BYTES


def _on_error(options: ViewOptions) -> str:
    """Return what becomes of failing records, as text; empty where the first one suspends the view."""
    return f"{QUARANTINE} {options.max_errors}" if options.on_error == QUARANTINE else ""
