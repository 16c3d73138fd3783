"""The newest published windows of a view, followed without reading the whole log again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from catchment.center.results.layout import INSTANT
from catchment.center.results.names import newest_name
from catchment.center.results.newest_rows import dataset_of, open_table

STRIP_WINDOWS = 60  # the newest of them, in the line of the view
KEPT_WINDOWS = 240  # windows of a view that are shown; older ones are read with SQL
READ_LOG_EVERY = 60  # polls
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
        self._path = state / "windows" / newest_name(state, view)
        self._table: DeltaTable | None = None
        self._version = -1
        self._polls = 0
        self._last_entry = -1
        self._windows: OrderedDict[Any, dict[str, Any]] = OrderedDict()
        self.strip: Sequence[Mapping[str, Any]] = ()  # the newest windows in short; another object after a change

    def poll(self) -> Sequence[Mapping[str, Any]]:
        """Return the newest windows, oldest first, each with its newest entry and the history of its revisions."""
        if self._table is None:
            self._table = open_table(self._path)
            if self._table is None:
                return ()
        elif self._has_news():
            self._table.update_incremental()
        if self._table.version() != self._version:
            self._read_new(self._table)
            self._version = self._table.version()
        return tuple(self._windows.values())

    def _has_news(self) -> bool:
        """Return whether the table may have another commit: a look at one name costs less than reading its log.

        The log is read now and then all the same: commits that are old may have been removed from it.
        """
        self._polls += 1
        next_commit = self._path / "_delta_log" / f"{self._version + 1:020}.json"
        return self._polls % READ_LOG_EVERY == 0 or next_commit.exists()

    def _read_new(self, table: DeltaTable) -> None:
        is_new = ds.field("entry") > self._last_entry
        oldest = self._oldest_shown(table)
        wanted = is_new if oldest is None else is_new & (ds.field("window_start") >= oldest)
        found = dataset_of(table).to_table(columns=list(_COLUMNS), filter=wanted)
        for row in found.sort_by("entry").to_pylist():
            self._last_entry = max(self._last_entry, row.pop("entry"))
            self._note(row)
        for start in sorted(self._windows)[:-KEPT_WINDOWS]:
            del self._windows[start]
        newest = list(self._windows.values())[-STRIP_WINDOWS:]
        self.strip = tuple(
            {"start": w["window_start"], "status": w["status"], "coverage": w["coverage"], "rev": w["revision"]}
            for w in newest
        )

    def _oldest_shown(self, table: DeltaTable) -> pa.Scalar | None:
        """Return where the newest windows begin, so that files of older ones are not opened."""
        files = table.get_add_actions(flatten=True)
        starts = [value.as_py() for value in files.column("max.window_start")]
        ends = [value.as_py() for value in files.column("max.window_end")]
        known = [(start, end) for start, end in zip(starts, ends, strict=True) if start and end]
        if not known:
            return None
        start, end = max(known)
        return pa.scalar(start - KEPT_WINDOWS * (end - start), INSTANT)

    def _note(self, row: dict[str, Any]) -> None:
        known = self._windows.get(row["window_start"])
        history = [*(known["history"] if known else ()), _short(row)]
        self._windows[row["window_start"]] = {**row, "history": history}
        self._windows = OrderedDict(sorted(self._windows.items())) if known is None else self._windows


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("revision", "status", "coverage", "reason", "published_at")}
