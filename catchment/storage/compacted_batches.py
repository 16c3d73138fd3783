"""Batches of raw records that were compacted: a run of them in one folder, in files by the hour of their event times.

A site writes one small folder per micro-batch (`batch=N`). In the background a run of settled ones becomes one folder
`batches=FIRST-END` with a file per hour of event time (`date=2026-03-01/hour=12.parquet`), so that who asks for some
event times opens the files of these hours, and few files hold much. Each record keeps the number of its batch
(`_batch`) and of its row (`_row`), so that a batch can still be read by itself. A manifest says which batches and event
times each run and file holds.

Crash-safety: a run is written aside, synced, and then renamed; only then are its batches removed. In between a batch is
there twice: the folder of a batch counts before a run that holds it. A folder is removed only if it has the very files
that the run was made of, so a batch that is written again (a site that goes on with an older copy of its state) is
kept, and counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catchment.errors import StorageError
from catchment.storage.batch_times import FileTimes, TimeSpan, hull
from catchment.storage.files import (
    make_folder,
    read_record,
    remove_file,
    rename_file,
    sync_folder,
    write_durably,
    write_record,
)
from catchment.storage.referenced_batches import REFERENCE, read_reference

PREFIX = "batch="
RUN_PREFIX = "batches="
MANIFEST = "_batches.json"  # Spark and Arrow pass over names that begin so
STORED = "_stored.json"  # in the folder of a run whose files are objects of a store (`records/stored_history.py`)
WRITING = "_compacting"  # the folder of a run that does not count yet
REMOVED_PREFIX = "_removed-"  # of the folder of a batch that is about to be gone
BATCH = "_batch"  # the column that says which batch a record is of
ROW = "_row"  # the column with its number in that batch
KEEP_NEWEST = 20  # batches that are not compacted: they may be written, replayed, sampled or looked at now
RUN_BATCHES = 512
RUN_BYTES = 16 * 2**20  # of Parquet files that are read for one run; a larger batch is a run of its own
MAX_HOURS = 48  # files of a run; the records of further hours are together in one more
STRAY = "stray.parquet"
HOUR_US = 3600 * 1_000_000
ROW_GROUP = 131_072
_RUN_NAME = re.compile(rf"{RUN_PREFIX}([0-9]+)-([0-9]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RunFile:
    """One file of a run: its name in the folder, and which event times it holds."""

    name: str
    rows: int
    span: TimeSpan


@dataclass(frozen=True)
class CompactedRun:
    """A run of batches in one folder; `batches` are those that it holds, with their records and event times."""

    path: Path
    batches: dict[int, FileTimes]
    files: tuple[RunFile, ...]
    sources: dict[int, list[list[Any]]] = field(repr=False)  # name, size and time of each file that it was made of
    written_us: int  # when the newest of its batches was written

    def files_of(self, span: TimeSpan | None = None) -> list[Path]:
        """Return the files that may hold records of some event times; by default all."""
        return [self.path / f.name for f in self.files if span is None or (f.span[0] < span[1] and span[0] < f.span[1])]


@dataclass(frozen=True)
class StoredFiles:
    """Where the files of a run are that was moved to a store: below which address, and how large each is, by name."""

    address: str
    files: dict[str, int]


def read_stored(run: Path) -> StoredFiles | None:
    """Return where the files of a run are if it was moved to a store; None while they count on disk."""
    record = read_record(run / STORED)
    return None if record is None else StoredFiles(record["address"], record["files"])


def run_bytes(run: Path) -> int:
    """Return how much a run takes, on disk and in a store."""
    local = {path.relative_to(run).as_posix(): path.stat().st_size for path in run.rglob("*") if path.is_file()}
    try:
        stored = read_stored(run)
    except StorageError:  # who reads it is told
        stored = None
    return sum((local if stored is None else stored.files | local).values())


def times_of_run(run: Path) -> FileTimes | None:
    """Return which event times a run holds, by its manifest, or a batch that is a reference; None for a copy of one."""
    found = read_run(run)
    if found is None:
        reference = read_reference(run)
        return None if reference is None else reference.times
    rows = sum(times.rows for times in found.batches.values())
    return FileTimes(rows, hull(times.span for times in found.batches.values()))


def list_runs(folder: Path) -> list[Path]:
    """Return the folders of all runs, the oldest batches first."""
    return [path for _, _, path in sorted(_run_paths(folder))]


def find_run(folder: Path, number: int) -> CompactedRun | None:
    """Return the newest run that holds a batch; None if none does."""
    found = [path for first, end, path in _run_paths(folder) if first <= number < end]
    for path in sorted(found, key=_written_ns, reverse=True):
        run = read_run(path)
        if run is not None and number in run.batches:
            return run
    return None


def _written_ns(run: Path) -> int:
    """Return when the manifest of a run was written, which is never changed; its folder is, when files are moved."""
    try:
        return (run / MANIFEST).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def read_run(path: Path) -> CompactedRun | None:
    """Return what a run holds; None if it was removed."""
    try:
        return _read_run(path, path.stat().st_ino)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=64)  # a run does not change, and who reads the past asks for one batch after another
def _read_run(path: Path, inode: int) -> CompactedRun:
    record = read_record(path / MANIFEST)
    if record is None:
        raise FileNotFoundError(path / MANIFEST)
    return CompactedRun(
        path,
        {
            int(n): FileTimes(rows, None if low is None else (low, high))
            for n, (rows, low, high) in record["batches"].items()
        },
        tuple(RunFile(name, rows, (low, high)) for name, rows, low, high in record["files"]),
        {int(n): files for n, files in record["sources"].items()},
        record["written_us"],
    )


def _run_paths(folder: Path) -> Iterator[tuple[int, int, Path]]:
    for name in os.listdir(folder) if folder.is_dir() else ():
        found = _RUN_NAME.fullmatch(name)
        if found is not None:
            yield int(found[1]), int(found[2]), folder / name


@dataclass
class BatchCompactor:
    """Compacts the batches of one folder, a run per call at most.

    `event_time` is the column by which records belong to hours; batches that are `owed` to a repair are left alone, and
    so are those that are references, and those that cannot be read.
    """

    folder: Path
    event_time: str
    owed: Callable[[], Container[int]] = lambda: ()
    compacted_batches: int = field(default=0, init=False)
    written_runs: int = field(default=0, init=False)
    written_bytes: int = field(default=0, init=False)
    failure: str | None = field(default=None, init=False)
    _left_alone: set[int] = field(default_factory=set, init=False)

    def compact_next(self) -> bool:
        """Remove what runs have replaced, or write one run if enough has settled; return whether anything was done."""
        if not self.folder.is_dir():
            return False
        replaced = list(self._find_replaced())[:RUN_BATCHES]
        if replaced:
            self._remove(replaced)
            return True
        numbers = self._choose()
        if not numbers:
            return False
        self._write_run(numbers)
        return True

    def status(self) -> dict[str, Any]:
        """Return what was done since the start, as plain JSON."""
        return {
            "compacted_batches": self.compacted_batches,
            "written_runs": self.written_runs,
            "written_bytes": self.written_bytes,
            "failure": self.failure,
        }

    def _plain(self) -> list[int]:
        names = os.listdir(self.folder)
        found = (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
        return sorted(int(number) for number in found if number.isdigit())

    def _remove(self, batches: Sequence[tuple[int, Path]]) -> None:
        """Remove the folders of batches: all under other names first, durably, so that nobody finds half of one."""
        aside = [self.folder / f"{REMOVED_PREFIX}{number}" for number, _ in batches]
        for (_, path), to in zip(batches, aside, strict=True):
            _remove_files(to)
            rename_file(path, to)
        sync_folder(self.folder)
        for path in aside:
            _remove_files(path)
        self.compacted_batches += len(batches)

    def _find_replaced(self) -> Iterator[tuple[int, Path]]:
        """Yield the folders of batches that a run holds, if they have the files that it was made of."""
        plain = set(self._plain())
        for first, end, path in _run_paths(self.folder):
            there = [number for number in plain if first <= number < end]
            try:
                run = read_run(path) if there else None
            except StorageError as damage:
                self.failure = str(damage)  # who reads its batches is told, and they are lost
                continue
            for number in there:
                batch = self.folder / f"{PREFIX}{number}"
                if run is not None and number in run.sources and _describe(batch) == run.sources[number]:
                    yield number, batch

    def _choose(self) -> list[int]:
        """Return batches that become the next run: the oldest that have settled, if they fill one."""
        owed = self.owed()
        chosen: list[int] = []
        size_bytes = 0
        plain = self._plain()
        for number in plain[: max(len(plain) - KEEP_NEWEST, 0)]:
            if number not in self._left_alone and (self.folder / f"{PREFIX}{number}" / REFERENCE).exists():
                self._left_alone.add(number)
            if number in owed or number in self._left_alone:
                chosen, size_bytes = [], 0
                continue
            described = _describe(self.folder / f"{PREFIX}{number}") or []
            own_bytes = sum(file[1] for file in described)
            if chosen and size_bytes + own_bytes > RUN_BYTES:
                return chosen
            chosen.append(number)
            size_bytes += own_bytes
            if len(chosen) >= RUN_BATCHES:
                return chosen
        return []

    def _write_run(self, numbers: Sequence[int]) -> None:
        aside = self.folder / WRITING
        _remove_files(aside)
        make_folder(aside)
        tables: list[pa.Table] = []
        batches: dict[str, tuple[int, int | None, int | None]] = {}
        sources: dict[str, Any] = {}
        written_us = 0
        for number in numbers:
            path = self.folder / f"{PREFIX}{number}"
            try:
                described = _describe(path)
                table = _read_batch(path, number)
                times = _times_us(table, self.event_time) if table.num_rows else None
            except (pa.ArrowException, ValueError, KeyError, OSError) as damage:
                self.failure = f"batch {number} is left as it is: {damage}"
                self._left_alone.add(number)  # who reads it finds out by itself
                return
            if described is None:
                return  # it was removed meanwhile
            sources[str(number)] = described
            written_us = max([written_us, *(file[2] // 1_000 for file in described)])
            batches[str(number)] = (
                (0, None, None) if times is None else (len(times), int(times.min()), int(times.max()) + 1)
            )
            tables.append(table)
        together = pa.concat_tables(tables, promote_options="default")
        files = list(self._write_files(aside, together))
        record = {
            "batches": batches,
            "files": [[f.name, f.rows, *f.span] for f in files],
            "sources": sources,
            "written_us": written_us,
        }
        write_record(aside / MANIFEST, record)
        rename_file(aside, self.folder / f"{RUN_PREFIX}{numbers[0]}-{numbers[-1] + 1}")
        sync_folder(self.folder)
        self.written_runs += 1

    def _write_files(self, aside: Path, records: pa.Table) -> Iterator[RunFile]:
        if not records.num_rows:
            return
        times = _times_us(records, self.event_time)
        hours = times // HOUR_US
        found, counts = np.unique(hours, return_counts=True)
        own = found[np.argsort(-counts, kind="stable")[:MAX_HOURS]] if len(found) > MAX_HOURS else found
        for hour in np.sort(own).tolist():
            begin = _EPOCH + timedelta(hours=hour)
            yield self._write_file(
                aside, f"date={begin:%Y-%m-%d}/hour={begin:%H}.parquet", records, times, hours == hour
            )
        stray = ~np.isin(hours, own)
        if stray.any():
            yield self._write_file(aside, STRAY, records, times, stray)

    def _write_file(self, aside: Path, name: str, records: pa.Table, times: Any, mine: Any) -> RunFile:
        make_folder((aside / name).parent)
        content = _pack(records.filter(pa.array(mine)), self.event_time)
        write_durably(aside / name, content)
        self.written_bytes += len(content)
        return RunFile(name, int(mine.sum()), (int(times[mine].min()), int(times[mine].max()) + 1))


def _pack(records: pa.Table, event_time: str) -> bytes:
    """Return records as a Parquet file; event times and rows, which mostly ascend, are stored as differences."""
    ascending = {
        name: "DELTA_BINARY_PACKED"
        for name in (event_time, ROW)
        if name in records.column_names and _is_whole_or_time(records.schema.field(name).type)
    }
    empty = pa.BufferOutputStream()
    pq.write_table(records.schema.empty_table(), empty)
    written = pq.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    columns = [written.column(place).path for place in range(len(written))]  # those inside of lists and structs too
    buffer = pa.BufferOutputStream()
    pq.write_table(
        records,
        buffer,
        compression="zstd",
        row_group_size=ROW_GROUP,
        use_dictionary=[name for name in columns if name not in ascending] or False,
        column_encoding=ascending or None,
    )
    return bytes(buffer.getvalue().to_pybytes())


def _is_whole_or_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_int32(kind) or pa.types.is_timestamp(kind))


def _read_batch(path: Path, number: int) -> pa.Table:
    tables = [pq.read_table(file, coerce_int96_timestamp_unit="us") for file in sorted(path.glob("*.parquet"))]
    table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    return table.append_column(BATCH, pa.array(np.full(table.num_rows, number), pa.int64()))


def _times_us(table: pa.Table, column: str) -> Any:
    times = table[column].combine_chunks()
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("us", times.type.tz), safe=False)
    return np.asarray(pc.cast(times, pa.int64()))


def _describe(batch: Path) -> list[list[Any]] | None:
    """Return name, size and time of each file of a batch; None if it is not there."""
    try:
        with os.scandir(batch) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".parquet")]
    except FileNotFoundError:
        return None
    return sorted([name, told.st_size, told.st_mtime_ns] for name, told in found)


def _remove_files(folder: Path) -> None:
    """Remove a folder with all its files, if it is there."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            remove_file(path)
    if folder.is_dir():
        folder.rmdir()
