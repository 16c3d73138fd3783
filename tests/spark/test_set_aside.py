"""Records that views set aside, on Spark: whole records, of look-ups and arrays too, and another try for them.

Catches: records that are lost, doubled or merged twice by a try that is interrupted, records of which only some rows
are set aside, samples of which failing records are part. Cannot catch: crashes at any place and in any order;
`tests/center/test_suspension.py` does, without Spark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from catchment.center.results.read import read_results, read_windows
from catchment.cli.main import app
from catchment.deploy.submit import submit_text
from catchment.errors import ConfigError
from catchment.project.config import Project
from tests.worlds.projects import make_records, write_project
from tests.worlds.runs import run_project
from tests.worlds.shed_project import ForcedMonitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT, tags STRING)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE TABLE pages (page STRING, divisor INT) WITH (connector = 'files', path = 'divisors.csv');
CREATE MATERIALIZED VIEW shares WITH (on_error = 'quarantine', max_errors = 1000) AS
  SELECT window.start, hits.page, count(*) AS n, sum(bytes div divisor) AS total
  FROM hits JOIN pages ON hits.page = pages.page WHERE ms > 5 GROUP BY window(ts, '1 minute'), hits.page;
CREATE MATERIALIZED VIEW tags WITH (on_error = 'quarantine', max_errors = 1000) AS
  SELECT window.start, count(*) AS n, sum(CAST(tag AS INT)) AS total
  FROM hits LATERAL VIEW explode(split(tags, ',')) t AS tag GROUP BY window(ts, '2 minutes');
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '1 minute');
"""
PAST = """CREATE MATERIALIZED VIEW past WITH (on_error = 'quarantine', max_errors = 1000, start = 'all') AS
  SELECT window.start, count(*) AS n, sum(CAST(tag AS INT)) AS total
  FROM hits LATERAL VIEW explode(split(tags, ',')) t AS tag GROUP BY window(ts, '2 minutes');"""
WRONG = "page,divisor\n/,2\n/a,0\n/a,4\n/b,5\n"
RIGHT = "page,divisor\n/,2\n/a,3\n/a,4\n/b,5\n"
BAD_TAGS = {7: "1,x", 30: "x,2", 55: "3,y,4"}


def records_of(count: int, seed: int) -> list[dict[str, Any]]:
    made = make_records(count, seed)
    return [{**r, "tags": BAD_TAGS.get(i, f"{i},{i + 1}")} for i, r in enumerate(made)]


def as_text(records: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(r)}\n" for r in records)


def minute_of(record: dict[str, Any], minutes: int = 1) -> str:
    at = record["ts"][:16]
    return f"{at[:14]}{int(at[14:]) // minutes * minutes:02d}"


def shares(records: Iterable[dict[str, Any]], table: str) -> dict[tuple[str, str], tuple[int, int]]:
    """The oracle of `shares`: a record of which any row divides by zero is not in it at all."""
    divisors: dict[str, list[int]] = defaultdict(list)
    for page, text in (line.split(",") for line in table.splitlines()[1:]):
        divisors[page].append(int(text))
    answer: dict[tuple[str, str], tuple[int, int]] = {}
    for record in (r for r in records if r["ms"] > 5 and 0 not in divisors[r["page"]]):
        for divisor in divisors[record["page"]]:
            place = minute_of(record), record["page"]
            n, total = answer.get(place, (0, 0))
            answer[place] = n + 1, total + record["bytes"] // divisor
    return answer


