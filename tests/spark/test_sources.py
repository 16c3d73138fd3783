"""Streams and tables as Spark reads them: columns by name, bad records kept word for word, ends that are ends.

Catches: a column taken for another, a bad line that is lost or let in, a source that does not end or never begins.
Cannot catch: what the pipelines make of the records; `test_pipelines.py` does that.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from catchment.center.results.read import read_results, read_windows
from catchment.errors import EngineError
from catchment.files.watch import FolderWatch
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream, Table
from catchment.site.known_files import FilesRead, KnownFiles, StreamTimes
from tests.worlds.projects import write_project
from tests.worlds.runs import run_project
from tests.worlds.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.sources.files import FileSource
    from catchment.spark.sources.streams import OpenedStream

pytestmark = pytest.mark.spark

START = datetime(2024, 3, 1, tzinfo=UTC)
DAY_US = 86_400_000_000
COLUMNS = "(ts TIMESTAMP, page STRING, ms DOUBLE)"
PROBLEM = "_problem"


def iso(second: int) -> str:
    return (START + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def declare(options: str, columns: str = COLUMNS) -> Stream:
    (stream,) = parse_sql(f"CREATE STREAM hits {columns} WITH (event_time = 'ts', {options})", "q.sql")
    assert isinstance(stream, Stream)
    return stream


def opened(spark: SparkSession, stream: Stream, base: Path, site: str = "a") -> OpenedStream:
    from catchment.spark.sources.streams import open_stream

    return open_stream(spark, stream, site, base, base, DAY_US)


def read(spark: SparkSession, stream: Stream, base: Path, site: str = "a") -> list[dict[str, Any]]:
    """What is there now and was not read before, by a query that keeps its place in `base`."""
    return collect(opened(spark, stream, base, site), base)


def collect(stream: OpenedStream, base: Path) -> list[dict[str, Any]]:
    from catchment.spark.streaming import start_query

    if stream.files is not None:
        return collect_files(stream.files, base)
    assert stream.records is not None
    rows: list[dict[str, Any]] = []
    writer = (
        stream.records.writeStream.foreachBatch(lambda batch, _: rows.extend(r.asDict() for r in batch.collect()))
        .option("checkpointLocation", str(base / "checkpoint"))
        .trigger(availableNow=True)
    )
    start_query(writer).awaitTermination()
    return rows


KNOWN: dict[Path, KnownFiles] = {}  # what was read in each folder


def collect_files(source: FileSource, base: Path) -> list[dict[str, Any]]:
    known = KNOWN.setdefault(base, KnownFiles())
    watch = FolderWatch("hits", source.watched, source.growing)
    pieces = watch.look(known, StreamTimes(0, 0, None)).pieces
    rows = [r.asDict() for r in source.read(pieces).collect()] if pieces else []
    known.note_read(FilesRead("hits", tuple(watch.settle(pieces))))
    return rows


def good(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(second, page, ms) of the good records, in order of time."""
    kept = [r for r in rows if r[PROBLEM] is None]
    return sorted(
        (int((r["ts"].replace(tzinfo=UTC) - START).total_seconds()), r["page"], r["ms"]) for r in kept
    )  # the session's time zone is UTC


def test_files_are_read_whatever_their_modification_times_say(spark: SparkSession, tmp_path: Path) -> None:
    """A file of another decade, older or newer, is read, and hides no other."""
    stream = declare("connector = 'files', path = 'in/{site}', format = 'json'")
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    seen = []
    for number, year in enumerate((2026, 2045, 2026, 1999)):
        path = folder / f"{number}.json"
        path.write_text(json.dumps({"ts": iso(number), "page": "p", "ms": 1.0}) + "\n")
        modified = datetime(year, 6, 1, tzinfo=UTC).timestamp()
        os.utime(path, (modified, modified))
        seen += [second for second, *_ in good(read(spark, stream, tmp_path))]
    assert seen == [0, 1, 2, 3]


