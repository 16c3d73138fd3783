"""Text that the tasks parse against Spark's own parsing: line by line, and whole micro-batches of a site.

Catches: a line that Arrow reads in another way than Spark, for any of the odd lines below; a site that quarantines,
keeps or counts other lines. Cannot catch: oddities that are not among the lines.
"""

from __future__ import annotations

import datetime as dt
import gzip
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.query.sql.connectors import FilesConnector
from catchment.query.sql.statements import Column, Table
from catchment.timeline import SystemClock
from catchment.vectorised.csv_lines import CsvLineParser
from catchment.vectorised.json_lines import JsonLineParser
from catchment.vectorised.lines import LineBlock
from tests.worlds.one_site import kept_lines, open_site, read_once, sent_rows, with_numbers
from tests.worlds.text_lines import COLUMNS, DDL, csv_lines, json_lines
from tests.worlds.tiers import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RELATION = Table("t", tuple(Column(c.name, c.type) for c in COLUMNS), FilesConnector("d", "json"))
SQL = """
CREATE STREAM s ({ddl}) WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data',
  format = '{format}', max_jump = '40000 days', growing = {growing});
CREATE MATERIALIZED VIEW v AS
  SELECT window.start, name, count(*) AS n, sum(small) AS small, max(whole) AS whole, max(real) AS real FROM s
  GROUP BY window(ts, '1 day'), name;
"""


def exact(value: Any) -> Any:
    """Return a value that is equal only to itself: doubles by their bits."""
    return struct.pack("d", value) if isinstance(value, float) else value


def parsed_by_spark(spark: SparkSession, lines: list[str], format: str) -> dict[str, dict[str, Any] | None]:
    """Return the record that each line is for Spark; None if it is none."""
    from catchment.spark.sources.streams import PROBLEM, RAW, parse_lines

    rows = parse_lines(
        spark.createDataFrame(pa.table({"value": lines})), RELATION, FilesConnector("d", format), COLUMNS.names
    ).toArrow()
    return {
        row[RAW]: None if row[PROBLEM] is not None else {name: exact(row[name]) for name in COLUMNS.names}
        for row in with_numbers(rows).to_pylist()
    }


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_line_that_is_read_here_is_read_in_the_same_way_by_spark(spark: SparkSession, format: str) -> None:
    reader: JsonLineParser | CsvLineParser = JsonLineParser(COLUMNS, "ts")
    make = json_lines
    if format == "csv":
        reader = CsvLineParser(COLUMNS, "ts", tuple(COLUMNS.names), ",", has_header=False)
        make = csv_lines
    lines = sorted({line for seed in range(examples(3)) for line in make(seed, 2000) if line.strip(" ")})
    expected = parsed_by_spark(spark, lines, format)
    found: dict[str, dict[str, Any]] = {}
    for at in range(0, len(lines), 1000):
        block = lines[at : at + 1000]
        parsed = reader.parse(LineBlock.of("\n".join(block).encode()), is_first=False)
        doubtful = set(parsed.doubtful)
        read = [line for line in block if line not in doubtful]
        rows = with_numbers(pa.table(dict(parsed.records.columns))).to_pylist()
        found |= {line: {n: exact(value) for n, value in row.items()} for line, row in zip(read, rows, strict=True)}
    assert found == {line: expected[line] for line in found}
    assert len(found) > len(lines) * 0.4


def run_site(spark: SparkSession, folder: Path, data: Path, format: str, evaluator: str, growing: bool) -> Path:
    """Let a site read the files once; return its folder."""
    sql = SQL.format(ddl=DDL, format=format, growing=str(growing).lower())
    pipeline = open_site(spark, folder, data, sql, evaluator, SystemClock())
    read_once(pipeline)
    return pipeline.folder


