"""Streams and tables as Spark DataFrames.

A text format (JSON lines, CSV) is read as lines and parsed natively, so that a bad record is kept word for word
with the reason why it is bad. What comes out has the declared columns, and `_raw` and `_problem`: null for a good
record, else what was found and why it cannot be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from catchment.errors import EngineError
from catchment.query.statements import Files, Generator, Relation, Replay, Stream, Table
from catchment.query.types import sql_type
from catchment.spark.generator import generate
from catchment.spark.replay import ReplaySource
from catchment.spark.spool_writer import make_spool, read_header

RAW, PROBLEM = "_raw", "_problem"
_CORRUPT = "_corrupt"
MAX_FILES_PER_BATCH = 256


@dataclass(frozen=True)
class OpenedStream:
    """A stream that is being read at one site; `rows` is how many it will ever have, if that is known."""

    records: DataFrame
    rows: int | None = None


def open_stream(spark: SparkSession, stream: Stream, site: str, base: Path, spools: Path) -> OpenedStream:
    """Start reading a stream where it is born; paths are relative to the project folder."""
    connector = stream.connector
    if isinstance(connector, Generator):
        return OpenedStream(_checked(generate(spark, stream, connector, site), stream))
    path = base / connector.path.replace("{site}", site)
    if isinstance(connector, Replay):
        return _open_replay(spark, stream, connector, path, spools / f"{stream.name}.arrow")
    if connector.format == "parquet":
        return OpenedStream(_checked(_watch(spark, path).schema(ddl(stream)).parquet(_folder(path)), stream))
    lines = _watch(spark, path).text(_folder(path))
    return OpenedStream(parse_lines(lines, stream, connector, _header(path, stream, connector)))


def read_table(spark: SparkSession, table: Table, base: Path) -> DataFrame:
    """A reference table; its columns are found by name."""
    path = base / table.connector.path
    if not path.exists():
        raise EngineError(f"the table {table.name!r} has no data at {path}", where=table.where)
    if table.connector.format == "parquet":
        return spark.read.schema(ddl(table)).parquet(str(path))
    if table.connector.format == "json":
        return spark.read.schema(ddl(table)).json(str(path))
    lines = spark.read.text(str(path))
    parsed = parse_lines(lines, table, table.connector, _header(path, table, table.connector))
    return parsed.where(F.col(PROBLEM).isNull()).drop(RAW, PROBLEM)


def ddl(relation: Relation) -> str:
    """The declared columns as Spark spells them."""
    return ", ".join(f"`{c.name}` {sql_type(c.type)}" for c in relation.columns)


def parse_lines(lines: DataFrame, relation: Relation, connector: Files, header: list[str]) -> DataFrame:
    """Lines of text as records, with `_raw` and `_problem`."""
    text = F.col("value")
    if connector.format == "json":
        schema = f"{ddl(relation)}, `{_CORRUPT}` STRING"
        parsed = F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    else:
        schema = _csv_schema(relation, header)
        parsed = F.from_csv(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT,
                                           "sep": connector.delimiter})  # fmt: skip
        if connector.header:
            lines = lines.where(text != F.lit(connector.delimiter.join(header)))
    rows = lines.where(F.trim(text) != "").select(text.alias(RAW), parsed.alias("_r"))
    columns = [F.col(f"_r.`{c.name}`").alias(c.name) for c in relation.columns]
    return rows.select(*columns, RAW, _problem(relation, connector.format).alias(PROBLEM))


def _problem(relation: Relation, format: str) -> SparkColumn:
    corrupt = F.col("_r").isNull() | F.col(f"_r.{_CORRUPT}").isNotNull()
    nothing = F.coalesce(*[F.col(f"_r.`{c.name}`").cast("string") for c in relation.columns]).isNull()
    problem = F.when(corrupt & nothing, F.lit(f"not readable as {format}"))
    problem = problem.when(corrupt, F.lit("a field has the wrong type"))
    if isinstance(relation, Stream):
        problem = problem.when(
            F.col(f"_r.`{relation.event_time}`").isNull(), F.lit(f"no event time ({relation.event_time})")
        )
    return problem


def _checked(records: DataFrame, stream: Stream) -> DataFrame:
    """Records that are typed already: only the event time can be missing."""
    missing = F.col(f"`{stream.event_time}`").isNull()
    raw = F.when(missing, F.to_json(F.struct(*[F.col(f"`{c.name}`") for c in stream.columns])))
    problem = F.when(missing, F.lit(f"no event time ({stream.event_time})"))
    return records.select(*[F.col(f"`{c.name}`") for c in stream.columns], raw.alias(RAW), problem.alias(PROBLEM))


def _open_replay(spark: SparkSession, stream: Stream, replay: Replay, path: Path, spool: Path) -> OpenedStream:
    rows = make_spool(path, spool, format=replay.format, arrival=replay.arrival or stream.event_time)
    spark.dataSource.register(ReplaySource)
    text = replay.format != "parquet"
    reader = spark.readStream.format(ReplaySource.name()).option("spool", str(spool)).option("speed", str(replay.speed))
    records = reader.schema("value STRING" if text else ddl(stream)).load()
    if text:
        return OpenedStream(parse_lines(records, stream, replay, _header(path, stream, replay)), rows)
    return OpenedStream(_checked(records, stream), rows)


def _watch(spark: SparkSession, path: Path) -> DataStreamReader:
    return spark.readStream.option("maxFilesPerTrigger", MAX_FILES_PER_BATCH).option("pathGlobFilter", _glob(path))


def _folder(path: Path) -> str:
    """The folder to watch: the path itself, or that of the file or pattern it names."""
    if path.suffix or "*" in path.name:
        path = path.parent
    if not path.is_dir():
        raise EngineError(f"there is no folder {path} to read from", hint="make it; files may come later")
    return str(path)


def _glob(path: Path) -> str:
    return path.name if path.suffix or "*" in path.name else "*"


def _csv_schema(relation: Relation, header: list[str]) -> str:
    """Every column of the file in its order; those that were not declared are read as text and dropped."""
    found = []
    for place, name in enumerate(header):
        column = relation.column(name)
        found.append(f"`{column.name}` {sql_type(column.type)}" if column else f"`_skip_{place}` STRING")
    absent = [c.name for c in relation.columns if c.name.lower() not in {h.lower() for h in header}]
    if absent:
        raise EngineError(f"{relation.name!r} declares {absent}, but the file's header is {header}")
    return ", ".join([*found, f"`{_CORRUPT}` STRING"])


def _header(path: Path, relation: Relation, connector: Files) -> list[str]:
    declared = [c.name for c in relation.columns]
    if connector.format != "csv" or not connector.header:
        return declared
    files = [path] if path.is_file() else sorted(Path(_folder(path)).glob(_glob(path)))
    return read_header(files[0]) if files else declared
