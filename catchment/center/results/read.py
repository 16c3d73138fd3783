"""Reading what was published, without Spark: rows, windows and their newest statuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.names import newest_name
from catchment.center.results.newest_rows import dataset_of, last_rows, newest_revisions, open_table
from catchment.center.statuses import EXACT, FINAL
from catchment.errors import CenterError
from catchment.query.definition_names import view_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ADDED = ("bound_kind", "bound_terms")  # columns that tables of 0.2 do not have


def read_results(
    folder: Path, query: str, *, revisions: str = "latest", state: bool = False, terms: bool = False
) -> pa.Table:
    """Return published rows.

    'latest': the newest revision of each row, with the window's newest status and coverage, without rows that HAVING
    leaves out; 'all': every revision, as it was published. The states of rows, and the terms of their bounds, are left
    out unless they are asked for.
    """
    if revisions not in ("latest", "all"):
        raise CenterError(f"revisions are 'latest' or 'all', not {revisions!r}")
    rows = dataset_of(_open_published(folder, "results", query)).to_table()
    if revisions == "latest":
        rows = latest_rows(rows, read_windows(folder, query))
    rows = rows.sort_by([("window_start", "ascending"), ("revision", "ascending")])
    left_out = [name for name, wanted in (("state", state), ("bound_terms", terms)) if not wanted]
    return rows.drop_columns([name for name in left_out if name in rows.column_names])


def latest_rows(rows: pa.Table, windows: pa.Table) -> pa.Table:
    """Return the newest revision of each row of a result table, given the log of its windows, oldest entry first."""
    rows = newest_revisions(rows)
    rows = rows.filter(pc.invert(rows["retracted"])).drop_columns(["retracted"])
    return _with_newest_status(rows, windows)


def read_windows(folder: Path, query: str) -> pa.Table:
    """Return every published revision and status of every window, oldest first."""
    log = dataset_of(_open_published(folder, "windows", query)).to_table()
    return log.sort_by([("entry", "ascending"), ("step", "ascending")])


def newest_windows(log: pa.Table) -> pa.Table:
    """Return the newest entry of each window in the log of windows."""
    return log.take(pa.array(last_rows(log.select(["window_start"])))).sort_by("window_start")


def published_views(folder: Path) -> list[str]:
    """Return the views whose newest definition has published: its rows, and after them the first entry of its log."""
    tables = _tables(folder / "results") & _tables(folder / "windows")
    return sorted(view for view in set(map(view_of, tables)) if newest_name(folder, view) in tables)


def _tables(folder: Path) -> set[str]:
    from deltalake import DeltaTable  # a machine that plans, and has no tables, need not have it installed

    return {path.name for path in folder.glob("*") if DeltaTable.is_deltatable(str(path))}


def _open_published(folder: Path, kind: str, query: str) -> DeltaTable:
    found = open_table(folder / kind / newest_name(folder, query))
    if found is None:
        names = ", ".join(published_views(folder)) or "none"
        hint = f"those that have: {names}"
        raise CenterError(f"query {query!r} has not published a window yet", where=str(folder), hint=hint)
    return found


def _with_newest_status(rows: pa.Table, log: pa.Table) -> pa.Table:
    """Return rows with the newest status of their window; one whose window is not in the log yet keeps its own."""
    newest = newest_windows(log)
    index = pc.index_in(rows["window_start"], value_set=newest["window_start"].combine_chunks())
    fresh = {"status": index, "missing_sites": index, "missing_sources": index}
    # A row's coverage and bound are its own, unless the window has become whole since, or a site was missing: then
    # they are the window's. Its coverage does not tell: a row that has everything may have waited for another batch.
    is_whole = pa.array([EXACT, FINAL])
    whole = pc.take(pc.is_in(newest["status"], value_set=is_whole), index).combine_chunks()
    whole = pc.and_not(whole, pc.is_in(rows["status"], value_set=is_whole).combine_chunks())
    stale = pc.or_(whole, pc.greater(pc.list_value_length(rows["missing_sites"]), 0).combine_chunks())
    of_window = pc.if_else(pc.fill_null(stale, False), index.combine_chunks(), None)
    fresh |= dict.fromkeys(("coverage", "bound", *_ADDED), of_window)
    for name in (n for n in _ADDED if n in newest.column_names and n not in rows.column_names):
        rows = rows.append_column(name, pa.nulls(rows.num_rows, newest[name].type))
    for name, at in fresh.items():
        if name not in newest.column_names:
            continue
        both = pa.concat_arrays([newest[name].combine_chunks(), rows[name].combine_chunks().cast(newest[name].type)])
        own = pa.array(np.arange(rows.num_rows) + newest.num_rows)
        rows = rows.set_column(rows.column_names.index(name), name, both.take(pc.coalesce(at, own)))
    return rows