def bad(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {r["_raw"]: r[PROBLEM] for r in rows if r[PROBLEM] is not None}


# --- files ------------------------------------------------------------------------------------------------------


def test_csv_columns_are_found_by_their_names_and_bad_lines_are_kept_word_for_word(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "v1.2"  # a folder whose name looks like that of a file
    folder.mkdir(parents=True)
    wrong = {
        f"x,slow,{iso(3)},/c,1": "a field is missing, too much, or has the wrong type",
        f"x,1.5,{iso(4)}": "a field is missing, too much, or has the wrong type",
        "x,1.5,,/d,1": "no event time (ts)",
        "total nonsense": "not readable as csv",
    }
    head = '\ufeff"extra",ms, TS ,page,n'
    (folder / "1.csv").write_text(f'{head}\nx,1.5,{iso(1)},/a,1\n\nx,2.5,{iso(2)},"/b,c",1\n')
    (folder / "2.csv").write_text("\n".join([head, *wrong, f"x,,{iso(5)},/e,1"]))
    rows = read(spark, declare("path = 'data/v1.2', format = 'csv'"), tmp_path)
    assert good(rows) == [(1, "/a", 1.5), (2, "/b,c", 2.5), (5, "/e", None)]
    assert bad(rows) == wrong


def test_csv_without_a_header_is_read_in_declared_order_with_its_own_delimiter(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "log.csv.gz").write_bytes(gzip.compress(f"{iso(1)}|/a|1.5\n{iso(2)}|/b|2\n".encode()))
    (tmp_path / "a" / "notes.txt").write_text("not for us")
    stream = declare("path = '{site}/*.csv.gz', format = 'csv', header = false, delimiter = '|'")
    assert good(read(spark, stream, tmp_path)) == [(1, "/a", 1.5), (2, "/b", 2.0)]


def test_files_may_come_later_but_not_with_another_header(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    from catchment.spark.streaming import stopped_error

    folder = tmp_path / "data"
    folder.mkdir()
    stream = declare("path = 'data', format = 'csv'")
    waiting = opened(spark, stream, tmp_path)
    assert collect(waiting, tmp_path) == []
    (folder / "1.csv").write_text(f"ts,page,ms\n{iso(1)},/a,1\n")
    assert good(collect(waiting, tmp_path)) == [(1, "/a", 1.0)]
    (folder / "2.csv").write_text(f"page,ts,ms\n/b,{iso(2)},2\n")
    with pytest.raises(PySparkException) as caught:
        collect(waiting, tmp_path)
    error = stopped_error("stream 'hits' at site 'a'", caught.value, tmp_path)
    assert error.message == (
        "stream 'hits' at site 'a' stopped: [USER_RAISED_EXCEPTION] a file of 'hits' has the header page,ts,ms, and "
        "ts,page,ms was expected: all files of a stream have one header"
    ), "one line, whatever the stacks that Spark tells"
    assert error.hint is not None
    assert "Traceback" in Path(error.hint.rpartition(" ")[2]).read_text()


def test_parquet_columns_are_found_by_name_and_a_missing_event_time_is_a_problem(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    times = pa.array([START + timedelta(seconds=1), None], pa.timestamp("us", tz="UTC"))
    table = pa.table({"more": [1, 2], "ms": [1.5, 2.5], "page": ["/a", "/b"], "ts": times})
    pq.write_table(table, tmp_path / "a" / "1.parquet")
    rows = read(spark, declare("path = '{site}', format = 'parquet'"), tmp_path)
    assert good(rows) == [(1, "/a", 1.5)]
    assert bad(rows) == {'{"page":"/b","ms":2.5}': "no event time (ts)"}


def test_json_fields_may_be_absent_more_than_declared_and_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        json.dumps({"page": "/a", "ts": iso(1), "more": {"deep": [1]}, "ms": 1}),
        json.dumps({"ts": iso(2)}),
        json.dumps({"ts": iso(3), "ms": "slow"}),
        "[]",
    ]
    (tmp_path / "one.json").write_text("\n".join(lines))
    rows = read(spark, declare("path = 'one.json'"), tmp_path)
    assert good(rows) == [(1, "/a", 1.0), (2, None, None)]
    assert bad(rows) == {lines[2]: "a field has the wrong type", "[]": "not readable as json"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("path = 'nowhere/{site}'", "there is no folder .*nowhere/a to read from"),
        ("connector = 'replay', path = 'no.jsonl'", "there is no log .*no.jsonl to replay"),
        ("path = 'other.csv', format = 'csv'", "'hits' declares page, ms, but the header of its file is ts, url"),
        ("connector = 'replay', path = 'other.csv', format = 'csv'", "'hits' declares page, ms, but the header"),
    ],
    ids=["folder", "log", "header", "header of a log"],
)
def test_a_source_that_is_not_as_declared_is_an_error_with_place_and_hint(
    spark: SparkSession, tmp_path: Path, options: str, message: str
) -> None:
    (tmp_path / "other.csv").write_text(f"ts,url\n{iso(1)},/a\n")
    with pytest.raises(EngineError, match=message) as caught:
        opened(spark, declare(options), tmp_path)
    assert caught.value.where == "q.sql:1:1"
    assert caught.value.hint


# --- replay -----------------------------------------------------------------------------------------------------


def test_a_replay_parses_csv_like_a_live_stream_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    lines = [f"/b,{iso(20)},2", "nonsense", f"/a,{iso(10)},1", f"/c,{iso(30)},3"]
    text = "\n".join(["page,ts,ms", *lines])
    (tmp_path / "log.csv.zst").write_bytes(zstandard.compress(text.encode()))
    stream = declare("connector = 'replay', path = 'log.csv.zst', format = 'csv'")
    log = opened(spark, stream, tmp_path)
    rows = collect(log, tmp_path)
    assert [r["page"] for r in rows if r[PROBLEM] is None] == ["/a", "/b", "/c"], "in order of arrival"
    assert bad(rows) == {"nonsense": "a field is missing, too much, or has the wrong type"}
    assert collect(log, tmp_path) == [], "a replay goes on by its offset"
    assert [log.is_over({"row": n}) for n in (0, 3, 4)] == [False, False, True]


def test_a_replay_of_parquet_gives_the_declared_columns(spark: SparkSession, tmp_path: Path) -> None:
    times = pa.array([START + timedelta(seconds=s) for s in (2, 1)], pa.timestamp("ns"))
    table = pa.table({"more": [1, 2], "ms": pa.array([1, 2], pa.float32()), "page": ["/b", "/a"], "ts": times})
    pq.write_table(table, tmp_path / "log.parquet")
    stream = declare("connector = 'replay', path = 'log.parquet', format = 'parquet'")
    assert good(read(spark, stream, tmp_path)) == [(1, "/a", 2.0), (2, "/b", 1.0)]


# --- generator --------------------------------------------------------------------------------------------------

EVERY_TYPE = "(ts TIMESTAMP, k STRING, i INT, d DOUBLE, p DECIMAL(10, 2), b BOOLEAN)"


def test_a_generator_makes_the_same_records_for_the_same_seed_and_site(spark: SparkSession, tmp_path: Path) -> None:
    cases = {"first": (7, "a"), "again": (7, "a"), "elsewhere": (7, "b"), "other": (8, "a")}
    found = generate(spark, tmp_path, cases)
    assert found["first"] == found["again"]
    assert len({tuple(rows) for rows in found.values()}) == 3, "another site or seed gives other records"
    assert len(found["first"]) == 40
    assert {r[0] for r in found["first"]} <= {f"k{i}" for i in range(5)}
    assert len(set(found["first"])) > 20


def generate(spark: SparkSession, base: Path, cases: dict[str, tuple[int, str]]) -> dict[str, list[tuple[Any, ...]]]:
    """The records of one-second generators, all run at once, in their order and without their times."""
    rows: dict[str, list[Any]] = {name: [] for name in cases}
    queries = []
    for name, (seed, site) in cases.items():
        stream = declare(
            f"connector = 'generator', rows_per_s = 40, keys = 5, seed = {seed}, duration = '1 s'", EVERY_TYPE
        )
        made = opened(spark, stream, base, site)
        assert made.records is not None
        into = rows[name].extend
        writer = made.records.writeStream.foreachBatch(lambda batch, _, into=into: into(batch.collect()))
        queries.append((made, writer.option("checkpointLocation", str(base / name)).start()))
    for made, query in queries:
        wait_until_over(made, query)
        query.stop()
    return {name: [tuple(r)[1:6] for r in sorted(found)] for name, found in rows.items()}


def wait_until_over(stream: OpenedStream, query: Any) -> None:
    def is_over() -> bool:
        progress = query.lastProgress
        return bool(progress) and stream.is_over(json.loads(progress["sources"][0]["endOffset"]))

    wait_until(is_over, "the stream to end", state=lambda: query.lastProgress)


def test_a_run_over_generators_ends_when_they_do_and_every_record_is_answered(
    spark: SparkSession, tmp_path: Path
) -> None:
    queries = """
        CREATE STREAM events (ts TIMESTAMP, kind STRING, amount DOUBLE)
          WITH (event_time = 'ts', sites = '{sites}', connector = 'generator', rows_per_s = 50, keys = 3,
                duration = '2 seconds');
        CREATE MATERIALIZED VIEW totals AS
          SELECT window.start, kind, count(*) AS n FROM events GROUP BY window(ts, '1 second'), kind;"""
    folder = write_project(tmp_path / "p", ["a", "b"], {}, queries=queries)
    assert run_project(spark, folder, once=False)["sites"]["a"]["rows"] == 100
    assert sum(read_results(folder / "state", "totals")["n"].to_pylist()) == 200
    last = {w["window_start"]: w["status"] for w in read_windows(folder / "state", "totals").to_pylist()}
    assert set(last.values()) == {"final"}


# --- tables -----------------------------------------------------------------------------------------------------


def declare_table(path: str, options: str = "") -> Table:
    (table,) = parse_sql(f"CREATE TABLE pages (page STRING, tier INT) WITH (path = '{path}'{options})", "q.sql")
    assert isinstance(table, Table)
    return table


def test_a_table_is_read_from_csv_json_or_parquet_by_the_names_of_its_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.spark.sources.streams import read_table

    (tmp_path / "p.csv").write_text('tier,more,page\n1,x,/a\n,"x,y",/b\n')
    (tmp_path / "s.csv").write_text("/a;1\n/b;\n")
    (tmp_path / "p.json").write_text('{"tier": 1, "page": "/a", "more": 2}\n{"page": "/b"}\n')
    pq.write_table(pa.table({"tier": pa.array([1, None], pa.int32()), "page": ["/a", "/b"]}), tmp_path / "p.parquet")
    tables = [
        declare_table("p.csv"),
        declare_table("s.csv", ", header = false, delimiter = ';'"),
        declare_table("p.json"),
        declare_table("p.parquet"),
    ]
    for table in tables:
        found = sorted(tuple(r) for r in read_table(spark, table, tmp_path).select("page", "tier").collect())
        assert found == [("/a", 1), ("/b", None)], table.connector


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "page,tier\n/a,1\n/b,top\n", "cannot be used, a field is missing.*: /b,top"),
        ("p.json", '{"page": "/a"}\n{"page": \n', "cannot be used, not readable as json"),
        ("p.csv", "url,tier\n/a,1\n", "'pages' declares page, but the header of its file is url, tier"),
        ("absent.csv", "", "has no data at"),
    ],
    ids=["bad CSV", "bad JSON", "header", "absent"],
)
def test_a_table_that_cannot_be_read_whole_is_an_error_not_a_gap(
    spark: SparkSession, tmp_path: Path, name: str, text: str, message: str
) -> None:
    from catchment.spark.sources.streams import read_table

    if text:
        (tmp_path / name).write_text(text)
    with pytest.raises(EngineError, match=message) as caught:
        read_table(spark, declare_table(name), tmp_path)
    assert caught.value.where
    assert caught.value.hint
