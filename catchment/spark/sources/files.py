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
from pyspark.sql import DataFrame, SparkSession

from catchment.files.folder import WatchedFolder
from catchment.files.lines import read_lines
from catchment.files.objects import ObjectFolder, copy_objects
from catchment.files.watch import FilePiece

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
    parse: Callable[[DataFrame], DataFrame]
    parquet: str | None = None
    growing: bool = False
    header: tuple[str, ...] = ()
    removed_when_read: bool = False
    copies: Path = Path()
    free_bytes: int = 0
    list_every_s: float = 0.0

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
