"""What a process knows must be what its journal says: checked at random points of a simulated run, for every role.

A process that ends goes on from its newest snapshot and the entries since. Both are read here as a process would that
starts now, beside the one that runs, and the two states are compared, field by field. A state that was changed beside
the journal, or by something that is not in it (a clock, the layout of a table in memory), would be another one after a
restart; and what is sent then under numbers that were sent already would not be what was sent.

Of the partials of open slices at the center the meaning is compared: what their records come to, per slice and key.
When they are merged, and so the form in which they are written, depends on who has asked for them; and the last digits
of a sum of fractions depend on the order in which it was made.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.aggregates import Aggregate
from catchment.aggregates.partials import number_groups, one_array
from catchment.center.core import CenterCore
from catchment.center.running_query import QueryState
from catchment.center.shards.parts import is_parts
from catchment.center.windows.state import WindowsState
from catchment.errors import AggregateError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.relay.core import RelayCore
from catchment.site.core import SiteCore
from catchment.storage.codec import stored_fields
from catchment.storage.host import Host
from catchment.storage.journal import JournalFiles, read_document

AnyCore = SiteCore | RelayCore | CenterCore

LEFT_OUT = {(WindowsState, "slices")}  # fields of which only the keys are compared as they are
TOLERANCE = 1e-9  # of numbers that are compared by their meaning
_NOTHING = object()

_Meaning = dict[str, list[Any]]  # key, as text -> the values of the aggregates


def find_replay_differences(host: Host[Any, Any]) -> list[str]:
    """Return what a process would know otherwise if it ended now and started again."""
    assert isinstance(host.core, SiteCore | RelayCore | CenterCore)
    replayed = _make_alike(host.core)
    files = JournalFiles.find(host.journal.folder)
    snapshot = files.snapshot()
    if snapshot is not None:
        replayed.restore(snapshot.core)
    for body, path in files.bodies():
        entry = read_document(body, path)
        replayed.handle_all(entry.events, entry.now_us)
    return list(_differences("state", host.core.snapshot(), replayed.snapshot()))


def _make_alike(core: AnyCore) -> AnyCore:
    """Return a core that was just started, with the settings of another."""
    match core:
        case SiteCore():
            return SiteCore(core.limits)
        case RelayCore():
            return RelayCore(core.wait_us, core.site.limits, core.name)
        case _:
            return CenterCore()


def _differences(place: str, live: Any, replayed: Any) -> Iterator[str]:
    """Yield where two states differ, and in what."""
    live, replayed = _plain(live), _plain(replayed)
    if type(live) is not type(replayed):
        yield f"{place} is {_short(live)}, and after a replay {_short(replayed)}"
    elif is_dataclass(live):
        if isinstance(live, QueryState):
            yield from _slice_differences(f"{place}.windows.slices", live, replayed)
        for name in stored_fields(type(live)):
            one, other = getattr(live, name), getattr(replayed, name)
            is_left_out = (type(live), name) in LEFT_OUT
            yield from _differences(f"{place}.{name}", *((list(one), list(other)) if is_left_out else (one, other)))
    elif isinstance(live, Mapping):
        yield from _mapping_differences(place, live, replayed)
    elif isinstance(live, Sequence | deque) and not isinstance(live, str | bytes):
        for number, (one, other) in enumerate(zip_longest(live, replayed, fillvalue=_NOTHING)):
            yield from _differences(f"{place}[{number}]", one, other)
    elif not _is_equal(live, replayed):
        yield f"{place} is {_short(live)}, and after a replay {_short(replayed)}"


def _slice_differences(place: str, live: QueryState, replayed: QueryState) -> Iterator[str]:
    """Yield the open slices of a query whose partials mean something else."""
    for slice_us, tables in live.windows.slices.items():
        one = _meaning_of(tables, live.query.fragment)
        other = _meaning_of(replayed.windows.slices.get(slice_us, []), live.query.fragment)
        if one is not None and other is not None and not _is_close(one, other):
            yield f"{place}[{slice_us!r}] is {_short(one)}, and after a replay {_short(other)}"


def _meaning_of(tables: Sequence[pa.Table], fragment: Fragment) -> _Meaning | None:
    """Return what partials come to per key; None where a sum does not fit, or they lie elsewhere."""
    if any(is_parts(table) for table in tables):
        return None
    keys = [SLICE_COLUMN, *fragment.key_names]
    together = pa.concat_tables(tables, promote_options="permissive") if tables else fragment.schema.empty_table()
    codes, first = number_groups(together, keys)
    found = [repr(list(row.values())) for row in together.select(keys).take(pa.array(first)).to_pylist()]
    try:
        values = [_values_of(aggregate, together, codes, len(first)) for aggregate in fragment.aggregates]
    except AggregateError:
        return None
    return {key: list(row) for key, row in zip(found, zip(*values, strict=True), strict=True)}


def _values_of(aggregate: Aggregate, table: pa.Table, codes: Any, size: int) -> list[Any]:
    """Return the values of an aggregate, merged also where a row is alone: a pairing has nulls for the other side."""
    states = [one_array(table[state.name]) for state in aggregate.states]
    return list(aggregate.lower(aggregate.combine(states, codes, size)).to_pylist())


def _is_close(one: Any, other: Any) -> bool:
    """Return whether two values are equal, up to the last digits of numbers in them."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or repr(one) == repr(other)
    return bool(one == other)


def _plain(value: Any) -> Any:
    """Return a number of numpy as it is stored."""
    return value.item() if isinstance(value, np.generic) else value


def _mapping_differences(place: str, live: Mapping[Any, Any], replayed: Mapping[Any, Any]) -> Iterator[str]:
    if list(live) != list(replayed):  # their order is that of what is sent
        yield f"{place} has the keys {_short(list(live))}, and after a replay {_short(list(replayed))}"
        return
    for key, value in live.items():
        yield from _differences(f"{place}[{key!r}]", value, replayed[key])


def _is_equal(live: Any, replayed: Any) -> bool:
    if isinstance(live, pa.Table):
        return live.schema == replayed.schema and repr(live.to_pylist()) == repr(replayed.to_pylist())
    if isinstance(live, np.ndarray):
        is_alike = live.dtype == replayed.dtype and live.shape == replayed.shape
        return is_alike and np.array_equal(live, replayed, equal_nan=live.dtype.kind == "f")
    if isinstance(live, Set):
        return bool(live == replayed)
    return bool(live == replayed) or repr(live) == repr(replayed)  # NaN differs from itself


def _short(value: Any) -> str:
    text = repr(value.to_pylist() if isinstance(value, pa.Table) else value)
    return text if len(text) <= 200 else f"{text[:200]}..."
