"""Records of a stream kept as Parquet, one folder a micro-batch, partitioned by event time.

Writing a batch again replaces it, so a replayed micro-batch leaves one copy. Raw history and quarantine are both
kept this way; executors write, nothing passes through the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.wire.files import sync_files

HOUR_COLUMN = "event_hour"
BATCH_COLUMN = "batch"


@dataclass(frozen=True)
class BatchFolder:
    """The batches of one stream at one site."""

    folder: Path

    def write(self, rows: DataFrame, batch_id: int, event_time: str) -> None:
        """Keep the rows of a batch, by the hour of their event time."""
        hour = F.date_format(F.col(event_time), "yyyy-MM-dd-HH")
        target = self.folder / f"{BATCH_COLUMN}={batch_id}"
        rows.withColumn(HOUR_COLUMN, hour).write.mode("overwrite").partitionBy(HOUR_COLUMN).parquet(str(target))
        sync_files(target.glob("*/*.parquet"))

    def batch(self, spark: SparkSession, batch_id: int, schema: str) -> DataFrame:
        """The rows of one batch that was written."""
        return spark.read.schema(schema).parquet(str(self.folder / f"{BATCH_COLUMN}={batch_id}"))

    def read(self, spark: SparkSession) -> DataFrame | None:
        """Every row of every batch, or None if nothing was written."""
        if not any(self.folder.glob(f"{BATCH_COLUMN}=*/*/*.parquet")):
            return None
        return spark.read.option("basePath", str(self.folder)).parquet(str(self.folder))
