"""The newest published windows of a view, followed without reading the whole log again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable

from catchment.center.results.layout import open_table

KEPT_WINDOWS = 240  # windows of a view that are shown; older ones are read with SQL
FIRST_ENTRIES = 2_000  # how far back the first read of a long log goes, in entries of the journal
_COLUMNS = (
    "entry",
    "window_start",
    "window_end",
    "revision",
    "status",
    "coverage",
    "reason",
    "published_at",
    "missing_sites",
)


class WindowLog:
    """Follows the log of one view's windows: each poll reads only what was appended since."""

    def __init__(self, state: Path, view: str) -> None:
        self._path = state / "windows" / view
        self._table: DeltaTable | None = None
        self._version = -1
        self._last_entry = -1
        self._windows: OrderedDict[Any, dict[str, Any]] = OrderedDict()

    def poll(self) -> Sequence[Mapping[str, Any]]:
        """Return the newest windows, oldest first, each with its newest entry and the history of its revisions."""
        if self._table is None:
            self._table = open_table(self._path)
            if self._table is None:
                return ()
        else:
            self._table.update_incremental()
        if self._table.version() != self._version:
            self._read_new(self._table)
            self._version = self._table.version()
        return tuple(self._windows.values())

    def _read_new(self, table: DeltaTable) -> None:
        since = self._last_entry if self._last_entry >= 0 else _newest_entry(table) - FIRST_ENTRIES
        found = table.to_pyarrow_dataset().to_table(columns=list(_COLUMNS), filter=ds.field("entry") > since)
        for row in found.sort_by("entry").to_pylist():
            self._last_entry = max(self._last_entry, row.pop("entry"))
            self._note(row)
        for start in sorted(self._windows)[:-KEPT_WINDOWS]:
            del self._windows[start]

    def _note(self, row: dict[str, Any]) -> None:
        known = self._windows.get(row["window_start"])
        history = [*(known["history"] if known else ()), _short(row)]
        self._windows[row["window_start"]] = {**row, "history": history}
        self._windows = OrderedDict(sorted(self._windows.items())) if known is None else self._windows


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("revision", "status", "coverage", "reason", "published_at")}


def _newest_entry(table: DeltaTable) -> int:
    """Return the newest entry, from the statistics of the files."""
    newest = table.get_add_actions(flatten=True).column("max.entry")
    return max((value.as_py() or 0 for value in newest), default=0)
