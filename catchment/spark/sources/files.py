"""The records of some files of a folder, as Spark reads them; which files these are is decided elsewhere.

Whole files are read by Spark's own readers. Pieces of files that grow are read as lines by the tasks. Spark brings no
reader of object stores, so objects that it is to read are copied first, into a folder of the site, for as long as their
batch is evaluated.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from catchment.files.folder import WatchedFolder
from catchment.files.lines import read_lines
from catchment.files.numbered_lines import find_parts, number_lines
from catchment.files.objects import ObjectFolder, copy_objects
from catchment.files.watch import FilePiece
from catchment.shedding.reader_filter import ROW, ReadRequest
from catchment.spark.sources.file_reread import LinePartReader
from catchment.spark.sources.reread import BatchRows, reread_rows

_GLOB = re.compile(r"([\\{}\[\]*?])")  # what Hadoop takes for a pattern in a path
_LINES = pa.schema([("value", pa.string())])


@dataclass(frozen=True)
class FileSource:
    """The files of a stream: `parquet` is the declared schema of Parquet files, None for text.

    `parse` makes records with `_raw` and `_problem` of what was read. `header` names the columns of CSV files.
    Files that are `removed_when_read` are the site's own. Objects are copied to `copies`, of which `free_bytes` of the
    disk are spared, and listed every `list_every_s`.
    """

    spark: SparkSession
    watched: WatchedFolder | ObjectFolder
    parse: Callable[..., DataFrame]  # of lines or rows; `carried` names columns that stay as they are
    parquet: str | None = None
    growing: bool = False
    header: tuple[str, ...] = ()
    removed_when_read: bool = False
    copies: Path = Path()
    free_bytes: int = 0
    list_every_s: float = 0.0
    has_header: bool = False  # whether each file begins with a line of names

    @property
    def can_be_numbered(self) -> bool:
        """Whether its records are lines of files on disk, of which a sample can be read by numbers."""
        return self.parquet is None and isinstance(self.watched, WatchedFolder)

    def number_rows(self, batch: int, pieces: Sequence[FilePiece]) -> BatchRows | None:
        """Return the lines of some pieces as the records of a batch, counted within it; None if they cannot be."""
        if not isinstance(self.watched, WatchedFolder):
            return None
        numbered = number_lines(self.watched, pieces, self.has_header)
        return None if numbered is None else BatchRows(batch, 0, numbered.records, numbered.place)

    def check(self, rows: BatchRows) -> None:
        """Refuse files of a batch that are gone, or have other content than when they were read."""
        assert isinstance(self.watched, WatchedFolder)
        find_parts(self.watched, rows.place)

    def reread(
        self, stream: str, filter_cpu_s: Accumulator[float], rows: BatchRows, wanted: Sequence[ReadRequest]
    ) -> DataFrame:
        """Return the records of a batch that are wanted, with their numbers (`ROW`)."""
        assert isinstance(self.watched, WatchedFolder)
        reader = LinePartReader(find_parts(self.watched, rows.place), rows.batch, stream, tuple(wanted))
        return self.parse(reread_rows(self.spark, reader, "value STRING", filter_cpu_s), carried=(ROW,))

    def read(self, pieces: Sequence[FilePiece]) -> DataFrame:
        """Return the records of some pieces."""
        if self.growing:
            return self.parse(self._read_lines(pieces))
        if isinstance(self.watched, ObjectFolder):
            folder = self.copies
            found = copy_objects(pieces, folder, self.free_bytes)
        else:
            folder = self.watched.folder
            found = [piece.path for piece in pieces]
        reader = self.spark.read.option("basePath", str(folder))
        paths = [_GLOB.sub(r"\\\1", path) for path in found]  # names are names: `a[1].json` is no pattern
        if self.parquet is None:
            return self.parse(reader.text(paths))
        return self.parse(reader.schema(self.parquet).parquet(*paths))

    def remove_copies(self) -> None:
        """Remove what was copied of objects, when nothing reads it any more."""
        if isinstance(self.watched, ObjectFolder):
            shutil.rmtree(self.copies, ignore_errors=True)

    def judge(self, lines: Sequence[str]) -> DataFrame:
        """Return the records that some lines of the files are."""
        return self.parse(self.spark.createDataFrame(pa.table([pa.array(lines, pa.string())], _LINES)))

    def _read_lines(self, pieces: Sequence[FilePiece]) -> DataFrame:
        ranges = [(piece.path, piece.start, piece.end) for piece in pieces]

        def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in (n for batch in numbers for n in batch.column(0).to_pylist()):
                lines = pa.array(read_lines(*ranges[number]), pa.string())
                yield pa.RecordBatch.from_arrays([lines], schema=_LINES)

        tasks = min(len(ranges), self.spark.sparkContext.defaultParallelism)
        return self.spark.range(0, len(ranges), 1, tasks).mapInArrow(work, "value STRING")
