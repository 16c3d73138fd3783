"""Answers in a Delta table, in a folder or in an object store: each batch is one commit, with the place it reaches.

The place is the description of an application transaction, which Delta checks when two writers commit at once, and a
property of the commit. Object stores that speak S3 take a commit only if its version is not there yet
(`If-None-Match`), so no other locks are needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from catchment.center.results.store import in_fresh_buffers
from catchment.records.object_store import S3Settings, without_secrets
from catchment.sinks.lake_rows import change_rows, touched_windows
from catchment.sinks.target import ChangeBatch, Place, SinkError

STEPS = 1 << 20  # steps of one entry, in the number of a transaction
COMPACT_EVERY = 64  # batches after which small files are folded into large ones
KEEP_HOURS = 24  # of files that were replaced, for readers that have begun


class DeltaTarget:
    """A table: one row per window and key, or every change where the sink is a changelog."""

    def __init__(self, name: str, path: str, life: str, settings: S3Settings | None = None) -> None:
        self._name = name
        self._path = path
        self._life = life
        self._application = f"catchment sink {name} {life}"
        self._settings = settings or S3Settings()
        self._options = None if settings is None else settings.delta_options()
        self._batches = 0

    def place(self) -> Place | None:
        with self._told():
            table = self._open()
            number = None if table is None else table.transaction_version(self._application)
        return None if number is None else Place(self._life, *divmod(number, STEPS))

    def write(self, batch: ChangeBatch) -> None:
        with self._told():
            table = self._open()
            if table is None and not batch.rows.num_rows:
                return  # there is no table yet, and nothing to make one of: the next batch says how far it is
            self._write(table, batch)
            self._batches += 1
            if self._batches % COMPACT_EVERY == 0:
                self._compact()

    def _write(self, table: DeltaTable | None, batch: ChangeBatch) -> None:
        number = batch.end.entry * STEPS + batch.end.step
        commit = CommitProperties(app_transactions=[Transaction(self._application, number)])
        starts = touched_windows(batch)
        if table is None:
            rows = batch.rows if batch.is_changelog else change_rows(None, batch)
            write_deltalake(self._path, in_fresh_buffers(rows), storage_options=self._options, commit_properties=commit)
        elif batch.is_changelog or not starts:
            write_deltalake(
                table, in_fresh_buffers(batch.rows), mode="append", schema_mode="merge", commit_properties=commit
            )
        else:
            wanted = pa.array(starts, pa.int64()).cast(batch.rows["window_start"].type)
            known = table.to_pyarrow_table(filters=pc.field("window_start").isin(wanted))
            write_deltalake(
                table,
                in_fresh_buffers(change_rows(known, batch)),
                mode="overwrite",
                predicate=f"window_start IN ({', '.join(map(_instant, starts))})",
                schema_mode="merge",
                commit_properties=commit,
            )

    def _open(self) -> DeltaTable | None:
        """Return the table, or None where there is none yet.

        It is opened rather than asked for (`is_deltatable`), which would keep every other thread of the process waiting
        for the store.
        """
        try:
            return DeltaTable(self._path, storage_options=self._options)
        except TableNotFoundError:
            return None

    def _compact(self) -> None:
        table = self._open()
        if table is not None:
            table.optimize.compact()
            table.vacuum(retention_hours=KEEP_HOURS, dry_run=False, enforce_retention_duration=False)
            table.create_checkpoint()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the table and of its store into errors of the sink."""
        try:
            yield
        except (DeltaError, OSError, ValueError, pa.ArrowException) as failure:
            told = without_secrets(str(failure), self._settings.secrets)
            raise SinkError(
                f"the Delta table {self._path} cannot be written: {told}",
                where=f"sink {self._name!r}",
                hint="check path, the store's address and keys in store_config, and the columns of the table; it is "
                "tried again",
            ) from failure


def _instant(micros: int) -> str:
    return f"arrow_cast({micros}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
