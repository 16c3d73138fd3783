"""Streams of objects of a real store, on Spark: every record counts once, though sites are killed and the store goes.

Catches: objects that are missed, half read or read twice by a site, by Arrow or by Spark SQL; an outage that ends all.
Cannot catch: every order of changes in a bucket; `tests/files/test_objects.py` does, without Spark.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.center.results.read import read_results
from catchment.deploy.processes.history_store import find_stored_history
from catchment.deploy.submit import submit_text
from catchment.errors import EngineError
from catchment.project.config import Project
from catchment.storage import compacted_batches
from catchment.storage.compacted_batches import BatchCompactor
from tests.worlds.processes import Role, kill_in_turn, running
from tests.worlds.projects import ANOTHER_VIEW, as_lines, expected_numbers, make_records, write_project
from tests.worlds.runs import Status, run_project
from tests.worlds.s3_server import BUCKET, MISSING, REGION, S3Server, has_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

pytestmark = [pytest.mark.spark, pytest.mark.integration]

QUERY = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', store_config = 's3.properties', list_every = '200 ms', {connector});
CREATE MATERIALIZED VIEW numbers AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
"""
BAD_LINES = '{"ts": "2024-03-01T00:00:01Z", "page": 5, "user": "x"}\n{"no": "event time"}\nnot JSON\n'


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    if not has_server():
        pytest.skip(MISSING)
    started = S3Server().start()
    started.make_bucket()
    yield started
    started.remove()


class StoredProject:
    """A project of one site whose stream is a folder of the store."""

    def __init__(
        self, folder: Path, server: S3Server, name: str, options: str = "", pattern: str = "", toml: str = ""
    ) -> None:
        connector = f"connector = 'files', path = 's3://{BUCKET}/{name}/{{site}}{pattern}'{options}"
        toml = f'repair_horizon = "1 day"\n{toml}'
        self.folder = write_project(folder, ["a"], {"a": []}, queries=QUERY, connector=connector, toml=toml)
        self.name = name
        self.server = server
        self.write_keys(server.secret_key)

    def write_keys(self, secret_key: str) -> None:
        settings = {
            "endpoint": self.server.endpoint,
            "region": REGION,
            "access_key_id": self.server.access_key,
            "secret_access_key": secret_key,
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (self.folder / "s3.properties").write_text(lines)

    def put(self, name: str, content: bytes | str) -> None:
        body = content.encode() if isinstance(content, str) else content
        self.server.client().put_object(Bucket=BUCKET, Key=f"{self.name}/a/{name}", Body=body)

    def check(self, records: Iterable[dict[str, Any]]) -> None:
        rows = read_results(self.folder / "state", "numbers").to_pylist()
        found = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in rows}
        assert found == {place: (row["n"], row["bytes"]) for place, row in expected_numbers(records).items()}

    def has_no_copies(self) -> bool:
        return not list((self.folder / "state" / "sites" / "a" / "spool").glob("*.objects"))


