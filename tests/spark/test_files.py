"""Streams of files on Spark: every record counts once, whatever happens to the files, their names and their times.

Catches: files that are missed, half read or read twice by a site; state of earlier versions that is not taken up.
Cannot catch: every order of changes to a folder; `tests/files/test_watch.py` does, without Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results
from catchment.errors import EngineError
from catchment.files.folder import WatchedFolder
from catchment.files.watch import FolderWatch
from catchment.query.sql.connectors import FilesConnector
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream
from catchment.site.agreed_time import AgreedTime
from catchment.site.core import SiteCore
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import ManualClock
from tests.worlds.projects import as_lines, expected_numbers, make_records, write_project
from tests.worlds.runs import Status, run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

pytestmark = pytest.mark.spark

QUERY = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
"""
GROWING = "connector = 'files', path = 'data/{site}/*.json', growing = true"
OLD_S, FUTURE_S = 915_148_800, 4_102_444_800  # 1999 and 2100


def make_project(folder: Path, **options: Any) -> Path:
    """A project of one site that has read nothing; its repair horizon holds all records."""
    made = write_project(folder, ["a"], {"a": []}, queries=QUERY, toml='repair_horizon = "1 day"', **options)
    for path in (folder / "data" / "a").iterdir():
        path.unlink()
    return made


def as_text(records: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{line}\n" for line in as_lines(records))


def check(folder: Path, records: Iterable[dict[str, Any]]) -> None:
    rows = read_results(folder / "state", "numbers").to_pylist()
    found = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in rows}
    assert found == {place: (row["n"], row["bytes"]) for place, row in expected_numbers(records).items()}


