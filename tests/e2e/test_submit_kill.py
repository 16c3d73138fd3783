"""kill -9 right after `submit` and `drop`: what runs on is what was submitted, and no answer is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from catchment.center.results.tables import read_results
from catchment.project.config import Project
from tests.spark.test_submit import NEW, QUERIES
from tests.worlds.projects import START, as_lines, expected_numbers, group, make_records, write_project

REPLAY_S = 20.0
DEADLINE_S = 200


class Run:
    """All of a project in one process, started again after a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "catchment.cli", "run", str(self.folder), "--json"]
        with (self.folder / "run.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for_window(self) -> None:
        """Until a window of `numbers` is published."""
        deadline = time.monotonic() + DEADLINE_S
        while not (self.folder / "state" / "windows" / "numbers" / "_delta_log").is_dir():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text()[-3000:]


@pytest.mark.e2e
@pytest.mark.spark
def test_a_kill_right_after_a_submit_and_a_drop_changes_no_answer(tmp_path: Path) -> None:
    from catchment.deploy.submit import drop, submit

    by_site = {site: make_records(300, seed) for seed, site in enumerate(("a", "b"))}
    replay = f"connector = 'replay', path = 'data/{{site}}.jsonl', format = 'json', speed = {600 / REPLAY_S}"
    lines = {site: as_lines(mine) for site, mine in by_site.items()}
    folder = write_project(tmp_path / "p", ["a", "b"], lines, connector=replay, queries=QUERIES)
    (folder / "new.sql").write_text(NEW)
    project, run = Project.load(folder), Run(folder)
    try:
        run.wait_for_window()
        submit(project, folder / "new.sql")
        drop(project, "slowest")
        run.kill()
        run.start()
        assert run.process.wait(timeout=DEADLINE_S) == 0, run.log
    finally:
        if run.process.poll() is None:
            run.kill()
    check_answers(folder / "state", [r for mine in by_site.values() for r in mine])


def check_answers(state: Path, records: list[dict[str, Any]]) -> None:
    """`numbers` is whole, `users` from its first window on, `slowest` until it was dropped; each row once."""
    rows = {(r["start"], r["page"]): (r["n"], r["bytes"]) for r in read_results(state, "numbers").to_pylist()}
    assert rows == {place: (w["n"], w["bytes"]) for place, w in expected_numbers(records).items()}
    everything = read_results(state, "numbers", revisions="all").to_pylist()
    published = [(r["window_start"], r["page"], r["revision"]) for r in everything]
    assert len(published) == len(set(published)), "no revision of a row was written twice"

    users = {(r["start"], r["user"]): r["n"] for r in read_results(state, "users").to_pylist()}
    counted = {place: len(rows) for place, rows in group(records, 60, 60, "user").items()}
    first = min(start for start, _ in users)
    assert first > START, "it came when the first window was over"
    assert users == {place: n for place, n in counted.items() if place[0] >= first}

    highs = {r["start"]: r["high"] for r in read_results(state, "slowest").to_pylist()}
    by_start = {start: max(r["ms"] for r in rows) for (start, _), rows in group(records, 60, 60, None).items()}
    assert highs == {start: by_start[start] for start in sorted(by_start)[: len(highs)]}
    assert max(highs) < START + timedelta(minutes=9), "it was dropped before the end"
