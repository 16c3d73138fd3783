"""Partials of one fragment from those of another: filter on keys, drop keys, pick states, merge slices.

Law: derive(partials of the shared fragment) = partials of the query's own fragment, for any records. It holds because
aggregates are mergeable, because a condition that is left out of the shared fragment is decided by its keys alone, and
because the shared slices refine the query's.
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
from catchment.optimizer.normal_form.predicates import can_evaluate, evaluate, implies
from catchment.optimizer.sharing.demand import FragmentDemand, SharedQuery, atoms_of
from catchment.query.fragment import SLICE_COLUMN, Key
from catchment.query.plan import describe_window
from catchment.storage.codec import stored
from catchment.timeline import MAX_CUTS, Slicing, WindowSpec


@stored()
@dataclass(frozen=True)
class Derivation:
    """How a query's partials come from a shared fragment's.

    `conditions` are decided by the shared keys `filter_keys`; `keys` and `states` are pairs (name in the shared
    partials, name in the query's own); `aggregates` and `window` are the query's.
    """

    query: str
    fragment: str
    conditions: tuple[str, ...]
    filter_keys: tuple[Key, ...]
    keys: tuple[tuple[str, str], ...]
    states: tuple[tuple[str, str], ...]
    aggregates: tuple[Aggregate, ...]
    window: WindowSpec

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
    return tables.combine_fitting(pa.table(columns), keys, derivation.aggregates)


def derivation_of(query: SharedQuery, shared: FragmentDemand, name: str) -> Derivation | None:
    """Return how the query's partials come from those of a shared fragment; None where that is not certain."""
    own = query.demand
    if not is_derivable(own, shared):
        return None
    left = tuple(c for c in own.conditions if not implies(shared.conditions, c, own.source.texts))
    used = tuple(k for k in shared.keys if any(k.sql in c for c in left))
    keys = tuple((query.key_of[k.name], k.name) for k in query.own.keys)
    states = tuple(pair for a in query.own.aggregates for pair in _state_pairs(a))
    return Derivation(query.name, name, left, used, keys, states, query.own.aggregates, query.window)


def is_derivable(own: FragmentDemand, shared: FragmentDemand) -> bool:
    """Return whether every partial of `own` is certainly a merge of partials of `shared`."""
    if own.source != shared.source or not set(own.by_sql) <= set(shared.by_sql):
        return False
    if not {a.name for a in own.aggregates} <= {a.name for a in shared.aggregates}:
        return False
    return refines(shared, own) and _filter_fits(own, shared)


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
        "window": describe_window(derivation.window),
    }
