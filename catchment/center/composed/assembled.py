"""The result tables of a view whose windows are assembled from slices: sessions, growing windows, calendar periods.

The slices are the published rows of a query of their own, with their states; here they are merged into the rows of
windows. A row belongs to the slice that its window ends in, and a revision has the rows of that slice that changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.arrays import Floats, Ints, Mask
from catchment.center.composed.tables import ComposedTables
from catchment.center.events import Compose, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import flatten_states, instants, recalled_schema
from catchment.center.results.newest_rows import newest_revisions
from catchment.query.assembly import Assembly, Sessions
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.plan_nodes import FIRST_INSTANT, LAST_INSTANT
from catchment.timeline import Window

_SESSION = "_session"  # beside partials: the number of the session that they are of


@dataclass(frozen=True)
class AssembledTables(ComposedTables):
    """The tables of one such view; its lower view are its slices."""

    assembly: Assembly | None = None

    def _evaluate(self, revisions: Mapping[int, int]) -> pa.Table:
        rows = self._lower_rows(revisions)
        if rows is None:
            return self.fragment.schema.empty_table()
        states = flatten_states(rows)
        names = [SLICE_COLUMN if name == WINDOW_COLUMN else name for name in states.column_names]
        return states.rename_columns(names).select(self.fragment.schema.names).cast(self.fragment.schema)

    def _recall_before(self, due: Sequence[Compose]) -> pa.Table:
        """Return the rows of windows before these revisions, so that a repeated enactment sees what it saw before."""
        schema = recalled_schema(self.fragment)
        limits = {c.window.start_us: c.revision for c in due}
        found = self.read_rows(["window_start", "revision", "state"], pa.array(sorted(limits), pa.int64()))
        if found is None:
            return schema.empty_table()
        starts = found["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        is_before = pc.less(found["revision"], pa.array([limits[start] for start in starts], pa.int32()))
        return flatten_states(newest_revisions(found.filter(is_before))).cast(schema)

    def _window_rows(self, window: Window, slices: pa.Table) -> pa.Table:
        keys = list(self.fragment.key_names)
        return assemble(self._assembly, window, slices, keys, self.fragment.aggregates)

    def _rows_of(self, compose: Compose, slices: pa.Table, before: pa.Table) -> pa.Table:
        rows = super()._rows_of(compose, slices, before)
        old = before.filter(pc.equal(before[WINDOW_COLUMN], compose.window.start_us)).select(rows.column_names)
        return _changed_rows(rows, old, self.fragment.key_names)

    def _lower(self, revision: Publish) -> tuple[pa.Table, dict[str, Floats]]:
        """Lower the rows, each with the bounds of its own window."""
        lowered, sampled = super()._lower(revision)
        bounds = window_bounds(self._assembly, revision.window, lowered)
        for name, column in zip(("window_start", "window_end"), bounds, strict=True):
            lowered = lowered.set_column(lowered.column_names.index(name), name, column)
        return lowered, sampled

    @property
    def _assembly(self) -> Assembly:
        assert self.assembly is not None
        return self.assembly


def _changed_rows(rows: pa.Table, old: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows that are not among the old ones."""
    if not old.num_rows:
        return rows
    known = {tuple(row[key] for key in keys): row for row in old.to_pylist()}
    is_new = [known.get(tuple(row[key] for key in keys)) != row for row in rows.to_pylist()]
    return rows.filter(pa.array(is_new, pa.bool_()))


def assemble(
    assembly: Assembly, window: Window, slices: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> pa.Table:
    """Return (keys..., states...) of the windows that end in one slice, from partials of the slices around it."""
    if isinstance(assembly, Sessions):
        first_us: int | None = window.start_us - assembly.lookback_us
    else:
        first_us = assembly.start_us(window.start_us)
    if first_us is None:
        return slices.slice(0, 0).drop_columns([SLICE_COLUMN])
    at = slices[SLICE_COLUMN]
    inside = pc.and_(pc.greater_equal(at, first_us), pc.less(at, window.end_us + assembly.lookahead_us))
    rows = slices.filter(inside)
    if isinstance(assembly, Sessions):
        rows = _number_sessions(assembly, window, rows, keys)
        keys = [*keys, _SESSION]
    merged = partials.combine(rows.drop_columns([SLICE_COLUMN]), keys, aggregates) if rows.num_rows else rows
    return merged.drop_columns([c for c in (SLICE_COLUMN, _SESSION) if c in merged.column_names])


def _number_sessions(sessions: Sessions, window: Window, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the parts of the sessions whose last record is in a slice, each with the number of its session."""
    codes, _ = partials.number_groups(rows, keys)
    starts_us = np.asarray(partials.one_array(rows[SLICE_COLUMN]))
    order = np.lexsort((starts_us, codes))
    rows, codes, starts_us = rows.take(pa.array(order)), codes[order], starts_us[order]
    first_us, last_us = (_instants_of(rows, f"{name}__{end}") for name, end in _ENDS)
    begins: Mask = np.ones(rows.num_rows, dtype=np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (first_us[1:] - last_us[:-1] >= sessions.gap_us)
    numbers = np.cumsum(begins) - 1
    ends_in = np.zeros(int(numbers[-1]) + 1 if rows.num_rows else 0, dtype=np.int64)
    ends_in[numbers] = starts_us  # later slices win
    rows = rows.append_column(_SESSION, pa.array(numbers))
    return rows.filter(pa.array(ends_in[numbers] == window.start_us, pa.bool_()))


_ENDS = ((FIRST_INSTANT, "min"), (LAST_INSTANT, "max"))


def _instants_of(rows: pa.Table, state: str) -> Ints:
    return np.asarray(partials.one_array(rows[state].cast(pa.timestamp("us")).cast(pa.int64())))


def window_bounds(assembly: Assembly, window: Window, lowered: pa.Table) -> tuple[pa.Array, pa.Array]:
    """Return where the window of each row begins and ends."""
    if not isinstance(assembly, Sessions):
        start_us = assembly.start_us(window.start_us)
        assert start_us is not None, "rows belong to slices that windows end in"
        return instants(start_us, lowered.num_rows), instants(window.end_us, lowered.num_rows)
    first_us, last_us = (_instants_of(lowered, name) for name in (FIRST_INSTANT, LAST_INSTANT))
    return instants(first_us.tolist()), instants((last_us + assembly.gap_us).tolist())
