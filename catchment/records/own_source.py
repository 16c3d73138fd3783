"""A source that a project brings itself: a class in a module of its folder, which reads records between two places.

Three methods are the whole interface, and a fourth if the source knows its own progress. A place is anything that JSON
can hold, such as a number or a dictionary; only the source knows what it means. The engine keeps the places: after a
restart it goes on from the last one, and it may read the same records again, so `read` must return the same ones for
the same two places.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from catchment.errors import EngineError
from catchment.query.instant_type import TIMESTAMP

Place = Any  # what JSON can hold


class RecordSource(Protocol):
    """What a class must have to be the source of a stream. What it raises is told, and tried again."""

    def begin(self) -> Place:
        """Return the place of the first record."""

    def end(self, start: Place) -> Place:
        """Return up to where records can be read now; `start` itself if there is none behind it."""

    def read(self, start: Place, end: Place) -> Iterable[pa.Table | pa.RecordBatch]:
        """Return the records between two places; the same ones whenever it is asked."""


class StatingSource(RecordSource, Protocol):
    """A source that knows how far it is, for a stream with a `progress_column`."""

    def progress(self, end: Place) -> datetime | Mapping[str, datetime] | None:
        """Return the instant before which nothing comes after this place, or one per source; None if it is unknown."""


def state_progress(source: RecordSource, end: Place, progress: str | None, named: str | None) -> Iterator[pa.Table]:
    """Yield what a source states of its progress at a place, as markers; nothing if it does not, or nobody asks.

    `progress` and `named` are the columns of the stream that take the progress and the name of a source.
    """
    state = getattr(source, "progress", None)
    stated = state(end) if progress is not None and state is not None else None
    if stated is None or progress is None:
        return
    if not isinstance(stated, Mapping):
        yield pa.table({progress: pa.array([_utc(stated)], TIMESTAMP)})
    elif named is None:
        raise EngineError(
            "the source states the progress of several sources, and the stream names no source",
            hint="set source = '<column>' in the stream's WITH (...), or return one instant for all",
        )
    elif stated:
        instants = [_utc(instant) for instant in stated.values()]
        yield pa.table({named: list(stated), progress: pa.array(instants, TIMESTAMP)})


def _utc(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def load_own_class(reference: str, folder: Path) -> Any:
    """Return a class of the project: `module:Class`, in a module of its folder."""
    module, _, name = reference.partition(":")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # behind all else: a file of the project must not stand for a library's
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as cause:
        raise EngineError(
            f"there is no class {name!r} in module {module!r}: {cause}",
            hint=f"write it into {module.replace('.', '/')}.py in the project folder",
        ) from cause


def fit_records(given: Iterable[pa.Table | pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield records with the declared columns: those that are missing are null, and others are left out."""
    for records in given:
        table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
        columns = [_fit_column(table, field) for field in schema]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def _fit_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type)
    column = table.column(field.name)
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise EngineError(
            f"the source gives the column {field.name!r} as {column.type}, and {field.type} is declared: {error}",
            hint="let it give values of the declared type, or declare the column as what it gives",
        ) from error
