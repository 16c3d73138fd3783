"""Where the tables of queries are stored: Delta tables in a folder, which any engine reads.

Every append carries a number as its application transaction, so that appending a number again writes nothing.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction

from catchment.center.results.delta_log import remove_torn_commits, sync_commits
from catchment.center.results.layout import INSTANT
from catchment.center.results.newest_rows import dataset_of, open_table

APPLICATION = "catchment"  # the name under which Delta remembers the number of the last append
COMPACT_ABOVE_FILES = 64
LOOK_EVERY_APPENDS = 32  # so a table has at most these more files than that
KEEP_HOURS = 24


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that somebody wrote into the folder of a table: its name, its size and its statistics as JSON."""

    name: str
    size_bytes: int
    stats: str


class TableStore(Protocol):
    """Tables by kind (results, windows, late, sides) and query."""

    def append(self, kind: str, query: str, number: int, make: Callable[[], pa.Table]) -> None:
        """Append rows under a number; do nothing, and make none, if that number or a higher one was appended."""
        ...

    def read(self, kind: str, query: str, columns: Sequence[str], starts: pa.Array) -> pa.Table | None:
        """Return some columns of the windows that start at these instants; None before the first append."""
        ...

    def newest_number(self, kind: str, query: str) -> int | None:
        """Return the newest number that was appended; None before the first."""
        ...

    def compact(self, kind: str, query: str) -> None:
        """Fold many small pieces into few; readers are not disturbed."""
        ...

    def flush(self, kind: str, query: str) -> None:
        """Make everything that was appended durable."""
        ...

    def remove_torn(self, kind: str, query: str, first_number: int) -> list[str]:
        """Remove what a power cut has left half written; numbers from the first on will be appended again."""
        ...

    def remove(self, kind: str, query: str) -> None:
        """Remove a table that nobody reads any more, if it is there."""
        ...


@dataclass(frozen=True)
class DeltaStore:
    """Delta tables in a folder, `<kind>/<query>` each.

    Files that compaction has replaced, and old entries of the log, stay for `keep_hours`: for readers that have begun,
    and until what replaces them is on disk.
    """

    folder: Path
    keep_hours: int = KEEP_HOURS
    _durable: dict[Path, int] = field(default_factory=dict, compare=False)  # the newest version that is, by table
    _appends: Counter[Path] = field(default_factory=Counter, compare=False)  # by table, of this process

    def append(self, kind: str, query: str, number: int, make: Callable[[], pa.Table]) -> None:
        if self.has_appended(kind, query, number):
            return
        path = self.path(kind, query)
        write_deltalake(
            path,
            in_fresh_buffers(make()),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, number)]),
        )
        self._note_append(kind, query)

    def _note_append(self, kind: str, query: str) -> None:
        """Fold small files from time to time."""
        path = self.path(kind, query)
        self._appends[path] += 1
        if self._appends[path] % LOOK_EVERY_APPENDS == 0 and self._has_many_files(kind, query):
            self.compact(kind, query)
            self.flush(kind, query)  # after a power cut only the newest commits may be torn

    def path(self, kind: str, query: str) -> Path:
        """Return the folder of a table."""
        return self.folder / kind / query

    def has_appended(self, kind: str, query: str, number: int) -> bool:
        """Return whether a number, or a higher one, was appended."""
        newest = self.newest_number(kind, query)
        return newest is not None and newest >= number

    def add_files(self, kind: str, query: str, number: int, schema: pa.Schema, files: Sequence[DataFile]) -> None:
        """Append files that are in the folder of a table already, under a number, unless that was appended before."""
        if self.has_appended(kind, query, number):
            return
        path = self.path(kind, query)
        table = self._open(kind, query)
        known = set() if table is None else {f.name for f in table.schema().fields}
        if not known >= set(schema.names):
            write_deltalake(path, schema.empty_table(), mode="append", schema_mode="merge")
            table = DeltaTable(path)
        assert table is not None
        written_ms = round(time.time() * 1000)
        table.create_write_transaction(
            [AddAction(file.name, file.size_bytes, {}, written_ms, True, file.stats) for file in files],
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, number)]),
        )
        self._note_append(kind, query)

    def files_with(self, kind: str, query: str, starts: pa.Array) -> list[tuple[str, int]]:
        """Return the files that may have rows of windows that start at these instants, and how many rows they have."""
        table = self._open(kind, query)
        if table is None:
            return []
        added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        wanted = starts.to_pylist()
        low, high = "min.window_start", "max.window_start"
        path = self.path(kind, query).resolve()
        return [
            (str(path / unquote(file["path"])), file.get("num_records") or 0)
            for file in added
            if file.get(low) is None or any(file[low] <= start <= file[high] for start in wanted)
        ]

    def read(self, kind: str, query: str, columns: Sequence[str], starts: pa.Array) -> pa.Table | None:
        table = self._open(kind, query)
        if table is None:
            return None
        wanted = starts.cast(pa.timestamp("us")).cast(INSTANT)
        return dataset_of(table).to_table(columns=list(columns), filter=pc.field("window_start").isin(wanted))

    def newest_number(self, kind: str, query: str) -> int | None:
        table = self._open(kind, query)
        return None if table is None else table.transaction_version(APPLICATION)

    def compact(self, kind: str, query: str) -> None:
        if self._has_many_files(kind, query):
            DeltaTable(self.folder / kind / query).optimize.compact()
            self._remove_replaced(kind, query)

    def _has_many_files(self, kind: str, query: str) -> bool:
        table = self._open(kind, query)
        return table is not None and len(table.file_uris()) > COMPACT_ABOVE_FILES

    def _remove_replaced(self, kind: str, query: str) -> None:
        """Remove data files that nobody refers to any more, and log entries that a checkpoint holds."""
        table = DeltaTable(self.folder / kind / query)
        wanted = {"delta.logRetentionDuration": f"interval {self.keep_hours} hours"}
        if not wanted.items() <= table.metadata().configuration.items():
            table.alter.set_table_properties(wanted)
        table.vacuum(retention_hours=self.keep_hours, dry_run=False, enforce_retention_duration=False)
        table.create_checkpoint()
        table.cleanup_metadata()

    def flush(self, kind: str, query: str) -> None:
        path = self.folder / kind / query
        self._durable[path] = sync_commits(path, self._durable.get(path, -1))

    def remove_torn(self, kind: str, query: str, first_number: int) -> list[str]:
        removed = remove_torn_commits(self.folder / kind / query, first_number)
        return [f"{torn.path}: {torn.problem}" for torn in removed]

    def remove(self, kind: str, query: str) -> None:
        path = self.folder / kind / query
        shutil.rmtree(path, ignore_errors=True)  # what is left of it is removed the next time
        self._durable.pop(path, None)

    def _open(self, kind: str, query: str) -> DeltaTable | None:
        return open_table(self.folder / kind / query)


def in_fresh_buffers(table: pa.Table) -> pa.Table:
    """Copy a table: deltalake aborts the process on nested columns that are views into others."""
    return pa.table([_copy_of(column) for column in table.columns], schema=table.schema)


def _copy_of(column: pa.ChunkedArray) -> pa.Array:
    if not column.num_chunks:
        return pa.array([], column.type)
    return pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)])  # of two arrays, so that it is a copy
