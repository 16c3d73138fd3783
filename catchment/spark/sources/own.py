"""The `python` source: records of a class that the project brings, read inside Spark's tasks.

Spark keeps the places, so a restart continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from catchment.query.sql.connectors import PythonConnector
from catchment.query.sql.statements import Stream
from catchment.records.own_source import Place, RecordSource, fit_records, load_own_class, state_progress


@dataclass
class PlaceRange(InputPartition):
    """The records between two places."""

    start: Place
    end: Place


class OwnSource(DataSource):
    """Options: reader (module:Class), argument, folder (of the project), and the columns progress and source."""

    @classmethod
    def name(cls) -> str:
        return "catchment_python"

    @staticmethod
    def options_of(stream: Stream, python: PythonConnector, site: str, base: Path) -> dict[str, str]:
        """Return the options of a stream's connector at a site; columns that it has none of are empty."""
        return {
            "reader": python.reader,
            "argument": python.argument.replace("{site}", site),
            "folder": str(base),
            "progress": stream.progress_column or "",
            "source": stream.source or "",
        }

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        return OwnReader(dict(self.options), schema)


class OwnReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches between places of the project's source, and reads them."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = dict(options)
        self.schema = schema
        self._source: RecordSource | None = None
        self._stops = False  # whether only what is there now is read
        self._last: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}  # a task makes its own

    def _open(self) -> RecordSource:
        if self._source is None:
            own = load_own_class(self.options["reader"], Path(self.options["folder"]))
            self._source = own(self.options["argument"])
        return self._source

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"place": self._open().begin()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._last is None or not self._stops:
            self._last = {"place": self._open().end(start["place"])}
        return self._last

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stops = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [PlaceRange(start["place"], end["place"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlaceRange)
        source = self._open()
        records = source.read(partition.start, partition.end)
        columns = (self.options["progress"] or None, self.options["source"] or None)
        stated = state_progress(source, partition.end, *columns)
        return fit_records(chain(records, stated), to_arrow_schema(self.schema, timezone="UTC"))
