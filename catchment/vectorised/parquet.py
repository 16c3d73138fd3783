"""Reading Parquet files as Spark reads them: columns by name, with the declared types.

Only files whose columns have exactly the declared types are read here; any other file, and whatever Arrow cannot read,
is left to Spark, which converts it or refuses it with its own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.files.watch import FilePiece
from catchment.query.types import TIMESTAMP
from catchment.records.object_store import S3Settings, path_in_store
from catchment.vectorised.coercion import NotVectorisedError, is_plain
from catchment.vectorised.parts import FilePart, share_parts
from catchment.vectorised.records import RecordColumns

BATCH_BYTES = 64 << 20  # of the columns that are read at a time
MAX_BATCH_ROWS = 1 << 20
MIN_BATCH_ROWS = 1 << 14
_OLD_CALENDAR = b"org.apache.spark.legacyDateTime"  # Spark's mark of a file with days of the Julian calendar
_SPARK_VERSION = b"org.apache.spark.version"


def read_part(part: FilePart, columns: pa.Schema) -> Iterator[RecordColumns]:
    """Yield the records of a part with these columns; null where the file has no such column."""
    if any("=" in folder for folder in Path(part.path).parts[:-1]):
        raise NotVectorisedError(f"{part.path} may have columns in the names of its folders")
    with _open(part.path, part.store) as file:
        present = _check_columns(file, columns, part.path)
        groups = list(range(file.num_row_groups)) if part.row_groups is None else list(part.row_groups)
        rows = _batch_rows(file, groups, present)
        for batch in file.iter_batches(rows, groups, columns=present or None, use_threads=False):
            yield _conform(batch, columns)


def _open(path: str, store: S3Settings | None) -> pq.ParquetFile:
    if store is None:
        return pq.ParquetFile(path)
    with store.telling(path):
        return pq.ParquetFile(store.filesystem().open_input_file(path_in_store(path)), pre_buffer=True)


def split_files(pieces: Sequence[FilePiece], tasks: int, small_bytes: int) -> list[list[FilePart]]:
    """Return the files as parts for up to this many tasks, of about equal sizes and in their order.

    Few large files are cut between row groups; files that together are small are left to one task.
    """
    total = sum(piece.end for piece in pieces)
    if total <= small_bytes:
        tasks = 1
    parts: list[tuple[FilePart, int]] = []
    for piece in sorted(pieces, key=lambda piece: piece.path):
        groups = _count_groups(piece) if tasks > 1 and piece.end * tasks > total else 1
        if groups == 1:
            parts.append((FilePart(piece.path, len(parts), store=piece.store), piece.end))
        else:
            cut = (FilePart(piece.path, len(parts) + g, (g,), store=piece.store) for g in range(groups))
            parts += [(part, piece.end // groups) for part in cut]
    return share_parts(parts, tasks)


def _count_groups(piece: FilePiece) -> int:
    with _open(piece.path, piece.store) as file:
        return int(file.num_row_groups)


def _check_columns(file: pq.ParquetFile, columns: pa.Schema, path: str) -> list[str]:
    """Return the columns that the file has; refuse those that Spark would read in another way."""
    metadata = file.metadata.metadata or {}
    if _OLD_CALENDAR in metadata or metadata.get(_SPARK_VERSION, b"3").startswith((b"1.", b"2.")):
        raise NotVectorisedError(f"{path} has days of the Julian calendar")
    found = {field.name: field.type for field in file.schema_arrow}
    lowered = {name.lower() for name in found}
    if len(lowered) < len(found):
        raise NotVectorisedError(f"{path} has columns that differ only in case")
    for field in columns:
        if field.name not in found and field.name.lower() in lowered:
            raise NotVectorisedError(f"the column {field.name} is written otherwise in {path}")
        if field.name in found and not _is_read_as(found[field.name], field.type):
            raise NotVectorisedError(f"the column {field.name} is {found[field.name]} in {path}")
    return [name for name in columns.names if name in found]


def _is_read_as(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether Spark reads a stored type as a declared one without another thought."""
    if declared == TIMESTAMP:
        return bool(pa.types.is_timestamp(stored) and stored.tz is not None and stored.unit in ("us", "ms"))
    if declared == pa.string():
        return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored) or _is_text_dictionary(stored))
    return bool(stored == declared and (is_plain(declared) or declared == pa.binary()))


def _is_text_dictionary(type_: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(type_) and pa.types.is_string(type_.value_type))


def _batch_rows(file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]) -> int:
    """Return how many rows of these columns are about `BATCH_BYTES`."""
    size = 1
    rows = 1
    for number in groups:
        group = file.metadata.row_group(number)
        rows += group.num_rows
        chunks = (group.column(c) for c in range(group.num_columns))
        size += sum(c.total_uncompressed_size for c in chunks if c.path_in_schema in columns)
    return max(MIN_BATCH_ROWS, min(MAX_BATCH_ROWS, BATCH_BYTES * rows // size))


def _conform(batch: pa.RecordBatch, columns: pa.Schema) -> RecordColumns:
    found = {}
    for field in columns:
        if field.name in batch.schema.names:
            found[field.name] = batch.column(field.name).cast(field.type)
        else:
            found[field.name] = pa.nulls(batch.num_rows, field.type)
    return RecordColumns(found, batch.num_rows)