def test_times_names_and_folders_of_files_do_not_matter(spark: SparkSession, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    data = folder / "data" / "a"
    records = [make_records(40, seed) for seed in range(4)]
    (data / "0.json").write_text(as_text(records[0]))
    run_project(spark, folder)
    for number, modified_s in ((1, OLD_S), (2, FUTURE_S)):
        (data / f"{number}.json").write_text(as_text(records[number]))
        os.utime(data / f"{number}.json", (modified_s, modified_s))
    moved = tmp_path / "odd name [3] {x,y} %20.json"
    moved.write_text(as_text(records[3]))
    os.utime(moved, (OLD_S - 1, OLD_S - 1))
    moved.rename(data / moved.name)
    (data / "0.json").rename(data / "9.json")
    status = run_project(spark, folder)
    check(folder, (r for made in records for r in made))
    assert status["sites"]["a"]["files"]["hits"] == {"read": 4, "known": 4, "gone": 0, "renamed": 1, "forgotten": 0}


def test_changed_files_stop_their_stream_by_name_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    data = folder / "data" / "a"
    records = [make_records(40, seed) for seed in range(5)]
    for number in (1, 2):
        (data / f"{number}.json").write_text(as_text(records[number]))
    run_project(spark, folder)
    (data / "1.json").write_text(as_text([*records[1], *records[3]]))
    (data / "2.json").write_text(as_text(records[4]))
    (data / "0.json").write_text(as_text(records[0]))
    told = f"the file {data / '1.json'} has grown from .* the file {data / '2.json'} has other content than when it"
    with pytest.raises(EngineError, match=told):
        run_project(spark, folder)
    reasons: list[str] = []

    def is_put_right(runner: Runner, status: Status) -> bool:
        site = status["sites"]["a"]
        if site["streams"]["hits"]["state"] == "retrying" and not reasons:
            reasons.append(site["streams"]["hits"]["reason"])
            (data / "2.json").rename(data / "4.json")
            (data / "1.json").write_text(as_text(records[1]))
            (data / "3.json").write_text(as_text(records[3]))
        return bool(reasons) and site["files"]["hits"]["read"] == 5

    run_project(spark, folder, once=False, until=is_put_right)
    assert re.match(told, reasons[0])
    run_project(spark, folder)
    check(folder, (r for made in records for r in made))


def test_growing_files_are_read_by_complete_lines_also_when_the_site_dies_between(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site dies before a batch is committed, and after another one is; the file is torn in the middle of a line."""
    from catchment.spark.pipelines.site import SitePipeline

    class KilledError(Exception):
        pass

    handle = SitePipeline._commit_batch
    deaths = iter(["before", "after"])

    def commit(self: SitePipeline, state: Any, batch: Any, number: int, settle: Any) -> None:
        def die_before() -> Any:
            settle()
            raise KilledError

        when = next(deaths, None)
        handle(self, state, batch, number, die_before if when == "before" else settle)
        if when == "after":
            raise KilledError

    folder = make_project(tmp_path / "p", connector=GROWING)
    log = folder / "data" / "a" / "app.json"
    records = make_records(60, 1)
    text = as_text(records)
    torn = text.index("\n", len(text) // 3) + 20
    log.write_text(text[:torn])
    monkeypatch.setattr(SitePipeline, "_commit_batch", commit)
    run_project(spark, folder)  # dies twice, and is started again each time
    assert next(deaths, None) is None
    check(folder, records[: text[:torn].count("\n")])
    with log.open("a") as file:
        file.write(text[torn:])
    os.utime(log, (OLD_S, OLD_S))
    log.rename(log.with_name("app-1.json"))
    more = make_records(30, 2)
    log.write_text(as_text(more))
    run_project(spark, folder)
    check(folder, [*records, *more])


def test_what_the_file_source_of_spark_has_read_is_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint as in older state folders: three batches were planned, two of them committed."""
    from catchment.spark.pipelines.file_batches import FileBatches
    from catchment.spark.pipelines.micro_batch import StreamState
    from catchment.spark.sources.files import FileSource
    from catchment.spark.sources.streams import OpenedStream
    from catchment.spark.streaming import start_query

    data = tmp_path / "data in"
    data.mkdir()
    for number in range(3):
        (data / f"{number} ä.json").write_text(json.dumps({"number": number}))
        os.utime(data / f"{number} ä.json", (1_000_000 + number, 1_000_000 + number))
    checkpoint = tmp_path / "checkpoints" / "hits"
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(data))
    writer = lines.writeStream.foreachBatch(lambda batch, number: None).trigger(availableNow=True)
    start_query(writer.option("checkpointLocation", str(checkpoint))).awaitTermination()
    core = SiteCore()
    host: Host[Any, Any] = Host(core, Journal(tmp_path / "journal"), lambda *_: 0, ManualClock(0))
    host.submit("hits", [], batch=1)
    source = FileSource(spark, WatchedFolder(data), lambda rows: rows)
    (declared,) = parse_sql("CREATE STREAM hits (ts TIMESTAMP) WITH (event_time = 'ts', path = 'data in')", "q.sql")
    assert isinstance(declared, Stream)
    state = StreamState(declared, OpenedStream(None, files=source), (), AgreedTime(1))
    watch = FolderWatch("hits", source.watched)
    batches = FileBatches(state, source, watch, host, core, ManualClock(0), tmp_path, lambda *_: None)
    batches.take_over_checkpoint()
    assert [piece.name for piece in batches.look().pieces] == ["2 ä.json"]
    assert not checkpoint.exists()
    batches.take_over_checkpoint()  # a second start has nothing to take over
    (data / "0 ä.json").rename(data / "renamed.json")
    assert [piece.name for piece in batches.look().pieces] == ["2 ä.json"]


@pytest.mark.parametrize("form", ["format = 'json'", "format = 'csv', header = false, delimiter = ' '"])
def test_a_line_that_is_too_long_goes_to_quarantine_with_its_place_and_the_others_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    from catchment.files import numbered_lines
    from catchment.shedding.reader_filter import ReadRequest
    from catchment.site.known_files import KnownFiles, StreamTimes
    from catchment.spark.sources.streams import _open_files

    monkeypatch.setattr(numbered_lines, "PART_BYTES", 100)
    monkeypatch.setattr(numbered_lines, "MAX_LINE_BYTES", 1000)
    statement = f"CREATE STREAM hits (page STRING, ts TIMESTAMP) WITH (event_time = 'ts', path = 'x', {form})"
    (declared,) = parse_sql(statement, "q.sql")
    assert isinstance(declared, Stream)
    assert isinstance(declared.connector, FilesConnector)
    pattern = '{"page": "%s", "ts": "2024-05-06T00:00:05Z"}' if "json" in form else "%s 2024-05-06T00:00:05Z"
    texts = [(pattern % page) for page in ("a", "b" * 5000, "c")]
    path = tmp_path / "1.txt"
    path.write_text("\n".join(texts))
    source = _open_files(spark, declared, declared.connector, tmp_path)
    pieces = FolderWatch("hits", source.watched).look(KnownFiles(), StreamTimes(0, 0, None)).pieces
    rows = source.number_rows(0, pieces)
    assert rows is not None
    assert rows.rows == (0, 3)
    found = source.reread("hits", spark.sparkContext.accumulator(0.0), rows, [ReadRequest(1.0)]).collect()
    good = [row for row in found if row["_problem"] is None]
    assert sorted(row["page"] for row in good) == ["a", "c"]
    (bad,) = (row for row in found if row["_problem"] is not None)
    at = len(texts[0]) + 1
    assert f"a line of {len(texts[1]) + 1} bytes at byte {at} of {path}" in bad["_raw"]
