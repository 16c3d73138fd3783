"""Streams and tables as Spark DataFrames.

A text format (JSON lines, CSV) is read as lines and parsed natively, so that a bad record can be quarantined word for
word with the reason. The result has the declared columns, and `_raw` and `_problem`: null for a good record, else the
text of the record and why it cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from catchment.arrays import Ints
from catchment.errors import EngineError
from catchment.files.folder import WatchedFolder
from catchment.files.objects import ObjectFolder
from catchment.query.sql.connectors import (
    FilesConnector,
    GeneratorConnector,
    KafkaConnector,
    PythonConnector,
    ReceivedConnector,
    ReplayConnector,
)
from catchment.query.sql.statements import DeclaredRelation, Stream, Table
from catchment.query.types import sql_type
from catchment.records.object_store import S3Settings, StoreError
from catchment.records.own_source import load_own_class
from catchment.records.values import NO_VALUE
from catchment.replay.spool import read_arrivals, read_beginning
from catchment.replay.spool_writer import make_spool, read_header, split_names
from catchment.shedding.reader_filter import ROW, ReadRequest
from catchment.spark.sources.csv_header import csv_schema, is_record
from catchment.spark.sources.files import FileSource
from catchment.spark.sources.generator import generate, has_generated
from catchment.spark.sources.replay import ReplaySource, RowRange
from catchment.spark.sources.reread import BatchRows, RangeReader, reread_rows
from catchment.spark.sources.topic import TopicSource
from catchment.spark.streaming import retry_slow_start, rows_of_batch

RAW = "_raw"  # the text of a bad record
PROBLEM = "_problem"  # why it is bad; null for a good record
MARKER = "a marker of progress"  # in place of a problem: it is no record, and not bad
_CORRUPT = "_corrupt"
_STATED = "_stated"  # the progress that a header states
MAX_REPLAYED_ROWS_PER_BATCH = 16_000_000


@dataclass(frozen=True)
class OpenedStream:
    """A stream that is being read at one site.

    `is_over` says whether a stream that has reached an offset will never have more records. Where the records can be
    read again, `batch_rows(checkpoint, batch)` says which are those of a batch, if that is known, and
    `reread_rows(rows, wanted)` returns those of them that are wanted, with the number of each (`ROW`). `filter_cpu_s`
    is the CPU time that the readers of samples took so far, divided by the number of cores. `arrived_rows` says how
    many records have arrived by an instant. `columns` are those that the reader sees before parsing, by which it can
    filter. A stream of files has no `records`: those of each batch are read from its `files`. Those of a `topic` may be
    read without Spark.
    """

    records: DataFrame | None
    is_over: Callable[[Any], bool] = lambda offset: False
    reread_rows: Callable[[BatchRows, Sequence[ReadRequest]], DataFrame] | None = None
    batch_rows: Callable[[Path, int], BatchRows | None] = lambda checkpoint, batch: None
    filter_cpu_s: Callable[[], float] = lambda: 0.0
    arrived_rows: Callable[[int], int | None] = lambda now_us: None
    columns: pa.Schema | None = None
    files: FileSource | None = None
    topic: TopicSource | None = None


def open_stream(
    spark: SparkSession, stream: Stream, site: str, base: Path, folder: Path, jump_us: int, free_bytes: int = 0
) -> OpenedStream:
    """Start reading a stream at a site, which has its folder; paths are relative to the project.

    So many bytes of the disk are spared.
    """
    connector = stream.connector
    spools = folder / "spool"
    if isinstance(connector, GeneratorConnector):
        made = _check_event_time(generate(spark, stream, connector, site), stream)
        return OpenedStream(made, lambda offset: has_generated(connector, offset))
    if isinstance(connector, KafkaConnector):
        return _open_kafka(spark, stream, connector, site, base, folder / "checkpoints" / stream.name)
    if isinstance(connector, PythonConnector):
        return _open_own(spark, stream, connector, site, base)
    assert not isinstance(connector, ReceivedConnector), "a site reads what was sent to it from its files"
    if connector.is_in_store:
        source = _open_objects(spark, stream, connector, site, base, spools)
        return OpenedStream(None, files=replace(source, free_bytes=free_bytes))
    path = base / connector.path.replace("{site}", site)
    try:
        if isinstance(connector, ReplayConnector):
            return _open_replay(spark, stream, connector, path, spools / f"{stream.name}.arrow", jump_us)
        return _opened_files(spark, stream, _open_files(spark, stream, connector, path))
    except EngineError as error:
        raise EngineError(error.message, where=stream.where, hint=error.hint) from error


def open_referenced(spark: SparkSession, watched: WatchedFolder, stream: Stream, header: Sequence[str]) -> FileSource:
    """Return what reads files of a stream again that were read before; CSV files had this header then."""
    assert isinstance(stream.connector, FilesConnector), "history refers to files only"
    return _file_source(spark, stream, stream.connector, watched, lambda: list(header))


def watch_folder(stream: Stream, site: str, base: Path) -> WatchedFolder | None:
    """Return the folder on disk whose files a stream reads at a site; None if it reads no such files."""
    connector = stream.connector
    if type(connector) is not FilesConnector or connector.is_in_store:
        return None
    return WatchedFolder.of(base / connector.path.replace("{site}", site))


def read_table(spark: SparkSession, table: Table, base: Path) -> DataFrame:
    """Return a reference table that is in files, its columns by name; a row that cannot be read is an error."""
    assert isinstance(table.connector, FilesConnector)
    path = base / table.connector.path
    if not path.exists():
        hint = "the path is relative to the project folder"
        raise EngineError(f"the table {table.name!r} has no data at {path}", where=table.where, hint=hint)
    if table.connector.format == "parquet":
        return spark.read.schema(ddl(table)).parquet(str(path))
    try:
        rows = parse_lines(spark.read.text(str(path)), table, table.connector, _header(path, table, table.connector))
    except EngineError as error:
        raise EngineError(error.message, where=table.where, hint=error.hint) from error
    bad = rows.where(F.col(PROBLEM).isNotNull()).first()
    if bad is not None:
        raise EngineError(
            f"a row of table {table.name!r} cannot be used, {bad[PROBLEM]}: {bad[RAW]:.200}",
            where=str(path),
            hint="a table has no quarantine: mend the row or remove it",
        )
    return rows.drop(RAW, PROBLEM)


def ddl(relation: DeclaredRelation) -> str:
    """Return the declared columns as a Spark schema."""
    return ", ".join(f"`{c.name}` {sql_type(c.type)}" for c in relation.columns)


def parse_lines(
    lines: DataFrame,
    relation: DeclaredRelation,
    connector: FilesConnector,
    header: list[str],
    carried: tuple[str, ...] = (),
    *,
    keep_blank: bool = False,
) -> DataFrame:
    """Return lines of text as records with `_raw` and `_problem`, and other columns as they are.

    Blank lines of a file mean nothing and are left out; `keep_blank` takes them for bad records.
    """
    text = F.col("value")
    if connector.format == "json":
        schema = f"{ddl(relation)}, `{_CORRUPT}` STRING"
        parsed = F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    else:
        schema = f"{csv_schema(relation, header)}, `{_CORRUPT}` STRING"
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "sep": connector.delimiter}
        parsed = F.from_csv(text, schema, options)
        if connector.header:
            lines = lines.where(is_record(text, relation, connector, header))
    if not keep_blank:
        lines = lines.where(F.trim(text) != "")
    rows = lines.select(text.alias(RAW), parsed.alias("_r"), *carried)
    columns = [F.col(f"_r.`{c.name}`").alias(c.name) for c in relation.columns]
    return rows.select(*columns, *carried, RAW, _problem(relation, connector.format).alias(PROBLEM))


def _problem(relation: DeclaredRelation, format: str) -> SparkColumn:
    corrupt = F.col("_r").isNull() | F.col(f"_r.{_CORRUPT}").isNotNull()
    nothing = F.coalesce(*[F.col(f"_r.`{c.name}`").cast("string") for c in relation.columns]).isNull()
    problem = F.when(corrupt & nothing, F.lit(f"not readable as {format}"))
    wrong = "has the wrong type" if format == "json" else "is missing, too much, or has the wrong type"
    problem = problem.when(corrupt, F.lit(f"a field {wrong}"))
    if isinstance(relation, Stream):
        problem = problem.when(is_marker(relation, "_r."), F.lit(MARKER))
        problem = problem.when(
            F.col(f"_r.`{relation.event_time}`").isNull(), F.lit(f"no event time ({relation.event_time})")
        )
    return problem


def is_marker(stream: Stream, prefix: str = "") -> SparkColumn:
    """Return the condition that a record has nothing but its progress, and possibly its source."""
    if stream.progress_column is None:
        return F.lit(False)
    condition = F.col(f"{prefix}`{stream.progress_column}`").isNotNull()
    for name in stream.payload_columns:
        condition = condition & F.col(f"{prefix}`{name}`").isNull()
    return condition


def _check_event_time(records: DataFrame, stream: Stream, carried: tuple[str, ...] = ()) -> DataFrame:
    """Return typed records with `_raw` and `_problem`: only their event time can be missing."""
    missing = F.col(f"`{stream.event_time}`").isNull()
    raw = F.when(missing, F.to_json(F.struct(*[F.col(f"`{c.name}`") for c in stream.columns])))
    problem = F.when(is_marker(stream), F.lit(MARKER)).when(missing, F.lit(f"no event time ({stream.event_time})"))
    columns = [F.col(f"`{c.name}`") for c in stream.columns]
    return records.select(*columns, *carried, raw.alias(RAW), problem.alias(PROBLEM))


def _opened_files(spark: SparkSession, stream: Stream, source: FileSource) -> OpenedStream:
    """Return a stream of files; a sample of its lines can be read first, unless each says how far its source is."""
    if not source.can_be_numbered or stream.progress_column is not None:
        return OpenedStream(None, files=source)
    filter_cpu_s = spark.sparkContext.accumulator(0.0)
    cores = spark.sparkContext.defaultParallelism
    return OpenedStream(
        None,
        reread_rows=partial(source.reread, stream.name, filter_cpu_s),
        filter_cpu_s=lambda: float(filter_cpu_s.value) / cores,
        files=source,
    )


def _open_files(spark: SparkSession, stream: Stream, files: FilesConnector, path: Path) -> FileSource:
    return _file_source(spark, stream, files, WatchedFolder.of(path), lambda: _header(path, stream, files))


def _open_objects(
    spark: SparkSession, stream: Stream, files: FilesConnector, site: str, base: Path, spools: Path
) -> FileSource:
    """Open a stream of objects; the store may be away, unless the header of CSV files is needed."""
    settings = S3Settings.read(str(base / files.store_config) if files.store_config else "")
    try:
        watched = ObjectFolder.of(files.path.replace("{site}", site), settings)
        watched.check()
        source = _file_source(spark, stream, files, watched, lambda: _object_header(watched, stream, files))
    except (EngineError, StoreError) as error:
        hint = error.hint if isinstance(error, EngineError) else "the header of the first object is needed to start"
        raise EngineError(str(error), where=stream.where, hint=hint) from error
    return replace(source, copies=spools / f"{stream.name}.objects", list_every_s=files.list_every_us / 1e6)


def _file_source(
    spark: SparkSession,
    stream: Stream,
    files: FilesConnector,
    watched: WatchedFolder | ObjectFolder,
    read_columns: Callable[[], list[str]],
) -> FileSource:
    if files.format == "parquet":
        return FileSource(spark, watched, lambda rows: _check_event_time(rows, stream), parquet=ddl(stream))
    header = read_columns()
    if files.format == "csv":
        csv_schema(stream, header)  # refuses a header without the declared columns before anything is read
    parse = partial(parse_lines, relation=stream, connector=files, header=header)
    return FileSource(
        spark,
        watched,
        parse,
        growing=files.growing,
        header=tuple(header),
        removed_when_read=files.removed_when_read,
        has_header=files.format == "csv" and files.header,
    )


def _open_kafka(
    spark: SparkSession, stream: Stream, kafka: KafkaConnector, site: str, base: Path, checkpoint: Path
) -> OpenedStream:
    from catchment.records.topic_reader import topic_options
    from catchment.spark.sources.kafka import SPARK_SCHEMA, KafkaSource
    from catchment.spark.sources.kafka_reread import TopicPartReader, offsets_of_batch

    spark.dataSource.register(KafkaSource)
    options = {**topic_options(kafka, site, base), "checkpoint": str(checkpoint)}
    reader = spark.readStream.format(KafkaSource.name()).options(**options)
    filter_cpu_s = spark.sparkContext.accumulator(0.0)
    cores = spark.sparkContext.defaultParallelism

    def reread(rows: BatchRows, wanted: Sequence[ReadRequest]) -> DataFrame:
        parts = TopicPartReader(options, rows, stream.name, tuple(wanted))
        return _parse_kafka(reread_rows(spark, parts, SPARK_SCHEMA, filter_cpu_s), stream, kafka, (ROW,))

    try:
        lines = retry_slow_start(f"stream {stream.name!r}", reader.schema(SPARK_SCHEMA).load)
    except EngineError as error:
        raise EngineError(error.message, where=stream.where, hint=error.hint) from error
    return OpenedStream(
        _parse_kafka(lines, stream, kafka),
        reread_rows=reread,
        batch_rows=offsets_of_batch,
        topic=TopicSource(spark, lambda lines: _parse_kafka(lines, stream, kafka), options, checkpoint),
        filter_cpu_s=lambda: float(filter_cpu_s.value) / cores,
    )


def _open_own(spark: SparkSession, stream: Stream, python: PythonConnector, site: str, base: Path) -> OpenedStream:
    from catchment.spark.sources.own import OwnSource

    try:
        load_own_class(python.reader, base)  # before Spark asks for it in a process of its own
    except EngineError as error:
        raise EngineError(error.message, where=stream.where, hint=error.hint) from error
    spark.dataSource.register(OwnSource)
    reader = spark.readStream.format(OwnSource.name()).options(**OwnSource.options_of(stream, python, site, base))
    records = retry_slow_start(f"stream {stream.name!r}", reader.schema(ddl(stream)).load)
    return OpenedStream(_check_event_time(records, stream))


def _parse_kafka(lines: DataFrame, stream: Stream, kafka: KafkaConnector, carried: tuple[str, ...] = ()) -> DataFrame:
    """Return the records of a topic: columns from their values, and those that take their key, offset and the like."""
    beside = kafka.metadata_columns
    taken = [F.col(f"`{what}`").alias(name) for what, name in beside.items()]
    stated = F.lit(None).cast("timestamp") if kafka.progress_header is None else _header_instant(kafka.progress_header)
    named = lines.select("value", *taken, stated.alias(_STATED), *carried)
    columns = tuple(c for c in stream.columns if c.name not in beside.values())
    text = FilesConnector(stream.name, "csv" if kafka.format == "csv" else "json", False, kafka.delimiter)
    values = Table(stream.name, columns, connector=text)
    kept = (*beside.values(), _STATED, *carried)
    parsed = parse_lines(named, values, text, [c.name for c in columns], kept, keep_blank=True)
    if stream.progress_column is not None:
        own = F.col(f"`{stream.progress_column}`")
        parsed = parsed.withColumn(stream.progress_column, F.coalesce(own, F.col(_STATED)))
    may_be_marker = F.col(PROBLEM).isNull() | (F.col(RAW) == NO_VALUE)
    missing = F.when(F.col(f"`{stream.event_time}`").isNull(), F.lit(f"no event time ({stream.event_time})"))
    problem = F.when(is_marker(stream) & may_be_marker, F.lit(MARKER)).otherwise(F.coalesce(F.col(PROBLEM), missing))
    return parsed.select(*[F.col(f"`{c.name}`") for c in stream.columns], *carried, RAW, problem.alias(PROBLEM))


def _header_instant(name: str) -> SparkColumn:
    """Return the instant that a header has: a text such as 2026-01-31T14:00:00Z, or milliseconds since 1970."""
    text = F.element_at(F.col("headers"), name)
    return F.coalesce(F.try_to_timestamp(text), F.timestamp_millis(text.try_cast("bigint")))


def _open_replay(
    spark: SparkSession, stream: Stream, replay: ReplayConnector, path: Path, spool: Path, jump_us: int
) -> OpenedStream:
    rows = make_spool(path, spool, replay, stream.schema, replay.arrival or stream.event_time, jump_us)
    spark.dataSource.register(ReplaySource)
    text = replay.format != "parquet"
    header = _header(path, stream, replay)
    columns = "value STRING" if text else ddl(stream)

    filter_cpu_s = spark.sparkContext.accumulator(0.0)
    cores = spark.sparkContext.defaultParallelism

    def parse(records: DataFrame, carried: tuple[str, ...] = ()) -> DataFrame:
        if text:
            return parse_lines(records, stream, replay, header, carried)
        return _check_event_time(records, stream, carried)

    def reread(rows: BatchRows, wanted: Sequence[ReadRequest]) -> DataFrame:
        reader = RangeReader(spool, RowRange(*rows.rows), stream.name, tuple(wanted), cores)
        return parse(reread_rows(spark, reader, columns, filter_cpu_s), (ROW,))

    options = {"spool": str(spool), "speed": str(replay.speed), "max_rows": str(MAX_REPLAYED_ROWS_PER_BATCH)}
    reader = spark.readStream.format(ReplaySource.name()).options(**options)
    return OpenedStream(
        parse(retry_slow_start(f"stream {stream.name!r}", reader.schema(columns).load)),
        lambda offset: int(offset["row"]) >= rows,
        reread,
        _spooled_rows,
        lambda: float(filter_cpu_s.value) / cores,
        ArrivedRows(spool, replay.speed),
        None if text else stream.schema,
    )


def _spooled_rows(checkpoint: Path, batch: int) -> BatchRows | None:
    """Return which rows of a spool a batch has."""
    rows = rows_of_batch(checkpoint, batch)
    return None if rows is None else BatchRows(batch, *rows)


class ArrivedRows:
    """How many rows of a replayed log have arrived by an instant of the wall clock, read or not."""

    def __init__(self, spool: Path, speed: float) -> None:
        self._spool = spool
        self._speed = speed
        self._arrivals: Ints | None = None

    def __call__(self, now_us: int) -> int | None:
        began = read_beginning(self._spool)
        if began is None or self._speed <= 0:
            return None
        if self._arrivals is None:
            self._arrivals = read_arrivals(self._spool)
        reached = began[1] + int((now_us - began[0]) * self._speed)  # a float would convert all arrivals
        return int(self._arrivals.searchsorted(reached, side="right"))


def _object_header(watched: ObjectFolder, relation: DeclaredRelation, connector: FilesConnector) -> list[str]:
    """Return the columns of objects in their order: those of the first one, or as declared."""
    declared = [c.name for c in relation.columns]
    if connector.format != "csv" or not connector.header:
        return declared
    names = sorted(watched.names())
    return split_names(watched.read_first_line(names[0]), connector.delimiter) if names else declared


def _header(path: Path, relation: DeclaredRelation, connector: FilesConnector) -> list[str]:
    """Return the columns of the files in their order: those of the first file, or as declared."""
    declared = [c.name for c in relation.columns]
    if connector.format != "csv" or not connector.header:
        return declared
    if path.is_file():
        return read_header(path, connector.delimiter)
    watched = WatchedFolder.of(path)
    files = sorted(watched.names())
    return read_header(watched.path(files[0]), connector.delimiter) if files else declared