@pytest.mark.parametrize(("format", "growing"), [("json", False), ("csv", True)])
def test_a_site_keeps_counts_and_quarantines_what_spark_would(
    spark: SparkSession, tmp_path: Path, format: str, growing: bool
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    make = json_lines if format == "json" else csv_lines
    for number in range(3):
        lines = make(100 + number, 700)
        if format == "csv":
            lines = [",".join(COLUMNS.names), *(line for line in lines if "name" not in line.lower())]
        text = "\n".join(lines) + "\n"
        path = data / f"{number}.{format}"
        if number == 2 and not growing:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("catchment.spark.evaluation.file_scan.SMALL_BYTES", 30_000)  # scan processes, not the driver
        scanned = run_site(spark, tmp_path / "scan", data, format, "vectorised", growing)
        native = run_site(spark, tmp_path / "native", data, format, "native", growing)
    assert kept_lines(spark, scanned / "quarantine" / "s") == kept_lines(spark, native / "quarantine" / "s")
    assert kept_lines(spark, scanned / "history" / "s") == kept_lines(spark, native / "history" / "s")
    assert sent_rows(tmp_path / "scan") == sent_rows(tmp_path / "native")
    assert sum(kept_lines(spark, scanned / "history" / "s").values()) > 900


LEFT = """
CREATE STREAM s ({ddl}) WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data',
  format = '{format}', max_jump = '40000 days', history = {history});
CREATE MATERIALIZED VIEW v AS
  SELECT window.start, md5(name) AS name, count(*) AS n, max(whole) AS whole, max(real) AS real FROM s
  GROUP BY window(ts, '1 day'), md5(name);
"""


@pytest.mark.parametrize(("format", "history"), [("json", False), ("csv", True), ("parquet", True)])
def test_what_only_spark_sql_can_evaluate_is_evaluated_on_what_a_pass_has_read(
    spark: SparkSession, tmp_path: Path, format: str, history: bool
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_left(data, format)
    from catchment.spark.pipelines.micro_batch import BatchReducer

    sql = LEFT.format(ddl=DDL, format=format, history=str(history).lower())
    evaluated: list[str] = []
    reduce_fragments = BatchReducer.reduce_fragments

    def note_files(self: BatchReducer, state: Any, records: Any, *given: Any) -> Any:
        evaluated.extend(records.inputFiles())
        return reduce_fragments(self, state, records, *given)

    folders = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("catchment.spark.evaluation.file_scan.SMALL_BYTES", 10_000)
        for evaluator in ("vectorised", "native"):
            with pytest.MonkeyPatch.context() as noting:
                if evaluator == "vectorised":
                    noting.setattr(BatchReducer, "reduce_fragments", note_files)
                pipeline = open_site(spark, tmp_path / evaluator, data, sql, evaluator, SystemClock())
                read_once(pipeline)
            folders[evaluator] = pipeline.folder
    assert evaluated
    assert all(f"/{'history' if history else 'handed'}/s/" in file for file in evaluated)
    assert sent_rows(tmp_path / "vectorised") == sent_rows(tmp_path / "native")
    assert sum(sent_rows(tmp_path / "native").values()) > 10
    for kind in ("quarantine",) * (format != "parquet") + ("history",) * history:
        mine, theirs = (kept_lines(spark, folder / kind / "s") for folder in folders.values())
        assert mine == theirs
    assert not list(folders["vectorised"].glob("handed/s/*"))


def write_left(data: Path, format: str) -> None:
    """Write files of records; those of text have bad lines among them."""
    for number in range(2):
        if format == "parquet":
            times = pa.array([(number * 700 + n) * 3_600_000_000 for n in range(700)], pa.int64()).cast(COLUMNS[0].type)
            columns: dict[str, Any] = {"ts": times, "name": [f"n{n % 9}" for n in range(700)], "whole": range(700)}
            columns |= {"small": range(700), "real": [n / 7 for n in range(700)], "flag": [True] * 700}
            columns["day"] = [dt.date(2024, 5, 6)] * 700
            pq.write_table(pa.table(columns, COLUMNS), data / f"{number}.parquet", row_group_size=100)
            continue
        lines = json_lines(300 + number, 700) if format == "json" else csv_lines(300 + number, 700)
        if format == "csv":
            lines = [",".join(COLUMNS.names), *(line for line in lines if "name" not in line.lower())]
        (data / f"{number}.{format}").write_text("\n".join(lines) + "\n")


def test_a_broken_header_in_the_middle_of_files_still_stops_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    line = "2024-05-06T07:08:09Z,a,1,1,1.5,true,2024-05-06\n"
    (data / "a.csv").write_text(",".join(COLUMNS.names) + "\n" + line)
    (data / "b.csv").write_text(",".join(reversed(COLUMNS.names)) + "\n" + line)
    with pytest.raises(Exception, match="has the header"):
        run_site(spark, tmp_path / "scan", data, "csv", "vectorised", growing=False)


def test_event_times_far_away_are_quarantined_from_text_too(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    near = dt.datetime.now(dt.UTC).replace(microsecond=0)
    line = '{{"ts": "{}", "name": "{}"}}\n'
    far = near + dt.timedelta(days=80_000)
    text = "".join(line.format((near - dt.timedelta(seconds=n)).isoformat(), "near") for n in range(50))
    (data / "a.json").write_text(text + line.format(far.isoformat(), "far") + "nonsense\n")
    scanned = run_site(spark, tmp_path / "scan", data, "json", "vectorised", growing=False)
    native = run_site(spark, tmp_path / "native", data, "json", "native", growing=False)
    assert kept_lines(spark, scanned / "quarantine" / "s") == kept_lines(spark, native / "quarantine" / "s")
    assert sum(kept_lines(spark, scanned / "quarantine" / "s").values()) == 2
    assert sum(kept_lines(spark, scanned / "history" / "s").values()) == 50
