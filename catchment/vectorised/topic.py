"""The records of a topic in a pass: their values parsed as lines are, and what they have beside their values.

A value is parsed with others of its kind, as if each were a line of a file. What is no line (a value with a line break,
without anything in it, or no value at all) is handed to Spark. Where columns are filled with what records have beside
their values, Spark would not know it of such values, and the whole batch is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from catchment.query.sql.connectors import KafkaConnector
from catchment.query.sql.statements import Stream
from catchment.records.values import NO_VALUE
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.csv_lines import CsvLineParser
from catchment.vectorised.json_lines import JsonLineParser
from catchment.vectorised.lines import LineBlock
from catchment.vectorised.parsed_lines import ParsedLines
from catchment.vectorised.parts import TopicPart
from catchment.vectorised.records import RecordColumns

if TYPE_CHECKING:  # the client is an extra, and whoever scans files need not have it
    from confluent_kafka import Message

    from catchment.records.topic_reader import TopicReader

# How many values are parsed and grouped together: of few at a time hardly any share a group, and all are merged later.
PARSED_ROWS = 250_000
PARSED_BYTES = 32 << 20

TopicOptions = tuple[tuple[str, str], ...]  # of `catchment.records.topic_reader`, in a form that can be compared


@dataclass(frozen=True)
class TopicScan:
    """How the records of a topic are read: `lines` parses their values, `beside` says which columns take what else."""

    options: TopicOptions
    lines: JsonLineParser | CsvLineParser
    beside: Mapping[str, str]
    columns: pa.Schema

    @classmethod
    def of(cls, stream: Stream, options: Mapping[str, str]) -> TopicScan:
        """Return how a stream is read from its topic."""
        kafka = stream.connector
        assert isinstance(kafka, KafkaConnector)
        values = value_columns(stream, kafka)
        time = stream.event_time if stream.event_time in values.names else None
        if kafka.format == "csv":
            parser: JsonLineParser | CsvLineParser
            parser = CsvLineParser(values, time, tuple(values.names), kafka.delimiter, has_header=False)
        else:
            parser = JsonLineParser(values, time)
        return cls(tuple(sorted(options.items())), parser, dict(kafka.metadata_columns), stream.schema)

    def read(self, part: TopicPart) -> Iterator[ParsedLines]:
        """Yield what is in a range of offsets, now and then nothing while a broker keeps it waiting."""
        from catchment.records.topic_reader import OffsetRange, TopicReader

        reader = TopicReader(dict(self.options))
        gathered: list[Message] = []
        size = 0
        for messages in reader.read_messages(OffsetRange(part.partition, part.start, part.end)):
            if messages:
                gathered += messages
                size += sum(map(len, messages))
            if not messages or len(gathered) >= PARSED_ROWS or size >= PARSED_BYTES:
                yield self._parse(gathered, reader)
                gathered, size = [], 0
        yield self._parse(gathered, reader)

    def _parse(self, messages: Sequence[Message], reader: TopicReader) -> ParsedLines:
        lines, doubtful = as_lines(reader.values.read_bytes([message.value() for message in messages]))
        records = RecordColumns.empty(self.lines.columns)
        if lines:
            parsed = self.lines.parse(LineBlock.of(b"\n".join(lines)), is_first=False)
            records = parsed.records
            doubtful += parsed.doubtful
        if doubtful and self.beside:
            raise NotVectorisedError("some values are no plain records, and columns take what records have beside them")
        return ParsedLines(self._with_metadata(records, messages), doubtful)

    def _with_metadata(self, records: RecordColumns, messages: Sequence[Message]) -> RecordColumns:
        if not self.beside:
            return records
        from catchment.records.topic_reader import metadata_array

        assert records.rows == len(messages), "no value was doubtful"
        found = {column: metadata_array(what, messages) for what, column in self.beside.items()}
        found |= records.columns
        return RecordColumns({column.name: found[column.name] for column in self.columns}, records.rows)


def value_columns(stream: Stream, kafka: KafkaConnector) -> pa.Schema:
    """Return the columns that come from the values of records."""
    return pa.schema([column for column in stream.schema if column.name not in kafka.filled_columns])


def as_lines(values: Sequence[bytes | None]) -> tuple[list[bytes], list[str]]:
    """Return the values that can stand as lines of text, and the others: with a line break, blank, or not there."""
    lines = [value for value in values if value is not None]
    if len(lines) == len(values) and _are_lines(lines):
        return lines, []
    others = [NO_VALUE if v is None else v.decode("utf-8", errors="replace") for v in values if not _is_line(v)]
    return [value for value in lines if _is_line(value)], others


def _are_lines(values: Sequence[bytes]) -> bool:
    """Return whether all values are lines for certain, by what they are together: one by one takes longer."""
    data = b"\n".join([b"", *values, b""])
    has_breaks = data.count(b"\n") != len(values) + 1 or b"\r" in data
    may_be_blank = b"\n\n" in data or b" \n" in data
    return not has_breaks and not may_be_blank


def _is_line(value: bytes | None) -> bool:
    return value is not None and b"\n" not in value and b"\r" not in value and bool(value.strip(b" "))
