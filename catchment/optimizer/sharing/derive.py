"""Partials of one fragment from those of another: filter on keys, drop keys, pick states, merge slices.

Law: derive(partials of the shared fragment) = partials of the query's own fragment, for any records of its sites. A
query may want fewer sites than the fragment runs at: the center leaves out what comes of the others. It holds because
aggregates are mergeable, because a condition that is left out of the shared fragment is decided by its keys alone, and
because the shared slices refine the query's. A sketch of a column that is a key of the shared fragment need not be
sent: it is lifted again from the values of that key, each as often as its row counts records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate
from catchment.aggregates import partials as tables
from catchment.aggregates.shed_terms import terms_in
from catchment.aggregates.sketches import SketchAggregate
from catchment.optimizer.normal_form.predicates import can_evaluate, evaluate, implies
from catchment.optimizer.sharing.demand import RECORDS, FragmentDemand, SharedQuery, atoms_of, counted_argument
from catchment.query.fragment import SLICE_COLUMN, Key
from catchment.query.plan_nodes import describe_window
from catchment.storage.codec import stored
from catchment.timeline import MAX_CUTS, Slicing, WindowSpec


@stored(version=2, migrations={1: dict})  # version 2 has lifted
@dataclass(frozen=True)
class Derivation:
    """How a query's partials come from a shared fragment's.

    `conditions` are decided by the shared keys `filter_keys`; `keys` and `states` are pairs (name in the shared
    partials, name in the query's own); `aggregates` and `window` are the query's. `lifted` are pairs (key in the shared
    partials, aggregate of the query's own that is lifted from its values).
    """

    query: str
    fragment: str
    conditions: tuple[str, ...]
    filter_keys: tuple[Key, ...]
    keys: tuple[tuple[str, str], ...]
    states: tuple[tuple[str, str], ...]
    aggregates: tuple[Aggregate, ...]
    window: WindowSpec
    lifted: tuple[tuple[str, str], ...] = ()

    @cached_property
    def slicing(self) -> Slicing:
        """The slices of the query's own windows."""
        return Slicing.of([self.window])

    @cached_property
    def keys_by_sql(self) -> Mapping[str, Key]:
        return {k.sql: k for k in self.filter_keys}


def derive(partials: pa.Table, derivation: Derivation) -> pa.Table:
    """Return the query's own partials, made of a shared fragment's."""
    wanted = partials
    for condition in derivation.conditions:
        wanted = wanted.filter(evaluate(condition, wanted, derivation.keys_by_sql))
    starts = np.asarray(wanted[SLICE_COLUMN], dtype=np.int64)
    columns = {SLICE_COLUMN: pa.array(derivation.slicing.starts_of(starts), pa.int64())}
    columns |= {own: wanted[shared] for shared, own in (*derivation.keys, *derivation.states)}
    keys = (SLICE_COLUMN, *(own for _, own in derivation.keys))
    lifted = {own: shared for shared, own in derivation.lifted}
    given = pa.table(columns)
    merged = tables.combine_fitting(given, keys, [a for a in derivation.aggregates if a.name not in lifted])
    if not lifted:
        return merged
    codes = np.arange(given.num_rows)  # where rows are left as they are, each is a group of its own
    if merged.num_rows < given.num_rows:
        codes, _ = tables.number_groups(given, keys)  # counts up as the rows of `merged` do
    counts = np.asarray(wanted[RECORDS.states[0].name], dtype=np.int64)
    for aggregate in (a for a in derivation.aggregates if a.name in lifted):
        assert isinstance(aggregate, SketchAggregate)
        values = tables.one_array(wanted[lifted[aggregate.name]])
        (state,) = aggregate.lift_counted(values, counts, codes, merged.num_rows)
        merged = merged.append_column(aggregate.states[0].name, state)
    return merged.select([*keys, *(s.name for a in derivation.aggregates for s in a.states)])


def derivation_of(query: SharedQuery, shared: FragmentDemand, name: str) -> Derivation | None:
    """Return how the query's partials come from those of a shared fragment; None where that is not certain."""
    own = query.demand
    if not is_derivable(own, shared):
        return None
    left = tuple(c for c in own.conditions if not implies(shared.conditions, c, own.source.texts))
    used = tuple(k for k in shared.keys if any(k.sql in c for c in left))
    keys = tuple((query.key_of[k.name], k.name) for k in query.own.keys)
    carried = {a.name for a in shared.aggregates}
    lifted = [a for a in query.own.aggregates if atoms_of(a)[0].name not in carried]
    states = tuple(pair for a in query.own.aggregates if a not in lifted for pair in _state_pairs(a))
    sources = tuple((shared.by_sql[counted_argument(atoms_of(a)[0])].name, a.name) for a in lifted)
    return Derivation(query.name, name, left, used, keys, states, query.own.aggregates, query.window, sources)


def is_derivable(own: FragmentDemand, shared: FragmentDemand) -> bool:
    """Return whether every partial of `own` is certainly a merge of partials of `shared`."""
    return reads_part_of(own, shared) and is_told_by(own, shared)


def is_told_by(own: FragmentDemand, shared: FragmentDemand) -> bool:
    """Return whether the partials of `shared` tell those of `own`, of the same sites of the same stream."""
    if not set(own.by_sql) <= set(shared.by_sql):
        return False
    carried = {a.name for a in shared.aggregates}
    if not all(a.name in carried or _is_liftable(a, shared) for a in own.aggregates):
        return False
    if any(t.clustered for t in terms_in(own.aggregates)) and set(own.by_sql) != set(shared.by_sql):
        return False  # a record is in several groups: what is known of each is no measure of them together
    return refines(shared, own) and _filter_fits(own, shared)


def reads_part_of(own: FragmentDemand, shared: FragmentDemand) -> bool:
    """Return whether a demand reads what a shared one reads, at sites that the center can tell from its others."""
    if own.source == shared.source:
        return True
    return own.source.at_any_site == shared.source.at_any_site and own.source.can_leave_out(shared.source.sites)


def _is_liftable(atom: Aggregate, shared: FragmentDemand) -> bool:
    """Return whether the keys of a shared fragment tell the values of a sketch, and how many records have each."""
    if RECORDS.name not in {a.name for a in shared.aggregates} or terms_in(shared.aggregates):
        return False
    key = shared.by_sql.get(counted_argument(atom))
    return key is not None and key.type == atom.argument_type


def _filter_fits(own: FragmentDemand, shared: FragmentDemand) -> bool:
    """Return whether the shared fragment keeps all records of `own`, and its keys tell which others it keeps."""
    texts = own.source.texts
    if not all(implies(own.conditions, c, texts) for c in shared.conditions):
        return False
    return all(implies(shared.conditions, c, texts) or can_evaluate(c, shared.keys) for c in own.conditions)


def refines(fine: FragmentDemand, coarse: FragmentDemand) -> bool:
    """Return whether every slice of `coarse` is a union of slices of `fine`."""
    if set(coarse.windows) <= set(fine.windows):
        return True
    period = lcm(fine.slicing.period_us, coarse.slicing.period_us)
    if period // min(fine.slicing.period_us, coarse.slicing.period_us) * len(coarse.slicing.cuts_us) > MAX_CUTS:
        return False
    return _cuts(coarse.slicing, period) <= _cuts(fine.slicing, period)


def _cuts(slicing: Slicing, period_us: int) -> set[int]:
    return {cut + k for cut in slicing.cuts_us for k in range(0, period_us, slicing.period_us)}


def _state_pairs(own: Aggregate) -> tuple[tuple[str, str], ...]:
    """Return the states of an aggregate's atoms with its own: they are the same, in order."""
    shared = [s for atom in atoms_of(own) for s in atom.states]
    assert [s.type for s in shared] == [s.type for s in own.states]
    return tuple((s.name, o.name) for s, o in zip(shared, own.states, strict=True))


def describe_derivation(derivation: Derivation) -> dict[str, Any]:
    """Return how a query's partials come from a shared fragment, as a JSON document."""
    return {
        "query": derivation.query,
        "where": list(derivation.conditions),
        "keys": {own: shared for shared, own in derivation.keys},
        "states": {own: shared for shared, own in derivation.states},
        "lifted": {own: shared for shared, own in derivation.lifted},
        "window": describe_window(derivation.window),
    }
