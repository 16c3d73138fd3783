"""Records of a stream kept as Parquet, one folder a micro-batch.

Writing a batch again replaces it, so a replayed micro-batch leaves one copy. Raw history and quarantine are both
kept this way; executors write, nothing passes through the driver. A batch is not split by event time, which would
sort every record: the footers of its files say which event times it holds, and `between` opens only those that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.storage.files import sync_files

BATCH_COLUMN = "batch"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class BatchFolder:
    """The batches of one stream at one site."""

    folder: Path

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Keep the rows of a batch."""
        target = self._of(batch_id)
        rows.write.mode("overwrite").option("compression", "zstd").parquet(str(target))
        sync_files(target.glob("*.parquet"))

    def batch(self, spark: SparkSession, batch_id: int, schema: str) -> DataFrame:
        """The rows of one batch that was written."""
        return spark.read.schema(schema).parquet(str(self._of(batch_id)))

    def differ_in_size(self, batch_id: int) -> bool:
        """Whether no two files of a batch have the same size."""
        sizes = [file.stat().st_size for file in self._of(batch_id).glob("*.parquet")]
        return len(set(sizes)) == len(sizes)

    def between(
        self, spark: SparkSession, schema: str, event_time: str, start_us: int, end_us: int
    ) -> DataFrame | None:
        """The rows of event time in [start, end), from the files that hold any; None if there are none."""
        files = [str(f) for f in self.files_between(event_time, start_us, end_us)]
        if not files:
            return None
        time = F.unix_micros(F.col(event_time))
        rows = spark.read.schema(schema).parquet(*files)
        return rows.where((time >= start_us) & (time < end_us))

    def files_between(self, event_time: str, start_us: int, end_us: int) -> list[Path]:
        """The files whose rows may have an event time in [start, end), by what their footers say."""
        return [f for f in sorted(self.folder.glob(f"{BATCH_COLUMN}=*/*.parquet"))
                if _meets(f, event_time, start_us, end_us)]  # fmt: skip

    def _of(self, batch_id: int) -> Path:
        return self.folder / f"{BATCH_COLUMN}={batch_id}"


def _meets(file: Path, column: str, start_us: int, end_us: int) -> bool:
    footer = pq.read_metadata(file)
    place = footer.schema.names.index(column)
    for number in range(footer.num_row_groups):
        known = footer.row_group(number).column(place).statistics
        if known is None or not known.has_min_max:  # nothing is known, so it may
            return True
        if _micros(known.min) < end_us and start_us <= _micros(known.max):
            return True
    return False


def _micros(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
