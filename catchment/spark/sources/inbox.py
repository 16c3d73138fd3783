"""The inbox as a Spark source: one row a landed segment, in order of arrival position.

Rows say where a segment lies, not what is in it: the offset, the checkpoint and the replay after a crash are
Spark's, the bytes stay in the inbox until the center's journal has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from catchment.storage.files import read_record
from catchment.wire.inbox import LANDED, STATE_FILE

SEGMENTS_PER_BATCH = 512


@dataclass
class Positions(InputPartition):
    """Landed segments [start, end)."""

    start: int
    end: int


class InboxSource(DataSource):
    """Option: folder (of the inbox)."""

    @classmethod
    def name(cls) -> str:
        return "catchment_inbox"

    def schema(self) -> str:
        return "start BIGINT, end BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        return InboxReader(Path(self.options["folder"]))


class InboxReader(DataSourceStreamReader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"position": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(SEGMENTS_PER_BATCH)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        end = _landed_end(self.folder)
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["position"] + limit.max_rows)
        return {"position": max(end, start["position"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Positions(start["position"], end["position"])] if end["position"] > start["position"] else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        assert isinstance(partition, Positions)
        yield (partition.start, partition.end)


def _landed_end(folder: Path) -> int:
    """One past the newest position; Spark asks from a process of its own, so this looks at the files alone."""
    newest = max((int(p.name.removesuffix(LANDED)) for p in folder.glob(f"*{LANDED}")), default=-1)
    state = read_record(folder / STATE_FILE)
    return max(newest + 1, state["discarded"] if state else 0)
