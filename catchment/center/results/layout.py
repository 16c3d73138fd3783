"""How rows lie in the tables of results: columns, and the struct of a row's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.events import Expired, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.newest_rows import NOTHING, fields_of
from catchment.query.fragment import SLICE_COLUMN, Fragment

INSTANT = pa.timestamp("us", tz="UTC")

# Columns that every result table has beside the user's own.
RESERVED = (
    "window_start",
    "window_end",
    "coverage",
    "bound",
    "bound_kind",
    "bound_terms",
    "status",
    "revision",
    "published_at",
    "missing_sites",
    "missing_sources",
    "retracted",
    "state",
)
NAMES = pa.list_(pa.string())


# --- the state of a row -------------------------------------------------------------------------------------------


def state_of(rows: pa.Table, fragment: Fragment) -> pa.Array:
    """Return the key and the mergeable state of each row, as one struct<key, partial>."""
    keys = {c: rows[c] for c in fragment.key_names}
    states = {c: rows[c] for c in rows.column_names if c not in keys}
    n = rows.num_rows
    return struct_of({"key": struct_of(keys, n), "partial": struct_of(states, n)}, n)


def flatten_states(rows: pa.Table) -> pa.Table:
    """Return (window_start_us, keys..., states...) of published rows."""
    starts = rows["window_start"].cast(pa.timestamp("us")).cast(pa.int64())
    return pa.table({WINDOW_COLUMN: starts, **fields_of(rows["state"], "key"), **fields_of(rows["state"], "partial")})


def retracted_state(keys: pa.Table, fragment: Fragment) -> pa.Array:
    """Return the keys of rows that hold no more, each with no state: nothing is merged with what it was."""
    n = keys.num_rows
    empty = state_of(pa.schema([f for f in fragment.schema if f.name != SLICE_COLUMN]).empty_table(), fragment)
    key = struct_of({c: keys[c] for c in fragment.key_names}, n)
    return struct_of({"key": key, "partial": pa.nulls(n, empty.type.field("partial").type)}, n)


def without_retracted(rows: pa.Table) -> pa.Table:
    """Return published rows without those that have no state."""
    if not rows.num_rows:
        return rows
    inner = pc.struct_field(rows["state"].combine_chunks(), "partial")
    has_states = any(f.name != NOTHING for f in inner.type)
    return rows.filter(pc.is_valid(inner)) if has_states else rows


def key_columns(rows: pa.Table) -> dict[str, pa.Array]:
    """Return the keys of published rows, by name; those of rows without an answer too."""
    return fields_of(rows["state"], "key")


def recalled_schema(fragment: Fragment) -> pa.Schema:
    """Return the schema of recalled states: (window_start_us, keys..., states...)."""
    states = (f for f in fragment.schema if f.name != SLICE_COLUMN)
    return pa.schema([pa.field(WINDOW_COLUMN, pa.int64()), *states])


def struct_of(columns: dict[str, pa.Array | pa.ChunkedArray], n: int) -> pa.Array:
    """Return columns of `n` rows as one struct."""
    if not columns:
        return pa.nulls(n, pa.struct([pa.field(NOTHING, pa.float64())]))
    arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns.values()]
    return pa.StructArray.from_arrays(arrays, names=list(columns))


# --- rows beside the results --------------------------------------------------------------------------------------


def instants(at_us: int | Sequence[int], n: int = 1) -> pa.Array:
    """Return instants as a column: one `n` times, or those of a sequence."""
    if isinstance(at_us, int):
        return pa.repeat(pa.scalar(at_us, INSTANT), n)
    return pa.array(at_us, pa.timestamp("us")).cast(INSTANT)


def repeat_names(names: Sequence[str], n: int) -> pa.Array:
    """Return `n` times the same list of names as a column."""
    values = pa.array(list(names), pa.string()).take(pa.array(np.tile(np.arange(len(names)), n)))
    return pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * len(names), pa.int32()), values)


def window_rows(
    sequence: int, revisions: Sequence[Publish], changed: Sequence[int], bounds: Mapping[str, pa.Array]
) -> pa.Table:
    """Return one row per revision for the log of windows.

    `changed` are the numbers of rows that they changed, `bounds` the columns about bounds.
    """
    return pa.table(
        {
            "window_start": instants([r.window.start_us for r in revisions]),
            "window_end": instants([r.window.end_us for r in revisions]),
            "revision": pa.array([r.revision for r in revisions], pa.int32()),
            "status": pa.array([r.status for r in revisions], pa.string()),
            "coverage": pa.array([r.coverage for r in revisions], pa.float64()),
            "missing_sites": pa.array([list(r.missing_sites) for r in revisions], NAMES),
            "missing_sources": pa.array([source_names(r) for r in revisions], NAMES),
            "rows_changed": pa.array(changed, pa.int64()),
            **bounds,
            "reason": pa.array([r.reason for r in revisions], pa.string()),
            "published_at": instants([r.published_us for r in revisions]),
            "entry": pa.array([sequence] * len(revisions), pa.int64()),
            "step": pa.array(range(len(revisions)), pa.int64()),
        }
    )


def late_rows(expired: Expired) -> pa.Table:
    """Return the rows of partials that came too late to be merged."""
    n = expired.rows.num_rows
    return pa.table(
        {
            "window_start": instants(expired.window.start_us, n),
            "window_end": instants(expired.window.end_us, n),
            "registered_at": instants(expired.registered_us, n),
            "state": struct_of({c: expired.rows[c] for c in expired.rows.column_names}, n),
        }
    )


def source_names(revision: Publish) -> list[str]:
    """Return the sources that are known to lack something, as site/source."""
    return sorted({f"{site}/{source}" for site, source, _ in revision.sources})
