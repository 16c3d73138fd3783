"""A view that begins in the past, on real Spark: history at every site, a kill -9 while it is read, equal answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results
from catchment.deploy.reports.role_files import read_status
from catchment.deploy.submit import submit_text
from catchment.project.config import Project
from tests.worlds.answers import check_published_once
from tests.worlds.processes import Role, running
from tests.worlds.projects import TWO_VIEWS, as_lines, expected_numbers, make_records, write_project
from tests.worlds.runs import run_project
from tests.worlds.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITES = ("a", "b")
RECORDS = 2400
BATCHES = 2  # of the past, each larger than the first chunk that is read of it
SLOW = 'bandwidth = "20 MB/s"\nbackfill_bandwidth = "20 bytes/s"\n'
LATER = """CREATE MATERIALIZED VIEW later WITH (start = 'all') AS
  SELECT window.start, page, count(*) AS n, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;"""


def feed(folder: Path, part: int, by_site: dict[str, list[dict[str, Any]]]) -> None:
    """Give every site its next file, which becomes one micro-batch."""
    for site, mine in by_site.items():
        share = len(mine) // (BATCHES + 1)
        lines = as_lines(mine[part * share : None if part == BATCHES else (part + 1) * share])
        whole = folder / f"{site}.part"
        whole.write_text("".join(line + "\n" for line in lines))
        whole.rename(folder / "data" / site / f"more{part}.json")


def rows_read(folder: Path, site: str) -> int:
    return int((read_status(folder / "state" / "sites" / site) or {}).get("rows", 0))


def past_of(folder: Path, site: str) -> tuple[int, int]:
    """How many batches of the past were read, and how many are left."""
    status = read_status(folder / "state" / "sites" / site) or {}
    past = [f["backfill"] for f in status.get("fragments", {}).values() if f.get("backfill")]
    return (past[0]["read_batches"], past[0]["batches"] - past[0]["read_batches"]) if past else (0, 0)


@pytest.mark.soak
@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.parametrize("history", ["'copy'", "'reference'"])
def test_a_view_that_begins_in_the_past_and_is_killed_there_equals_one_that_was_always_there(
    spark: SparkSession, tmp_path: Path, history: str
) -> None:
    by_site = {site: make_records(RECORDS, seed) for seed, site in enumerate(SITES)}
    connector = f"connector = 'files', path = 'data/{{site}}', history = {history}"
    lines: dict[str, list[str]] = {site: [] for site in SITES}
    folder = write_project(tmp_path / "p", SITES, lines, queries=TWO_VIEWS, connector=connector)
    state = folder / "state"
    declared = (folder / "catchment.toml").read_text()
    (folder / "catchment.toml").write_text(declared.replace('bandwidth = "20 MB/s"\n', SLOW))
    run = Role(folder, "run")
    with running([run]):
        for part in range(BATCHES):
            feed(folder, part, by_site)
            wanted = (part + 1) * (RECORDS // (BATCHES + 1))
            wait_until(
                lambda wanted=wanted: run.done or all(rows_read(folder, site) == wanted for site in SITES),  # type: ignore[misc]
                "every site to read its file",
                state=lambda: run.last_words,
            )
        submit_text(Project.load(folder), LATER)
        wait_until(
            lambda: run.done or all(past_of(folder, site)[0] for site in SITES),
            "a part of the past to be read",
            state=lambda: run.last_words,
        )
        run.kill()
    assert all(past_of(folder, site)[1] == 1 for site in SITES), "the link allows no more for minutes"
    (folder / "catchment.toml").write_text(declared)
    feed(folder, BATCHES, by_site)
    run_project(spark, folder)
    records = [r for mine in by_site.values() for r in mine]
    expected = {place: (w["n"], w["bytes"]) for place, w in expected_numbers(records).items()}
    for view in ("numbers", "later"):
        rows = read_results(state, view).to_pylist()
        assert {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in rows} == expected
        assert {r["status"] for r in rows} <= {"exact", "final"}
    check_published_once(state)
