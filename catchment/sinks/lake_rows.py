"""Rows of lake tables, which are replaced by window: what a window holds after a batch of changes.

Tables of Delta and Iceberg consist of files, so a row is replaced by writing its files again. Rows that change come by
window, and a batch has those of few windows: the rows of these are read, changed here, and written in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.errors import CatchmentError
from catchment.sinks.target import OPERATION, UPSERTED, ChangeBatch, Place


def touched_windows(batch: ChangeBatch) -> list[int]:
    """Return the starts of the windows that a batch changes, in microseconds, ascending."""
    starts = pc.unique(batch.rows["window_start"].combine_chunks())
    return sorted(starts.cast(pa.int64()).to_pylist())


def change_rows(known: pa.Table | None, batch: ChangeBatch) -> pa.Table:
    """Return the rows of the touched windows after a batch of upserts, from those that are stored now."""
    upserted = batch.rows.filter(pc.equal(batch.rows[OPERATION], UPSERTED)).drop_columns([OPERATION])
    if known is None or not known.num_rows:
        return upserted
    kept = _without(known, batch.rows.select(list(batch.keys)), batch.keys)
    return pa.concat_tables([kept, upserted], promote_options="permissive")


def _without(rows: pa.Table, gone: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows whose keys are not among others; null equals null."""
    both = pa.concat_tables([rows.select(list(keys)), gone.cast(rows.select(list(keys)).schema)])
    codes, _ = partials.group_codes(both.combine_chunks(), list(keys))
    is_gone = pc.is_in(pa.array(codes[: rows.num_rows]), value_set=pa.array(codes[rows.num_rows :]))
    return rows.filter(pc.invert(is_gone))


def write_place(place: Place) -> str:
    """Return a place as the text that a table keeps."""
    return json.dumps({"life": place.life, "entry": place.entry, "step": place.step})


def read_place(text: str | None) -> Place | None:
    """Return the place that a table has kept; None where there is none."""
    if text is None:
        return None
    try:
        kept = json.loads(text)
        return Place(kept["life"], kept["entry"], kept["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise CatchmentError(
            f"a table has a place that nobody can read: {text[:80]}", hint="remove the property, or name another table"
        ) from error
