"""The records of batches that are references: read from their files again, as they were read first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import attrgetter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from catchment.files.references import ReferencedFiles
from catchment.files.watch import FilePiece
from catchment.query.sql.statements import Stream
from catchment.query.types import sql_type
from catchment.site.plausible import PlausibleTimes
from catchment.spark.sources.files import FileSource
from catchment.spark.sources.records import good_records, mark_implausible
from catchment.storage.referenced_batches import BatchReference

_READ_ALIKE = attrgetter("columns", "header", "limits")


@dataclass(frozen=True)
class ReferencedRecords:
    """Reads what the references of one stream at one site stand for.

    `open_files` returns what reads files of a stream whose columns are in the order of a header.
    """

    stream: Stream
    files: ReferencedFiles
    open_files: Callable[[Stream, Sequence[str]], FileSource]

    def check(self, reference: BatchReference) -> None:
        """Raise `FilesLostError` if a file of a reference is not as it was."""
        self.files.find(reference.files)

    def read(self, references: Sequence[BatchReference]) -> DataFrame:
        """Return the good records of some references with the columns of the stream; those that are new are null."""
        alike: dict[object, list[BatchReference]] = defaultdict(list)
        for reference in references:
            alike[_READ_ALIKE(reference)].append(reference)
        return reduce(DataFrame.unionAll, (part for group in alike.values() for part in self._read_alike(group)))

    def _read_alike(self, references: Sequence[BatchReference]) -> Iterator[DataFrame]:
        first = references[0]
        declared = _as_declared_then(self.stream, first.columns)
        source = self.open_files(declared, first.header)
        limits = None if first.limits is None else PlausibleTimes(*first.limits)
        pieces = [piece for reference in references for piece in self.files.find(reference.files)]
        for distinct in _split_distinct(pieces):
            records = mark_implausible(source.read(distinct), self.stream.event_time, limits)
            yield good_records(records).select(
                *(
                    F.col(f"`{c.name}`") if c in declared.columns else F.lit(None).cast(sql_type(c.type)).alias(c.name)
                    for c in self.stream.columns
                )
            )


def _as_declared_then(stream: Stream, names: Sequence[str]) -> Stream:
    """Return a stream without the columns that were added since it had these: they decide which records are good."""
    if stream.event_time not in names:
        return stream
    return replace(
        stream,
        columns=tuple(column for column in stream.columns if column.name in names),
        source=stream.source if stream.source in names else None,
        progress_column=stream.progress_column if stream.progress_column in names else None,
    )


def _split_distinct(pieces: Sequence[FilePiece]) -> Iterator[list[FilePiece]]:
    """Yield the pieces in groups that name no file twice: of equal files, one may stand for several."""
    left = list(pieces)
    while left:
        distinct = list({piece.name: piece for piece in left}.values())
        yield distinct
        for piece in distinct:
            left.remove(piece)
