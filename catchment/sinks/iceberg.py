"""Answers in an Iceberg table of a catalog: each batch is one commit, with the place that it reaches.

The place is a property of the table, changed in the transaction that changes the rows, and of the snapshot, where it
tells which snapshot has which answers. The catalog takes a commit only on top of the table that was read, so of two
centers that deliver at once one is refused and tries again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from catchment.records.object_store import without_secrets
from catchment.sinks.lake_rows import change_rows, read_place, touched_windows, write_place
from catchment.sinks.target import ChangeBatch, Place, SinkError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAME = "name"  # the setting that names the catalog: one database may hold several
DEFAULT_NAME = "default"
# How long a store may take, unless the settings say otherwise; whoever delivers tries again.
PATIENCE = {"s3.connect-timeout": "10", "s3.request-timeout": "60"}


class IcebergTarget:
    """A table: one row per window and key, or every change where the sink is a changelog."""

    def __init__(self, name: str, table: str, catalog_settings: Mapping[str, str]) -> None:
        self._name = name
        self._shown = table
        self._settings = {**PATIENCE, **catalog_settings}
        self._property = f"catchment.sink.{name}"
        self._catalog: Catalog | None = None

    def place(self) -> Place | None:
        with self._told():
            table = self._load()
            return None if table is None else read_place(table.properties.get(self._property))

    def write(self, batch: ChangeBatch) -> None:
        with self._told():
            table = self._load()
            if table is None:
                if not batch.rows.num_rows:
                    return  # there is no table yet, and nothing to make one of: the next batch says how far it is
                table = self._make(batch)
            reached = {self._property: write_place(batch.end)}
            rows, windows = self._changed(table, batch)
            with table.transaction() as change:
                with change.update_schema() as schema:
                    schema.union_by_name(rows.schema)
                change.set_properties(reached)
                if windows:
                    change.overwrite(rows, _of_windows(windows), snapshot_properties=reached)
                elif rows.num_rows:
                    change.append(rows, snapshot_properties=reached)

    def close(self) -> None:
        """Forget the catalog; what is not committed is not in the table."""
        self._catalog = None

    def _changed(self, table: Table, batch: ChangeBatch) -> tuple[pa.Table, list[str]]:
        """Return the rows to write, and the windows whose rows they replace."""
        if batch.is_changelog or not batch.rows.num_rows:
            return batch.rows, []
        windows = [(EPOCH + timedelta(microseconds=start)).isoformat() for start in touched_windows(batch)]
        known = table.scan(row_filter=_of_windows(windows)).to_arrow()
        return change_rows(known, batch), windows if known.num_rows else []

    def _load(self) -> Table | None:
        if self._catalog is None:
            settings = {name: value for name, value in self._settings.items() if name != NAME}
            self._catalog = load_catalog(self._settings.get(NAME, DEFAULT_NAME), **settings)
        try:
            return self._catalog.load_table(self._shown)
        except NoSuchTableError:
            return None

    def _make(self, batch: ChangeBatch) -> Table:
        assert self._catalog is not None
        self._catalog.create_namespace_if_not_exists(self._shown.rpartition(".")[0])
        rows = batch.rows if batch.is_changelog else change_rows(None, batch)
        return self._catalog.create_table_if_not_exists(self._shown, schema=rows.schema)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the catalog, the store and the table into errors of the sink; the next attempt begins anew."""
        try:
            yield
        except SinkError:
            raise
        except Exception as failure:
            self.close()
            told = without_secrets(f"{type(failure).__name__}: {failure}", self._settings)
            raise SinkError(
                f"the Iceberg table {self._shown} cannot be written: {told}",
                where=f"sink {self._name!r}",
                hint="check the catalog, the store and their keys in catalog_config, and the columns of the table; it "
                "is tried again",
            ) from failure


def _of_windows(starts: Sequence[str]) -> str:
    """Return the condition that a row is of one of the windows that start at these instants."""
    return f"window_start IN ({', '.join(map(repr, starts))})"
