"""History that refers to files: views of the past answered from them as from a copy, or with the gap named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.center.results.read import newest_windows, read_results, read_windows
from catchment.deploy.submit import submit_text
from catchment.project.config import Project
from catchment.storage.referenced_batches import REFERENCE
from tests.worlds.projects import TWO_VIEWS, as_lines, make_records, write_project
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER = """CREATE MATERIALIZED VIEW later WITH (start = 'all') AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;"""
Records = list[dict[str, Any]]


def write_file(folder: Path, name: str, records: Records, format: str) -> Path:
    """Write records to a file of a site, with what cannot be used among them: no record, and one far in the future."""
    path = folder / f"{name}.{format}"
    far = {**records[0], "ts": "2090-01-01T00:00:00Z"}
    if format == "json":
        path.write_text("".join(line + "\n" for line in [*as_lines(records), "{not json", *as_lines([far])]))
    elif format == "csv":  # its columns in another order than the declared ones
        names = ["bytes", "page", "ts", "user", "ms"]
        rows = [",".join(str(r[column]) for column in names) for r in [*records, far]]
        path.write_text("\n".join([",".join(names), *rows, "many,words"]) + "\n")
    else:
        whole = [{**r, "ts": datetime.fromisoformat(r["ts"])} for r in [*records, far]]
        kinds = {"ts": pa.timestamp("us", "UTC"), "page": pa.string(), "user": pa.int32(), "ms": pa.float64()}
        schema = pa.schema({**kinds, "bytes": pa.int64()})
        pq.write_table(pa.Table.from_pylist(whole, schema), path)
    return path


def write_empty_project(folder: Path, format: str) -> Path:
    connector = f"connector = 'files', path = 'data/{{site}}', format = '{format}', history = 'reference'"
    write_project(folder, ["a"], {"a": []}, queries=TWO_VIEWS, connector=connector, files_per_site=0)
    return folder / "data" / "a"


def minute_of(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["ts"]).replace(second=0, microsecond=0)


def answers(folder: Path, view: str) -> dict[tuple[datetime, str], tuple[int, int]]:
    rows = read_results(folder / "state", view).to_pylist()
    return {(r["start"].replace(tzinfo=UTC), r["page"]): (r["n"], r["bytes"]) for r in rows}


def expected(records: Iterable[dict[str, Any]]) -> dict[tuple[datetime, str], tuple[int, int]]:
    counts: Counter[tuple[datetime, str]] = Counter()
    sums: Counter[tuple[datetime, str]] = Counter()
    for r in records:
        counts[minute_of(r), r["page"]] += 1
        sums[minute_of(r), r["page"]] += r["bytes"]
    return {place: (n, sums[place]) for place, n in counts.items()}


@pytest.mark.spark
@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_view_of_the_past_is_answered_from_the_files_themselves(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    folder = tmp_path / "p"
    data = write_empty_project(folder, format)
    records = make_records(400, 1)
    for part in range(2):
        write_file(data, f"part{part}", records[part * 200 : part * 200 + 200], format)
        run_project(spark, folder)
    history = folder / "state" / "sites" / "a" / "history" / "hits"
    assert sorted(path.name for path in history.rglob("*") if path.is_file()) == [REFERENCE, REFERENCE]
    (data / f"part0.{format}").rename(data / f"archived.{format}")
    submit_text(Project.load(folder), LATER)
    run_project(spark, folder)
    assert answers(folder, "numbers") == expected(records)
    assert answers(folder, "later") == expected(records)
    windows = newest_windows(read_windows(folder / "state", "later")).to_pylist()
    assert {tuple(w["missing_sites"]) for w in windows} == {()}
    assert {w["status"] for w in windows} <= {"exact", "final"}


@pytest.mark.spark
def test_a_stream_may_go_from_references_to_copies_and_back_and_each_batch_is_read_as_it_was_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "p"
    data = write_empty_project(folder, "json")
    records = make_records(300, 1)
    query = folder / "queries" / "q.sql"
    declared = query.read_text()
    for part, kept in enumerate(("'reference'", "'copy'", "'reference'")):
        query.write_text(declared.replace("history = 'reference'", f"history = {kept}"))
        write_file(data, f"part{part}", records[part * 100 : part * 100 + 100], "json")
        run_project(spark, folder)
    history = folder / "state" / "sites" / "a" / "history" / "hits"
    kinds = [{path.suffix for path in (history / f"batch={n}").iterdir() if path.name[0] != "."} for n in range(3)]
    assert [".parquet" in kind for kind in kinds] == [False, True, False]
    submit_text(Project.load(folder), LATER)
    run_project(spark, folder)
    assert answers(folder, "later") == expected(records)


@pytest.mark.spark
@pytest.mark.parametrize("is_removed", [True, False])
def test_windows_of_a_file_that_is_gone_or_changed_name_the_site_and_are_never_exact(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_removed: bool
) -> None:
    folder = tmp_path / "p"
    data = write_empty_project(folder, "json")
    records = make_records(600, 1)
    parts: list[Records] = [[], [], []]
    for place, record in enumerate(records):  # every second record of the fifth to the eighth minute is in the second
        number = minute_of(record).minute // 4
        parts[number - place % 2 if number == 1 else number].append(record)
    paths = []
    for number, part in enumerate(parts):
        paths.append(write_file(data, f"part{number}", part, "json"))
        run_project(spark, folder)
    submit_text(Project.load(folder), LATER)
    if is_removed:
        paths[1].unlink()
        run_project(spark, folder)
    else:
        content = paths[1].read_text()
        before = f'"bytes": {parts[1][10]["bytes"]}'
        paths[1].write_text(content.replace(before, '"bytes": '.ljust(len(before), "7")))
        run_project(spark, folder, once=False, until=lambda runner, status: is_past_read(status))
        paths[1].write_text(content)  # or its stream is not read any further
        run_project(spark, folder)
    what = "is gone" if is_removed else "has other content than when it"
    assert any(f"{paths[1]} {what}" in message for message in caplog.messages)
    kept = parts[0] + parts[2]
    found = answers(folder, "later")
    lost_minutes = {minute_of(r) for r in parts[1]}
    windows = newest_windows(read_windows(folder / "state", "later")).to_pylist()
    by_start = {w["window_start"].replace(tzinfo=UTC): w for w in windows}
    for start, window in by_start.items():
        is_lost = start in lost_minutes
        assert window["missing_sites"] == (["a"] if is_lost else []), start
        assert not is_lost or window["status"] != "exact"
        assert not is_lost or window["coverage"] < 1
    whole = {place: n for place, n in expected(kept).items() if place[0] in by_start and place[0] not in lost_minutes}
    assert {place: n for place, n in found.items() if place[0] not in lost_minutes} == whole
    assert len({place[0] for place in whole}) >= 4
    assert lost_minutes <= by_start.keys()
    assert answers(folder, "numbers") == expected(records), "what was answered before stands"


def is_past_read(status: Any) -> bool:
    found = [
        f["backfill"]
        for site in status["sites"].values()
        for f in site.get("fragments", {}).values()
        if f.get("backfill")
    ]
    return bool(found) and all(past["read_batches"] == past["batches"] for past in found)
