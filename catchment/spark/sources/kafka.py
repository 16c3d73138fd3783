"""The `kafka` source: the records of a topic, by offset, read inside Spark's tasks.

Spark keeps the offsets, one per partition of the topic, so a restart continues where it stopped, and nothing is
committed to the broker. A micro-batch ends at the last offset that no open transaction can still change. While no
broker answers, nothing new is planned: the stream waits and goes on. Records that the topic has already deleted are an
error, never skipped.
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
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from catchment.errors import EngineError
from catchment.query.sql.connectors import KAFKA_METADATA, KafkaConnector
from catchment.query.types import sql_type
from catchment.records.client_config import read_client_config
from catchment.records.kafka_errors import ClientErrors
from catchment.records.values import ValueReader
from catchment.spark.sources.reread import DELETED

MAX_ROWS_PER_BATCH = 2_000_000
ROWS_PER_TASK = 250_000
ROWS_PER_ARROW_BATCH = 20_000
ANSWER_S = 15.0  # how long a broker may take to answer a question
SHORT_OUTAGE_S = 30.0  # without an answer, in which a stream is taken for one that has nothing new
PATIENCE_S = 300.0  # how long a task waits for records that the broker has said are there
ARROW_SCHEMA = pa.schema([("value", pa.string()), *KAFKA_METADATA.items()])
SPARK_SCHEMA = ", ".join(f"`{field.name}` {sql_type(field.type)}" for field in ARROW_SCHEMA)

EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]

Offsets = dict[str, int]  # partition -> the offset of the next record to read


@dataclass
class OffsetRange(InputPartition):
    """The records of one partition from `start` up to, and without, `end`."""

    partition: int
    start: int
    end: int


class KafkaSource(DataSource):
    """Options: brokers, topic, start, client_config (a file, or empty), format, schema, registry, message."""

    @classmethod
    def name(cls) -> str:
        return "catchment_kafka"

    @staticmethod
    def options_of(kafka: KafkaConnector, site: str, base: Path) -> dict[str, str]:
        """Return the options of a connector at a site; paths are relative to the project folder."""

        def path(file: str | None) -> str:
            return str(base / file) if file else ""

        return {
            "brokers": kafka.brokers.replace("{site}", site),
            "topic": kafka.topic.replace("{site}", site),
            "start": kafka.start.lower() if kafka.start[0].isalpha() else kafka.start,
            "client_config": path(kafka.client_config),
            "format": kafka.format,
            "schema": path(kafka.schema),
            "registry": kafka.registry or "",
            "message": kafka.message or "",
        }

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        return KafkaReader(dict(self.options))


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over what the topic has, and reads them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.topic = options["topic"]
        self.start = options["start"]
        self.client: dict[str, Any] = {
            "log_level": 0,  # failures come back as errors; the client would print each attempt as well
            **read_client_config(options["client_config"]),
            "bootstrap.servers": options["brokers"],
        }
        schema, registry, message = (options.get(name) or None for name in ("schema", "registry", "message"))
        self.values = ValueReader(options["format"], schema, registry, message)
        self._end: Offsets | None = None  # of a run that reads only what is there now
        self._errors = ClientErrors()  # of the last client that asked
        self._answered_s: float | None = None  # when a broker last answered, by a clock that only goes on

    # --- planning ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802
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
            ranges += [OffsetRange(int(partition), a, b) for a, b in pairwise(cuts)]
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
        return map(self.to_arrow, self.read_messages(partition))

    def read_messages(self, wanted: OffsetRange) -> Iterator[list[Message]]:
        """Yield the records of a range as they come from the broker."""
        consumer = Consumer(
            {
                **self.client,
                "group.id": "catchment",  # never joined: partitions are assigned, and no offset is committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, wanted.partition, wanted.start)])
            yield from self._consume(consumer, wanted)
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer, wanted: OffsetRange) -> Iterator[list[Message]]:
        """Yield the records of a range. Offsets may have gaps (compaction, aborted transactions): its end decides."""
        progress_at_s = time.monotonic()
        while True:
            received = consumer.consume(ROWS_PER_ARROW_BATCH, timeout=1.0)
            records: list[Message] = []
            is_over = False
            for message in received:
                self._check(message, wanted)
                is_record = message.error() is None
                offset = message.offset() or 0
                if is_record and offset < wanted.end:
                    records.append(message)
                is_over = is_over or offset >= wanted.end - is_record  # else an end of partition, by its next offset
            if records:
                progress_at_s = time.monotonic()
                yield records
            if is_over:
                return
            if time.monotonic() - progress_at_s > PATIENCE_S:
                raise EngineError(
                    f"topic {self.topic!r} gave no record of partition {wanted.partition} for {PATIENCE_S:.0f} s, "
                    f"though it says that it has them up to offset {wanted.end}"
                )

    def _check(self, message: Message, wanted: OffsetRange) -> None:
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF or error.retriable():
            return
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise EngineError(
                f"topic {self.topic!r} {DELETED} of partition {wanted.partition} before they were read, from "
                f"offset {wanted.start} on",
                hint="it keeps records for too short a time (retention.ms); begin with a new state folder to go on "
                "without those that are gone",
            )
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE):
            return  # the client tries again by itself, until our patience ends
        raise EngineError(f"topic {self.topic!r} cannot be read: {error.str()}")

    def to_arrow(self, messages: list[Message]) -> pa.RecordBatch:
        """Return records as a table."""
        columns = [
            self.values.read([m.value() for m in messages]),
            pa.array([_text(m.key()) for m in messages], pa.string()),
            pa.array([m.partition() for m in messages], pa.int32()),
            pa.array([m.offset() for m in messages], pa.int64()),
            pa.array([1000 * m.timestamp()[1] for m in messages], pa.int64()).cast(KAFKA_METADATA["timestamp"]),
            pa.array([_headers(m) for m in messages], KAFKA_METADATA["headers"]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


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


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", errors="replace")


def _headers(message: Message) -> list[tuple[str, str | None]]:
    """Return the headers; of those with one name the last one, as a map has no two."""
    headers = dict(message.headers() or ())
    return [(name, value if isinstance(value, str) else _text(value)) for name, value in headers.items()]


def _code(error: Exception) -> int | None:
    return error.args[0].code() if error.args and isinstance(error.args[0], KafkaError) else None


def _reason(error: Exception) -> str:
    return error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error) or "time is over"