def tags(records: Iterable[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The oracle of `tags`: of a record with one bad tag none counts."""
    answer: dict[str, tuple[int, int]] = {}
    for record in records:
        if all(tag.isdigit() for tag in record["tags"].split(",")):
            for tag in record["tags"].split(","):
                n, total = answer.get(minute_of(record, 2), (0, 0))
                answer[minute_of(record, 2)] = n + 1, total + int(tag)
    return answer


def found_shares(folder: Path) -> dict[tuple[str, str], tuple[int, int]]:
    rows = read_results(folder / "state", "shares").to_pylist()
    return {(r["start"].strftime("%Y-%m-%dT%H:%M"), r["page"]): (r["n"], r["total"]) for r in rows}


def found_tags(folder: Path, view: str = "tags") -> dict[str, tuple[int, int]]:
    rows = read_results(folder / "state", view).to_pylist()
    return {r["start"].strftime("%Y-%m-%dT%H:%M"): (r["n"], r["total"]) for r in rows}


def in_quarantine(folder: Path, column: str = "page") -> list[Any]:
    files = sorted((folder / "state").glob("sites/*/quarantine/hits/fragment=*/batch=*/*.parquet"))
    return sorted(value for file in files for value in pq.read_table(file, columns=[column])[column].to_pylist())


def replay(folder: Path, name: str, *more: str) -> str:
    result = CliRunner().invoke(app, ["quarantine", "replay", name, "-p", str(folder), *more])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert not result.exit_code, result.output
    return result.output


def statuses(folder: Path, view: str) -> set[str]:
    newest = {w["window_start"]: w["status"] for w in read_windows(folder / "state", view).to_pylist()}
    return set(newest.values())


def test_what_a_view_has_set_aside_is_in_its_answers_once_when_its_look_up_table_is_right_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.spark.pipelines.quarantine_retry import QuarantineRetries

    records = {"a": records_of(120, 1), "b": records_of(80, 2)}
    everything = [*records["a"], *records["b"]]
    folder = write_project(tmp_path / "p", ("a", "b"), {}, queries=QUERIES)
    (folder / "divisors.csv").write_text(WRONG)
    for site, made in records.items():
        (folder / "data" / site).mkdir(parents=True)
        (folder / "data" / site / "0.json").write_text(as_text(made))
    status = run_project(spark, folder)
    assert not any(q["suspended"] for q in status["center"]["queries"].values())
    assert found_shares(folder) == shares(everything, WRONG)
    assert found_tags(folder) == tags(everything)
    set_aside = [r["page"] for r in everything if r["page"] == "/a" and r["ms"] > 5]
    assert len(in_quarantine(folder)) == len(set_aside) + 2 * len(BAD_TAGS)
    with pytest.raises(ConfigError, match="'numbers' has set nothing aside"):
        replay(folder, "numbers")
    with pytest.raises(ConfigError, match="no stream and no view 'share'"):
        replay(folder, "share")

    # The table is not right yet: everything stays where it is, also when the files of the try before are left behind.
    assert f"{len(set_aside)} records that shares has set aside are tried again" in replay(folder, "shares")
    with monkeypatch.context() as patch:
        patch.setattr(QuarantineRetries, "_forget", lambda self, found: None)
        run_project(spark, folder)
    assert found_shares(folder) == shares(everything, WRONG)
    (folder / "divisors.csv").write_text(RIGHT)
    spark.catalog.clearCache()  # as in a new process: the session of tests has the table of the run before
    replay(folder, "shares", "--site", "a")
    replay(folder, "shares", "--site", "b")
    replay(folder, "tags")
    try_once = QuarantineRetries._try
    failures = iter([OSError("the disk is away"), OSError("the disk is away")])

    def try_and_fail(self: QuarantineRetries, found: Any) -> Any:
        event = try_once(self, found)
        for failure in failures:
            raise failure  # what was written before does not count
        return event

    with monkeypatch.context() as patch:
        patch.setattr(QuarantineRetries, "_try", try_and_fail)
        status = run_project(spark, folder)
    assert found_shares(folder) == shares(everything, RIGHT)
    assert found_tags(folder) == tags(everything), "what fails again is not in it"
    assert in_quarantine(folder, "tags") == sorted(BAD_TAGS.values()) * 2 or len(in_quarantine(folder)) == 6
    assert statuses(folder, "shares") <= {"exact", "final"}
    for site in status["sites"].values():
        for fragment in site["fragments"].values():
            assert fragment["account"]["unaccounted"] == 0
            assert fragment["quarantined_records"] in (0, len(BAD_TAGS))

    # Nothing is tried that is in already, and a view that begins in the past sets the same records aside.
    replay(folder, "tags")
    submit_text(Project.load(folder), PAST)
    run_project(spark, folder)
    assert found_tags(folder) == tags(everything)
    assert found_tags(folder, "past") == tags(everything)
    assert statuses(folder, "past") <= {"exact", "final"}
    assert len(in_quarantine(folder)) == 4 * len(BAD_TAGS)


@pytest.mark.parametrize(
    ("connector", "from_record", "rate"), [("replay", 0, 0.3), ("files", 0, 0.3), ("replay", 250, 0.02)]
)
def test_on_a_stream_that_may_be_shed_the_records_that_fail_are_set_aside_and_the_others_are_exact(
    spark: SparkSession, tmp_path: Path, connector: str, from_record: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records fail in the first batch, which is read whole, or among those that were left out and are repaired."""
    from catchment.spark.pipelines import reading
    from catchment.spark.sources import streams as sources

    monkeypatch.setattr(reading, "MAX_FILES_PER_BATCH", 1)
    monkeypatch.setattr(sources, "MAX_REPLAYED_ROWS_PER_BATCH", 100)
    monkeypatch.setattr(ForcedMonitor, "RATE", rate)
    made = make_records(600, 3)
    made = [{**r, "tags": BAD_TAGS.get(i - from_record, f"{i},{i + 1}")} for i, r in enumerate(made)]
    options = {
        "replay": "connector = 'replay', path = 'data/{site}/0.json', speed = 1000000, shed = true",
        "files": "connector = 'files', path = 'data/{site}', shed = true",
    }
    folder = write_project(tmp_path / "p", ("a",), {}, queries=SHED, connector=options[connector])
    (folder / "data" / "a").mkdir(parents=True)
    step = 600 if connector == "replay" else 100
    for start in range(0, 600, step):
        (folder / "data" / "a" / f"{start // step}.json").write_text(as_text(made[start : start + step]))

    def is_repaired(runner: Any, status: Any) -> bool:
        busy = any(p.repairs.next_repair() or p.outbox.pending() for p in runner.pipelines)
        return status["sites"]["a"]["rows"] >= 600 and not busy and runner.center.consumed

    status = run_project(spark, folder, once=False, until=is_repaired, make_monitor=ForcedMonitor)
    assert status["sites"]["a"]["shedding"]["hits"]["shed_batches"] > 0
    assert not any(q["suspended"] for q in status["center"]["queries"].values())
    good = [r for r in made if r["tags"] not in BAD_TAGS.values()]
    closed = {r["start"].strftime("%Y-%m-%dT%H:%M"): r for r in read_results(folder / "state", "first").to_pylist()}
    exact = {at: r for at, r in closed.items() if r["status"] in ("exact", "final")}
    assert len(exact) > 3
    for at, row in exact.items():
        wanted = [int(r["tags"].split(",")[0]) for r in good if minute_of(r, 2) == at]
        assert (row["n"], row["total"]) == (len(wanted), sum(wanted)), at
    fragments = status["sites"]["a"]["fragments"].values()
    assert sorted(f["quarantined_records"] for f in fragments) == [0, len(BAD_TAGS)]
    assert all(f["account"]["unaccounted"] == 0 for f in fragments)


SHED = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT, tags STRING)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW first WITH (on_error = 'quarantine') AS
  SELECT window.start, count(*) AS n, sum(CAST(split(tags, ',')[0] AS INT) + 0 * CAST(split(tags, ',')[1] AS INT))
    AS total FROM hits GROUP BY window(ts, '2 minutes');
"""
