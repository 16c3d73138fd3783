"""Records of a stream on disk as Parquet, one folder per micro-batch.

Writing a batch again replaces it, so a replayed micro-batch leaves one copy. Raw history and quarantine are both
written this way; executors write, nothing passes through the driver. Where files are scanned without Spark SQL
(`catchment.spark.evaluation.file_scan`), the tasks write the files of an attempt, which is then renamed to the batch. A
batch is not partitioned by event time, which would sort every record: the footers of its files say which event times it
holds (`catchment.storage.batch_times`), so that who asks for some of them opens only the files that matter.

In the background older batches are compacted into runs, whose files are by the hour of event times
(`catchment.storage.compacted_batches`), which may be moved to an object store (`catchment.records.stored_history`); a
batch is read from either.

Where a stream's history is a reference, a batch names the files that it was read from
(`catchment.storage.referenced_batches`), and is read from those.

Raw history has the column `_row`: the number of a record within its batch, or in its source where that numbers its
records. A shed batch is repaired by it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.errors import EngineError
from catchment.files.references import FilesLostError
from catchment.records.stored_history import StoredHistory
from catchment.shedding.places import ROW
from catchment.spark.sources.references import ReferencedRecords
from catchment.storage.batch_times import FileTimes, TimeSpan, read_times
from catchment.storage.compacted_batches import BATCH, CompactedRun, find_run
from catchment.storage.files import make_folder, remove_file, rename_file, sync_files, sync_folder
from catchment.storage.referenced_batches import BatchReference, read_reference, write_reference

BATCH_COLUMN = "batch"
ATTEMPT = "_attempt"  # begins the names of folders of files that do not count yet; Spark ignores names with _


def number_rows(rows: DataFrame) -> DataFrame:
    """Return the rows with `_row`: as their source numbers them, or else in the order in which each task has them."""
    if ROW in rows.columns:
        return rows
    return rows.withColumn(ROW, F.monotonically_increasing_id())


@dataclass(frozen=True)
class BatchFolder:
    """The batches of one stream at one site; compacted ones may be in a store, and some may refer to files."""

    folder: Path
    stored: StoredHistory | None = None
    open_referenced: Callable[[], ReferencedRecords | None] = lambda: None

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch, durably, in place of those that were there."""
        target = self._path(batch_id)
        fresh = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        rows.write.mode("overwrite").option("compression", "zstd").parquet(str(target))
        sync_files(target.glob("*.parquet"))
        for folder in (target, *fresh):  # their names are in the folders above them
            sync_folder(folder.parent)

    def refer(self, reference: BatchReference, batch_id: int) -> None:
        """Let a batch be a reference, durably, in place of what was there."""
        write_reference(self._path(batch_id), reference)

    def reference(self, batch_id: int) -> BatchReference | None:
        """Return what a batch refers to; None if it is a copy, or not there."""
        return read_reference(self._path(batch_id))

    def check(self, batch_id: int) -> None:
        """Raise `FilesLostError` if a batch refers to files that are no longer as they were."""
        reference = self.reference(batch_id)
        if reference is None:
            return
        try:
            referenced = self.open_referenced()
        except EngineError as error:
            raise FilesLostError(error.message) from error
        if referenced is None:
            raise FilesLostError(f"batch {batch_id} refers to files, and the stream reads none any more")
        referenced.check(reference)

    def has(self, batch_id: int) -> bool:
        """Return whether a batch was written."""
        if self._files(batch_id):
            return True
        reference = self.reference(batch_id)
        if reference is not None:
            return reference.times.rows > 0
        run = find_run(self.folder, batch_id)
        return run is not None and run.batches[batch_id].rows > 0

    def remove(self, batch_id: int) -> None:
        """Remove what was written of a batch that was not committed."""
        shutil.rmtree(self._path(batch_id), ignore_errors=True)

    def begin_attempt(self) -> Path:
        """Return an empty folder for the files of a batch to come: they do not count before they are committed."""
        make_folder(self.folder)
        attempt = self.folder / f"{ATTEMPT}-{uuid.uuid4().hex[:12]}"
        attempt.mkdir()
        return attempt

    def remove_attempts(self) -> None:
        """Remove what a process that was killed has written ahead; none may be under way."""
        for attempt in self.folder.glob(f"{ATTEMPT}*"):
            shutil.rmtree(attempt, ignore_errors=True)

    def commit_attempt(self, attempt: Path, files: Sequence[str], batch_id: int) -> None:
        """Let these durable files of an attempt be the batch, in place of what was there, and forget its others."""
        target = self._path(batch_id)
        shutil.rmtree(target, ignore_errors=True)
        rename_file(attempt, target)  # first: whoever is still at work on a lost attempt finds its folder gone
        others = [path for path in target.iterdir() if path.name not in files]
        for path in others:
            remove_file(path)
        if others:
            sync_folder(target)  # or a power cut would bring them back
        sync_folder(self.folder)

    def batch(self, spark: SparkSession, batch_id: int, schema: str) -> DataFrame:
        """Return these columns of a batch that was written."""
        return self.batches(spark, [batch_id], schema)

    def batches(
        self, spark: SparkSession, batch_ids: Sequence[int], schema: str, span: TimeSpan | None = None
    ) -> DataFrame:
        """Return these columns of several batches that were written; those that they lack are null.

        With a span of event times, compacted records of other hours may be left out. References have the columns of
        the stream, and no numbers of rows.
        """
        if self.stored is not None:
            self.stored.make_room()
        plain = [n for n in batch_ids if self._files(n)]
        parts = [spark.read.schema(schema).parquet(*(str(f) for n in plain for f in self._files(n)))] if plain else []
        references = {n: found for n in set(batch_ids).difference(plain) if (found := self.reference(n))}
        referenced = self.open_referenced() if references else None
        if referenced is not None:
            parts.append(referenced.read([references[n] for n in sorted(references)]))
        for run, numbers in self._runs_of(set(batch_ids).difference(plain, references)):
            files = run.files_of(span) if self.stored is None else self.stored.files_of(run, span)
            if files:
                read = spark.read.schema(f"{schema}, `{BATCH}` BIGINT").parquet(*map(str, files))
                mine = read if numbers >= run.batches.keys() else read.where(F.col(BATCH).isin(sorted(numbers)))
                parts.append(mine.drop(BATCH))
        return reduce(DataFrame.unionAll, parts) if parts else spark.createDataFrame([], schema)

    def times(self, batch_id: int, event_time: str) -> FileTimes | None:
        """Return which event times a batch holds, by its footers; None if it was never written, or removed."""
        reference = self.reference(batch_id)
        if reference is not None:
            return reference.times
        files = self._files(batch_id)
        run = find_run(self.folder, batch_id) if not files else None
        if run is not None:
            return run.batches[batch_id]
        return read_times(files, event_time) if self._path(batch_id).is_dir() else None

    def _files(self, batch_id: int) -> list[Path]:
        return sorted(self._path(batch_id).glob("*.parquet"))

    def _runs_of(self, batch_ids: set[int]) -> Iterator[tuple[CompactedRun, set[int]]]:
        """Yield the runs that hold some batches, each with those that it holds."""
        left = set(batch_ids)
        while left:
            number = min(left)
            run = find_run(self.folder, number)
            held = {number} if run is None else left & run.batches.keys()
            if run is not None:
                yield run, held
            left -= held

    def _path(self, batch_id: int) -> Path:
        return self.folder / f"{BATCH_COLUMN}={batch_id}"
