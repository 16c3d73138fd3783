"""The `kafka` source: micro-batches of a topic by offset, and their records as Spark's tasks read them.

Spark keeps the offsets, one per partition of the topic, so a restart continues where it stopped, and nothing is
committed to the broker. Where the first batch begins is not in Spark's checkpoint: it is kept beside it, so that a
stream that began with the latest records, and was killed in its first batch, begins again where it did. A micro-batch
ends at the last offset that no open transaction can still change. While no broker answers, nothing new is planned: the
stream waits and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from catchment.errors import EngineError
from catchment.query.sql.connectors import KAFKA_METADATA
from catchment.query.types import sql_type
from catchment.records.kafka_errors import ClientErrors
from catchment.records.topic_reader import OffsetRange, TopicReader, metadata_array
from catchment.storage.files import make_folder, read_record, write_record

MAX_ROWS_PER_BATCH = 2_000_000
ROWS_PER_TASK = 250_000
ANSWER_S = 15.0  # how long a broker may take to answer a question
SHORT_OUTAGE_S = 30.0  # without an answer, in which a stream is taken for one that has nothing new
BEGAN = "began.json"  # in the checkpoint of a stream: the offsets at which its first batch begins
ARROW_SCHEMA = pa.schema([("value", pa.string()), *KAFKA_METADATA.items()])
SPARK_SCHEMA = ", ".join(f"`{field.name}` {sql_type(field.type)}" for field in ARROW_SCHEMA)

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

Offsets = dict[str, int]  # partition -> the offset of the next record to read


@dataclass(frozen=True)
class OffsetTask(OffsetRange, InputPartition):
    """A range of offsets that one task reads."""


class KafkaSource(DataSource):
    """Options: those of `topic_options`, and `checkpoint`, the folder of the stream's checkpoint."""

    @classmethod
    def name(cls) -> str:
        return "catchment_kafka"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        return KafkaReader(dict(self.options))


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over what the topic has, and reads them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.records = TopicReader(options)
        self.topic = self.records.topic
        self.client = self.records.client
        self.start = options["start"]
        self.checkpoint = Path(options["checkpoint"])
        self._end: Offsets | None = None  # of a run that reads only what is there now
        self._errors = ClientErrors()  # of the last client that asked
        self._answered_s: float | None = None  # when a broker last answered, by a clock that only goes on

    # --- planning ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802
        began = read_began(self.checkpoint)
        if began is None:
            began = self._find_beginning()
            make_folder(self.checkpoint)
            write_record(self.checkpoint / BEGAN, began)
        return began

    def _find_beginning(self) -> Offsets:
        """Return the offsets at which the stream is declared to begin."""
        admin = self._admin()
        partitions = self._partitions(admin)
        match self.start:
            case "earliest":
                return self._ask(admin, partitions, EARLIEST)
            case "latest":
                return self._ask(admin, partitions, LATEST)
        wanted_ms = round(_instant(self.start).timestamp() * 1000)
        found = self._ask(admin, partitions, OffsetSpec.for_timestamp(wanted_ms))
        ends = self._ask(admin, partitions, LATEST)
        return {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(MAX_ROWS_PER_BATCH)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        ends = self._end if self._end is not None else self._ends_or(start)
        reached = {p: max(end, start.get(p, 0)) for p, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            return _limit(start, reached, limit.max_rows)
        return reached

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        admin = self._admin()
        self._end = self._ask(admin, self._partitions(admin), LATEST)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        ranges: list[InputPartition] = []
        for partition, reached in end.items():
            first = start.get(partition, 0)
            cuts = [*range(first, reached, ROWS_PER_TASK), reached]
            ranges += [OffsetTask(int(partition), a, b) for a, b in pairwise(cuts)]
        return ranges

    def _ends_or(self, start: Offsets) -> Offsets:
        """Return where the partitions end now.

        While no broker answers, nothing new is there; but if that lasts, silence means nothing, and it is an outage.
        """
        try:
            admin = self._admin()
            ends = self._ask(admin, self._partitions(admin), LATEST)
        except NoBrokerError:
            if self._answered_s is None or time.monotonic() - self._answered_s > SHORT_OUTAGE_S:
                raise
            return start
        self._answered_s = time.monotonic()
        gone = [p for p, first in start.items() if ends.get(p, -1) < first]
        if gone:
            raise EngineError(
                f"topic {self.topic!r} was read up to offset {start[gone[0]]} of partition {gone[0]}, and ends before",
                hint="was the topic deleted and made again? Give it another name, or begin with a new state folder",
            )
        return ends

    def _admin(self) -> AdminClient:
        self._errors = ClientErrors()
        settings: dict[str, Any] = {**self.client, "error_cb": self._errors}
        return AdminClient(settings, logger=None)

    def _partitions(self, admin: AdminClient) -> list[str]:
        """Return the partitions of the topic. To describe a topic does not make it, as other questions may."""
        answers = admin.describe_topics(TopicCollection([self.topic]), request_timeout=ANSWER_S)
        try:
            described = answers[self.topic].result(ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            if _code(error) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._no_broker(admin, error) from error
            raise EngineError(
                f"there is no topic {self.topic!r} at {self.client['bootstrap.servers']}",
                hint="make it, or correct topic in the stream's WITH (...)",
            ) from error
        return [str(number) for number in sorted(partition.id for partition in described.partitions)]

    def _ask(self, admin: AdminClient, partitions: Sequence[str], spec: Any) -> Offsets:
        """Return an offset per partition, as the broker says it of committed records."""
        request = {TopicPartition(self.topic, int(p)): spec for p in partitions}
        answers = admin.list_offsets(request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S)
        try:
            return {str(place.partition): answer.result(ANSWER_S).offset for place, answer in answers.items()}
        except (KafkaException, TimeoutError) as error:
            raise self._no_broker(admin, error) from error

    def _no_broker(self, admin: AdminClient, error: Exception) -> EngineError:
        admin.poll(0)  # hands over what the client was told meanwhile
        return NoBrokerError(
            f"no answer from {self.client['bootstrap.servers']}: {self._errors.explain(_reason(error))}",
            hint="check brokers in the stream's WITH (...), and user and certificates in its client_config",
        )

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return (self.to_arrow(messages) for messages in self.records.read_messages(partition) if messages)

    def to_arrow(self, messages: list[Message]) -> pa.RecordBatch:
        """Return records as a table."""
        values = self.records.values.read([m.value() for m in messages])
        beside = [metadata_array(what, messages) for what in KAFKA_METADATA]
        return pa.RecordBatch.from_arrays([values, *beside], schema=ARROW_SCHEMA)


def read_began(checkpoint: Path) -> Offsets | None:
    """Return the offsets at which the first batch of a stream begins; None where it has not begun."""
    return read_record(checkpoint / BEGAN)


class NoBrokerError(EngineError):
    """No broker answers: another attempt may succeed."""


def _limit(start: Offsets, reached: Offsets, most: int) -> Offsets:
    """Return ends of a batch of at most so many records, each partition by its share of what waits."""
    waiting = {p: end - start.get(p, 0) for p, end in reached.items()}
    total = sum(waiting.values())
    if total <= most:
        return reached
    return {p: start.get(p, 0) + -(-count * most // total) for p, count in waiting.items()}


def _instant(text: str) -> datetime:
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _code(error: Exception) -> int | None:
    return error.args[0].code() if error.args and isinstance(error.args[0], KafkaError) else None


def _reason(error: Exception) -> str:
    return error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error) or "time is over"