def as_text(records: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{line}\n" for line in as_lines(records))


def as_csv(records: Iterable[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, ["page", "bytes", "ts", "ms", "user"])
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def as_parquet(records: Iterable[dict[str, Any]]) -> bytes:
    schema = pa.schema(
        [
            ("ts", pa.timestamp("us", "UTC")),
            ("page", pa.string()),
            ("user", pa.int32()),
            ("ms", pa.float64()),
            ("bytes", pa.int64()),
        ]
    )
    rows = [{**record, "ts": datetime.fromisoformat(record["ts"])} for record in records]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return bytes(buffer.getvalue())


def test_json_lines_are_read_with_bad_ones_in_quarantine_through_an_outage_and_a_changed_object(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    project = StoredProject(tmp_path / "p", server, "json")
    records = [make_records(40, seed) for seed in range(4)]
    project.put("0.json", as_text(records[0]) + BAD_LINES)
    project.put("1.json.gz", gzip.compress(as_text(records[1]).encode()))
    status = run_project(spark, project.folder)
    assert status["sites"]["a"]["quarantined"] == 3
    project.check([*records[0], *records[1]])
    reasons: list[str] = []

    def is_through(runner: Runner, status: Status) -> bool:
        site = status["sites"]["a"]
        stream = site["streams"]["hits"]
        if stream["state"] == "running" and not reasons and site["files"]["hits"]["read"] == 3:
            server.stop()
            reasons.append("")
        if stream["state"] == "retrying" and reasons == [""]:
            reasons.append(stream["reason"])
            server.start()
            project.put("3.json", as_text(records[3]))
            project.put("0.json", as_text(records[2]))
        if stream["state"] == "retrying" and "has other content" in stream["reason"] and len(reasons) == 2:
            reasons.append(stream["reason"])
            project.put("0.json", as_text(records[0]) + BAD_LINES)
        return len(reasons) == 3 and site["files"]["hits"]["read"] == 4

    project.put("2.json", as_text(records[2]))
    run_project(spark, project.folder, once=False, until=is_through)
    assert "the store does not answer" in reasons[1]
    run_project(spark, project.folder)
    project.check(r for made in records for r in made)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_other_formats_are_read_by_arrow_and_by_spark_from_copies(
    spark: SparkSession, server: S3Server, tmp_path: Path, form: str
) -> None:
    """A line with quotes, and a column in the name of a folder, are left to Spark SQL."""
    project = StoredProject(tmp_path / "p", server, form, f", format = '{form}'", pattern=f"/*.{form}")
    records = [make_records(60, seed) for seed in range(3)]
    written = as_csv if form == "csv" else as_parquet
    for number in (0, 1):
        project.put(f"{number}.{form}", written(records[number]))
    run_project(spark, project.folder)
    project.check([*records[0], *records[1]])
    project.put(f"day=1/2.{form}", written(records[2]))
    run_project(spark, project.folder)
    project.check(r for made in records for r in made)
    assert project.has_no_copies()


def test_a_view_that_begins_in_the_past_reads_history_from_the_store(
    spark: SparkSession, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = f'history_store = "s3://{BUCKET}/kept"\nhistory_store_config = "s3.properties"'
    project = StoredProject(tmp_path / "p", server, "past", toml=history)
    records = make_records(200, 5)
    for number in range(2):
        project.put(f"{number}.json", as_text(records[number::2]))
        run_project(spark, project.folder)
    monkeypatch.setattr(compacted_batches, "KEEP_NEWEST", 0)
    monkeypatch.setattr(compacted_batches, "RUN_BATCHES", 1)
    stored = find_stored_history(Project.load(project.folder), "a", "hits")
    assert stored is not None
    compactor = BatchCompactor(stored.folder, "ts")
    while compactor.compact_next():
        pass
    while stored.move_next():
        pass
    assert not list(stored.folder.rglob("*.parquet"))
    users = ANOTHER_VIEW.replace("users AS", "users WITH (start = 'all') AS")
    submit_text(Project.load(project.folder), users)
    status = run_project(spark, project.folder)
    rows = read_results(project.folder / "state", "users").to_pylist()
    assert sum(row["n"] for row in rows) == len(records)
    assert status["sites"]["a"]["storage"]["history"]["hits"]["waiting_runs"] == 0


def test_wrong_keys_and_a_bucket_that_is_not_there_are_told_at_the_start(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    project = StoredProject(tmp_path / "p", server, "keys")
    project.put("0.json", as_text(make_records(5, 1)))
    server.check_keys()
    try:
        project.write_keys("wrong-secret")
        with pytest.raises(EngineError, match="its secret_access_key is wrong") as refused:
            run_project(spark, project.folder)
        assert "wrong-secret" not in str(refused.value)
        assert "store_config" in (refused.value.hint or "")
    finally:
        server.check_keys(False)


def test_a_killed_site_reads_every_object_once(spark: SparkSession, server: S3Server, tmp_path: Path) -> None:
    project = StoredProject(tmp_path / "p", server, "killed")
    records = make_records(3_000, 3, 6_000)
    given = 0
    role = Role(project.folder, "run", state=project.folder / "state" / "sites" / "a")
    seen: list[object] = []

    def give() -> None:
        nonlocal given
        assert role.process is not None
        now = role.process.pid, role.journal()
        if seen[-1:] != [now] and given < len(records):
            seen.append(now)
            project.put(f"{given:05d}.json", as_text(records[given : given + 15]))
            given += 15

    with running([role]):
        assert kill_in_turn([role], 2, random.Random(5), meanwhile=give) == 2
    project.put("last.json", as_text(records[given:]))
    run_project(spark, project.folder)
    project.check(records)
