"""A source that a project brings itself: a class in a module of its folder, which reads records between two places.

Three methods are the whole interface. A place is anything that JSON can hold, such as a number or a dictionary; only
the source knows what it means. The engine keeps the places: after a restart it goes on from the last one, and it may
read the same records again, so `read` must return the same ones for the same two places.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from catchment.errors import EngineError

Place = Any  # what JSON can hold


class RecordSource(Protocol):
    """What a class must have to be the source of a stream. What it raises is told, and tried again."""

    def begin(self) -> Place:
        """Return the place of the first record."""

    def end(self, start: Place) -> Place:
        """Return up to where records can be read now; `start` itself if there is none behind it."""

    def read(self, start: Place, end: Place) -> Iterable[pa.Table | pa.RecordBatch]:
        """Return the records between two places; the same ones whenever it is asked."""


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
