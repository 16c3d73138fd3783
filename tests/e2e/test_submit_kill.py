"""kill -9 right after `submit` and `drop`: what runs on is what was submitted, and no answer is lost or doubled."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results
from catchment.project.config import Project
from tests.worlds.answers import check_published_once
from tests.worlds.processes import Role, running
from tests.worlds.projects import (
    ANOTHER_VIEW,
    START,
    TWO_VIEWS,
    as_lines,
    expected_numbers,
    group,
    make_records,
    write_project,
)
from tests.worlds.runs import run_project
from tests.worlds.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE_THE_KILL = START + timedelta(minutes=3)  # records before it are there when the process is killed


@pytest.mark.e2e
@pytest.mark.spark
def test_a_kill_right_after_a_submit_and_a_drop_changes_no_answer(spark: SparkSession, tmp_path: Path) -> None:
    """The process is killed over the first three minutes of records; what is started then finds the other seven."""
    from catchment.deploy.submit import drop, submit

    by_site = {site: make_records(300, seed) for seed, site in enumerate(("a", "b"))}
    lines = {site: as_lines(r for r in mine if is_early(r)) for site, mine in by_site.items()}
    folder = write_project(tmp_path / "p", ["a", "b"], lines, queries=TWO_VIEWS)
    (folder / "new.sql").write_text(ANOTHER_VIEW)
    project, run = Project.load(folder), Role(folder, "run")
    with running([run]):
        wait_until(
            lambda: run.done or (folder / "state" / "windows" / "numbers" / "_delta_log").is_dir(),
            "a window to be published",
            state=lambda: run.last_words,
        )
        submit(project, folder / "new.sql")
        drop(project, "slowest")
        run.kill()
    for site, mine in by_site.items():
        rest = as_lines(r for r in mine if not is_early(r))
        (folder / "data" / site / "rest.json").write_text("".join(line + "\n" for line in rest))
    run_project(spark, folder)
    check_answers(folder / "state", [r for mine in by_site.values() for r in mine])


def is_early(record: dict[str, Any]) -> bool:
    return str(record["ts"]) < BEFORE_THE_KILL.isoformat()


def check_answers(state: Path, records: list[dict[str, Any]]) -> None:
    """`numbers` is whole, `users` from its first window on, `slowest` until it was dropped; each row once."""
    rows = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in read_results(state, "numbers").to_pylist()}
    assert rows == {place: (w["n"], w["bytes"]) for place, w in expected_numbers(records).items()}
    check_published_once(state)

    users = {(r["start"], r["user"]): r["n"] for r in read_results(state, "users").to_pylist()}
    counted = {place: len(rows) for place, rows in group(records, 60, 60, "user").items()}
    first = min(start for start, _ in users)
    assert START < first <= BEFORE_THE_KILL, "it came when the first window was over, and sees all of what came later"
    assert users == {place: n for place, n in counted.items() if place[0] >= first}

    highs = {r["start"]: r["high"] for r in read_results(state, "slowest").to_pylist()}
    by_start = {start: max(r["ms"] for r in rows) for (start, _), rows in group(records, 60, 60, None).items()}
    assert highs == {start: by_start[start] for start in sorted(by_start)[: len(highs)]}
    assert max(highs) < BEFORE_THE_KILL, "it was dropped before the rest came"
