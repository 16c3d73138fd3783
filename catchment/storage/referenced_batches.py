"""Batches of raw records that are references: which files they were read from, in place of a copy of them.

The folder of such a batch (`batch=N`) has one small record. It names each file with its size and a digest of all its
bytes, so that whoever reads the batch again reads what was read first, or finds out that he cannot. A file belongs to
one batch as a whole. What decides which of its records were good is in the record too: the limits of plausible event
times, the columns that were declared then, and the header by which they were found. A batch is a copy or a reference,
never both. References are not compacted: there are no more of them than files.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from catchment.storage.batch_times import FileTimes
from catchment.storage.files import make_folder, read_record, write_record

REFERENCE = "_reference.json"  # Spark and Arrow pass over names that begin so


@dataclass(frozen=True, slots=True)
class ReferencedFile:
    """A file that was read as a whole: its name below the folder of its stream, and what tells its content."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class BatchReference:
    """The files of a batch, what its good records are, and which event times they have.

    `limits` are those of plausible event times, where some record was beyond them. `header` has the names of the
    columns of CSV files in their order.
    """

    files: tuple[ReferencedFile, ...]
    times: FileTimes
    columns: tuple[str, ...]
    header: tuple[str, ...] = ()
    limits: tuple[int, int, int, int] | None = None


def write_reference(batch: Path, reference: BatchReference) -> None:
    """Let a batch be a reference, durably, in place of what was there."""
    shutil.rmtree(batch, ignore_errors=True)
    make_folder(batch)
    write_record(
        batch / REFERENCE,
        {
            "files": [[file.name, file.size_bytes, file.digest] for file in reference.files],
            "rows": reference.times.rows,
            "span": reference.times.span,
            "columns": reference.columns,
            "header": reference.header,
            "limits": reference.limits,
        },
    )


def read_reference(batch: Path) -> BatchReference | None:
    """Return the reference that a batch is; None if it is a copy, or not there."""
    record = read_record(batch / REFERENCE)
    if record is None:
        return None
    span, limits = record["span"], record["limits"]
    return BatchReference(
        tuple(ReferencedFile(name, size_bytes, digest) for name, size_bytes, digest in record["files"]),
        FileTimes(record["rows"], None if span is None else (span[0], span[1])),
        tuple(record["columns"]),
        tuple(record["header"]),
        None if limits is None else (limits[0], limits[1], limits[2], limits[3]),
    )
