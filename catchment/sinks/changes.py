"""The changes of a view since a place, as its published tables tell them.

Law of upserts: whoever applies every batch in order has exactly the rows that `read_results` gives, whatever was
skipped in between. A row is delivered again when a revision changes it, and with all rows of its window when the window
says something else of them: another status, or other missing sites or sources.

Law of changelogs: every revision of every row once, in the order of publication, each after the retraction of the one
it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.layout import key_columns
from catchment.center.results.newest_rows import dataset_of, newest_revisions, open_table
from catchment.center.results.read import latest_rows
from catchment.sinks.target import (
    DELETED,
    INSERTED,
    OPERATION,
    RETRACTED,
    UPDATED,
    UPSERTED,
    ChangeBatch,
    Place,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

MAX_ENTRIES = 256  # of the log of windows, in one batch
_SAID_OF_ALL = ("status", "missing_sites", "missing_sources")  # what a window says of all its rows
_HIDDEN = ("state", "bound_terms", "retracted")  # columns that nobody is given
Rows = list[dict[str, Any]]


class ViewChanges:
    """Reads what changed in one view; `keys` maps each key of its rows to the column of the view that shows it."""

    def __init__(self, state: Path, view: str, keys: Mapping[str, str], *, changelog: bool = False) -> None:
        self._windows_path = state / "windows" / view
        self._results_path = state / "results" / view
        self.view = view
        self._keys = keys
        self._changelog = changelog
        self._windows: DeltaTable | None = None

    def life(self) -> str | None:
        """Return what tells the tables of the view from those of an earlier view of its name; None before the first."""
        windows = self._open_windows()
        return None if windows is None else str(windows.metadata().id)

    def since(self, place: Place | None) -> ChangeBatch | None:
        """Return the next changes after a place, or from the beginning; None if there are none.

        A place of another life, and one that the log has not reached (a state folder that was restored from an older
        copy), count as the beginning.
        """
        windows = self._open_windows()
        if windows is None:
            return None
        life = str(windows.metadata().id)
        if place is not None and (place.life != life or not self._has(windows, place)):
            place = None
        reached = None if place is None else (place.entry, place.step)
        fresh = entries_after(windows, reached).slice(0, MAX_ENTRIES)
        if not fresh.num_rows:
            return None
        last = fresh.slice(fresh.num_rows - 1).to_pylist()[0]
        end = Place(life, last["entry"], last["step"])
        touched = pc.unique(fresh["window_start"].combine_chunks())
        log = of_windows(windows, touched).sort_by([("entry", "ascending"), ("step", "ascending")])
        rows = self._revisions(touched)
        if rows is None:  # windows without a row
            rows = pa.table({OPERATION: pa.array([], pa.string())})
        elif self._changelog:
            rows = self._revise(rows, fresh.to_pylist())
        else:
            rows = self._upsert(rows, log, place)
        return ChangeBatch(self.view, ("window_start", *self._keys.values()), rows, end, self._changelog)

    def _open_windows(self) -> DeltaTable | None:
        if self._windows is None:
            self._windows = open_table(self._windows_path)
        else:
            self._windows.update_incremental()
        return self._windows

    @staticmethod
    def _has(windows: DeltaTable, place: Place) -> bool:
        """Return whether the log has come as far as a place."""
        at = (pc.field("entry") > place.entry) | ((pc.field("entry") == place.entry) & (pc.field("step") >= place.step))
        return bool(dataset_of(windows).head(1, filter=at, columns=["entry"]).num_rows)

    def _revisions(self, touched: pa.Array) -> pa.Table | None:
        """Return every revision of every row of some windows, with the keys of rows that have no columns."""
        table = open_table(self._results_path)
        if table is None:
            return None
        rows = of_windows(table, touched)
        for key, values in key_columns(rows).items():
            name = self._keys.get(key, "")  # a row whose answer could not be finished has no columns of the view
            if name in rows.column_names:
                rows = rows.set_column(rows.column_names.index(name), name, values.cast(rows[name].type))
            elif name:
                rows = rows.append_column(name, values)
        return rows

    def _upsert(self, rows: pa.Table, log: pa.Table, place: Place | None) -> pa.Table:
        """Return the newest rows that are not known at a place."""
        known = _known_at(log, place)
        now = {w["window_start"]: _said(w) for w in log.to_pylist()}
        starts = rows["window_start"].to_pylist()
        revisions = rows["revision"].to_pylist()
        wanted = []
        for start, revision in zip(starts, revisions, strict=True):
            before = known.get(start)
            wanted.append(before is None or before[1] != now.get(start) or revision > before[0])
        left_out = newest_revisions(rows.filter(pa.array(wanted, pa.bool_())))
        left_out = left_out.filter(left_out["retracted"])
        upserted = latest_rows(rows.append_column("_wanted", pa.array(wanted, pa.bool_())), log)
        upserted = upserted.filter(upserted["_wanted"]).drop_columns(["_wanted"])
        both = pa.concat_tables(
            [_with_operation(left_out, DELETED), _with_operation(upserted, UPSERTED)], promote_options="default"
        )
        return both.sort_by([("window_start", "ascending"), ("revision", "ascending")])

    def _revise(self, rows: pa.Table, fresh: Rows) -> pa.Table:
        """Return the changes that some entries of the log have made, each row after what it retracts."""
        ordered = rows.sort_by([("window_start", "ascending"), ("revision", "ascending")])
        names = ("window_start", *self._keys.values())
        history: dict[tuple[Any, ...], Rows] = {}
        by_revision: dict[tuple[Any, int], Rows] = {}
        for row in ordered.to_pylist():
            row["_key"] = tuple(map(repr, (row[name] for name in names)))
            history.setdefault(row["_key"], []).append(row)
            by_revision.setdefault((row["window_start"], row["revision"]), []).append(row)
        changes = [
            change
            for entry in fresh
            if entry["rows_changed"]
            for row in by_revision.get((entry["window_start"], entry["revision"]), ())
            for change in _change(row, _before(history[row["_key"]], row))
        ]
        shown = [f for f in ordered.schema if f.name not in _HIDDEN]
        return pa.Table.from_pylist(changes, pa.schema([*shown, pa.field(OPERATION, pa.string())]))


def entries_after(windows: DeltaTable, reached: tuple[int, int] | None) -> pa.Table:
    """Return the entries of a log of windows after an entry and step, oldest first."""
    later = None
    if reached is not None:
        entry, step = reached
        later = (pc.field("entry") > entry) | ((pc.field("entry") == entry) & (pc.field("step") > step))
    found = dataset_of(windows).to_table(filter=later)
    return found.sort_by([("entry", "ascending"), ("step", "ascending")])


def of_windows(table: DeltaTable, starts: pa.Array) -> pa.Table:
    """Return what a table has of the windows that begin at these instants."""
    return dataset_of(table).to_table(filter=pc.field("window_start").isin(starts))


def _known_at(log: pa.Table, place: Place | None) -> dict[Any, tuple[int, tuple[Any, ...]]]:
    """Return the revision of each window that is known at a place, and what the window said of all its rows."""
    if place is None:
        return {}
    reached = (place.entry, place.step)
    before = (w for w in log.to_pylist() if (w["entry"], w["step"]) <= reached)
    return {w["window_start"]: (w["revision"], _said(w)) for w in before}


def _said(window: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(window[name] for name in _SAID_OF_ALL)


def _with_operation(rows: pa.Table, operation: str) -> pa.Table:
    shown = rows.drop_columns([name for name in _HIDDEN if name in rows.column_names])
    return shown.append_column(OPERATION, pa.array([operation] * rows.num_rows, pa.string()))


def _before(revisions: Rows, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the row that a revision replaces, if one was shown."""
    older = [r for r in revisions if r["revision"] < row["revision"]]
    return older[-1] if older and not older[-1]["retracted"] else None


def _change(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    if row["retracted"]:
        if before is not None:
            yield {**before, OPERATION: DELETED}
    elif before is None:
        yield {**row, OPERATION: INSERTED}
    else:
        yield {**before, OPERATION: RETRACTED}
        yield {**row, OPERATION: UPDATED}
