"""Look-up tables at a site: read when it starts, and read again when they have changed, if they are to be.

A version of a table is the digest of its files or, in a database, of its rows. A table that is read again is held in
memory as it was read, so a version never changes under the batches that use it, whatever happens to the files. It is
looked at when a batch asks for it, at most every `refresh`; of a database all rows are read to do that. A new version
that cannot be read, or whose rows are not unique as the table says, leaves the one before in use, and the status says
why.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.aggregates import quote
from catchment.errors import CatchmentError, EngineError
from catchment.files.digest import digest_of
from catchment.query.sql.connectors import FilesConnector, PostgresConnector
from catchment.query.sql.statements import VERSION_COLUMN, Table
from catchment.records.unique_rows import check_unique
from catchment.spark.sources.streams import ddl, read_table
from catchment.timeline import Clock

MAX_READS = 5  # of a table whose files change while they are read; then it is looked at again later
VERSION_DIGITS = 12  # of the digest, as it is shown

_log = logging.getLogger(__name__)


@dataclass
class TableVersion:
    """One version of a table, as it was read."""

    rows: DataFrame
    version: str
    read_at_us: int
    looked_at_us: int
    problem: str | None = None  # why a newer version is not in use


class HeldTables(NamedTuple):
    """Tables that do not change while a batch uses them, and the (table, version) of those that may change later."""

    rows: Mapping[str, DataFrame]
    versions: tuple[tuple[str, str], ...] = ()


class LookupTables(Mapping[str, DataFrame]):
    """The tables that records are looked up in, by name; reading one gives its rows as they are to be used now."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, Table], base: Path, clock: Clock) -> None:
        self._spark = spark
        self._tables = tables
        self._base = base
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {name: self._read_first(table) for name, table in tables.items()}

    def __getitem__(self, name: str) -> DataFrame:
        return self._current(name).rows

    def _current(self, name: str) -> TableVersion:
        with self._lock:
            known = self._known[name]
            refresh_us = self._tables[name].refresh_us
            if refresh_us is not None and self._clock.now_us() - known.looked_at_us >= refresh_us:
                self._look_again(self._tables[name], known)
            return self._known[name]

    def hold(self, names: Iterable[str]) -> HeldTables:
        """Return tables as they are to be used now; they stay as they are."""
        current = {name: self._current(name) for name in dict.fromkeys(names)}
        changing = [(name, c.version) for name, c in current.items() if self._tables[name].refresh_us is not None]
        return HeldTables({name: c.rows for name, c in current.items()}, tuple(changing))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def status(self) -> dict[str, Any]:
        """Return the version of each table that is in use, as plain JSON."""
        return {
            name: {"version": known.version, "read_at_us": known.read_at_us, "problem": known.problem}
            for name, known in self._known.items()
        }

    def _read_first(self, table: Table) -> TableVersion:
        if table.refresh_us is not None or isinstance(table.connector, PostgresConnector):
            return self._read(table)
        now_us = self._clock.now_us()
        rows = read_table(self._spark, table, self._base).cache()
        if table.unique:
            check_unique(table, rows.select(*map(quote, table.unique)).toArrow())
        return self._make(table, rows, self._version_of_files(table.connector), now_us)

    def _make(self, table: Table, rows: DataFrame, version: str, now_us: int) -> TableVersion:
        """Return a version, whose rows name it."""
        named = rows.withColumn(VERSION_COLUMN, F.lit(version)) if table.has_version else rows
        return TableVersion(named, version, now_us, now_us)

    def _look_again(self, table: Table, known: TableVersion) -> None:
        """Take a new version into use, if there is one that can be read."""
        known.looked_at_us = self._clock.now_us()
        try:
            newer = self._read_newer(table, known)
        except (CatchmentError, OSError) as error:
            if known.problem != str(error):
                _log.warning("table %s: version %s stays in use: %s", table.name, known.version, error)
            known.problem = str(error)
            return
        known.problem = None
        if newer is not None:
            self._known[table.name] = newer
            _log.info("table %s: version %s is in use", table.name, newer.version)

    def _read_newer(self, table: Table, known: TableVersion) -> TableVersion | None:
        """Return the version that a table has now, or None if that is the known one."""
        if isinstance(table.connector, FilesConnector):
            is_known = self._version_of_files(table.connector) == known.version
            return None if is_known else self._read(table)
        newer = self._read(table)
        return None if newer.version == known.version else newer

    def _read(self, table: Table) -> TableVersion:
        """Return the rows of a table in memory."""
        if isinstance(table.connector, FilesConnector):
            rows, version = self._read_files(table, table.connector)
        else:
            from catchment.records.postgres_rows import read_postgres_rows, version_of_rows

            rows = read_postgres_rows(table, self._base)
            version = version_of_rows(rows)[:VERSION_DIGITS]
        check_unique(table, rows)
        now_us = self._clock.now_us()
        return self._make(table, self._spark.createDataFrame(rows, ddl(table)), version, now_us)

    def _read_files(self, table: Table, files: FilesConnector) -> tuple[pa.Table, str]:
        """Return rows and version of files; those that change meanwhile are read again."""
        for _ in range(MAX_READS):
            version = self._version_of_files(files)
            rows = read_table(self._spark, table, self._base).toArrow()
            if self._version_of_files(files) == version:
                return rows, version
        raise EngineError(
            f"the files of table {table.name!r} change while they are read",
            where=table.where,
            hint="write a new file elsewhere, then rename it into place",
        )

    def _version_of_files(self, connector: FilesConnector) -> str:
        path = self._base / connector.path
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
        sha = hashlib.sha256()
        for file in files:
            sha.update(str(file.relative_to(path)).encode())
            sha.update(digest_of(file, file.stat().st_size) or b"")
        return sha.hexdigest()[:VERSION_DIGITS]
