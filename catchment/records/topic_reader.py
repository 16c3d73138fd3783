"""The records of a Kafka topic by their offsets, as tasks, scan processes and the driver read them.

Nothing is committed to the broker: who reads says which offsets, and remembers them. Records that the topic has already
deleted are an error, never skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from catchment.errors import EngineError
from catchment.query.sql.connectors import KAFKA_METADATA, KafkaConnector
from catchment.records.client_config import read_client_config
from catchment.records.kafka_errors import DELETED
from catchment.records.values import ValueReader

ROWS_PER_ARROW_BATCH = 20_000
POLL_S = 0.2  # how long a list of records waits to be full

# How the client reads ahead. By itself it stops when 100,000 records wait, and looks again after a whole second; here
# its bound in bytes (`queued.max.messages.kbytes`, 64 MB) is the one that counts.
READ_AHEAD = {"fetch.message.max.bytes": 8_000_000, "queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 20}
PATIENCE_S = 300.0  # how long a reader waits for records that the broker has said are there


def topic_options(kafka: KafkaConnector, site: str, base: Path) -> dict[str, str]:
    """Return how a connector is read at a site, as texts; paths are relative to the project folder."""

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


@dataclass(frozen=True)
class OffsetRange:
    """The records of one partition from `start` up to, and without, `end`."""

    partition: int
    start: int
    end: int


class TopicReader:
    """Reads ranges of offsets; the options are those of `topic_options`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.topic = options["topic"]
        self.client: dict[str, Any] = {
            "log_level": 0,  # failures come back as errors; the client would print each attempt as well
            **read_client_config(options["client_config"]),
            "bootstrap.servers": options["brokers"],
        }
        schema, registry, message = (options.get(name) or None for name in ("schema", "registry", "message"))
        self.values = ValueReader(options["format"], schema, registry, message)

    def read_messages(self, wanted: OffsetRange) -> Iterator[list[Message]]:
        """Yield the records of a range as they come from the broker; an empty list says that it still waits."""
        consumer = Consumer(
            {
                **READ_AHEAD,
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
        next_offset = wanted.start
        while True:
            # No more than the range has left: the client would wait for more of them, though there may be none.
            most = max(1, min(ROWS_PER_ARROW_BATCH, wanted.end - next_offset))
            records, reached = self._records_within(wanted, consumer.consume(most, timeout=POLL_S))
            next_offset = max(next_offset, reached)
            if records:
                progress_at_s = time.monotonic()
            yield records
            if next_offset >= wanted.end:
                return
            if time.monotonic() - progress_at_s > PATIENCE_S:
                raise EngineError(
                    f"topic {self.topic!r} gave no record of partition {wanted.partition} for {PATIENCE_S:.0f} s, "
                    f"though it says that it has them up to offset {wanted.end}"
                )

    def _records_within(self, wanted: OffsetRange, received: list[Message]) -> tuple[list[Message], int]:
        """Return the records of a range among what came, and the offset before which nothing more will come."""
        notes = [message for message in received if message.error() is not None]
        for note in notes:
            self._check(note, wanted)
        reached = max((note.offset() or 0 for note in notes), default=0)  # an end of a partition has its next offset
        records = [message for message in received if message.error() is None] if notes else received
        if records:
            last = records[-1].offset() or 0
            reached = max(reached, last + 1)
            if last >= wanted.end:
                records = [message for message in records if (message.offset() or 0) < wanted.end]
        return records, reached

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


def metadata_array(what: str, messages: Sequence[Message]) -> pa.Array:
    """Return what records have beside their values: their key, partition, offset, timestamp or headers."""
    type_ = KAFKA_METADATA[what]
    match what:
        case "key":
            return pa.array([_text(m.key()) for m in messages], type_)
        case "partition":
            return pa.array([m.partition() for m in messages], type_)
        case "offset":
            return pa.array([m.offset() for m in messages], type_)
        case "timestamp":
            return pa.array([1000 * m.timestamp()[1] for m in messages], pa.int64()).cast(type_)
    return pa.array([_headers(m) for m in messages], type_)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", errors="replace")


def _headers(message: Message) -> list[tuple[str, str | None]]:
    """Return the headers; of those with one name the last one, as a map has no two."""
    headers = dict(message.headers() or ())
    return [(name, value if isinstance(value, str) else _text(value)) for name, value in headers.items()]
