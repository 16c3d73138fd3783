"""kill -9 of real processes at random moments: the answers stay those of the oracle, and nothing counts twice.

Every role is a process of its own, as on many machines; each is killed and started again while the log is replayed.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.tables import read_results, read_windows
from tests.spark.test_pipelines import check_answers, run_project
from tests.worlds.projects import QUERIES, as_lines, group, make_records, write_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

SITES = ("a", "b")
# A second stream of one of the sites, joined with the one of all.
PAIRS = """
CREATE STREAM taps (ts TIMESTAMP, user INT, ms DOUBLE) WITH (event_time = 'ts', sites = 'b', {connector});
CREATE MATERIALIZED VIEW pairs AS
  SELECT window.start, h.page, count(*) AS n, sum(h.bytes) AS bytes, max(t.ms) AS high
  FROM hits h JOIN taps t ON h.user = t.user GROUP BY window(h.ts, '1 minute'), h.page;
"""
KILLS = 10
DEADLINE_S = 420


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Role:
    """One process of catchment, started again whenever it is gone."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder, self.command = folder, command
        self.log = folder / f"{'-'.join(command)}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "catchment.cli", *self.command, "-p", str(self.folder), "--json"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """At the end of the test: whatever is left of it, its JVM included."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def done(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        assert code in (None, 0), f"{self.command} ended with {code}:\n{self.log.read_text()[-3000:]}"
        return code == 0


def make_project(folder: Path, seconds: float) -> tuple[Path, list[dict[str, Any]]]:
    records = {site: make_records(600, seed) for seed, site in enumerate(SITES)}
    replay = f"connector = 'replay', path = 'data/{{site}}.jsonl', format = 'json', speed = {600 / seconds}"
    write_project(folder, SITES, {s: as_lines(r) for s, r in records.items()}, connector=replay,
                  listen=f'listen = "127.0.0.1:{free_port()}"', queries=QUERIES + PAIRS)  # fmt: skip
    return folder, [{**r, "site": site} for site, mine in records.items() for r in mine]


@pytest.fixture(scope="module")
def survivor(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A project whose every role ran as a process of its own and was killed again and again; and its records."""
    folder, records = make_project(tmp_path_factory.mktemp("kill") / "p", seconds=30)
    roles = [Role(folder, "center"), *(Role(folder, "site", s) for s in SITES)]
    chance, kills, deadline = random.Random(4), 0, time.monotonic() + DEADLINE_S
    try:
        for role in roles:
            role.start()
        next_kill = time.monotonic() + 12
        while not all(role.done for role in roles):
            assert time.monotonic() < deadline, [(r.command, r.log.read_text()[-1500:]) for r in roles if not r.done]
            alive = [r for r in roles if not r.done]
            if kills < KILLS and time.monotonic() >= next_kill and alive:
                victim = chance.choice(alive)
                victim.kill()
                victim.start()
                kills += 1
                next_kill = time.monotonic() + chance.uniform(1.0, 9.0)
            time.sleep(0.1)
    finally:
        for role in roles:
            role.end()
    assert kills == KILLS, "the run was over before all kills: make it longer"
    return folder, records


def test_ten_kills_of_sites_and_center_change_no_answer(survivor: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = survivor
    check_answers(folder / "state", records)
    everything = read_results(folder / "state", "numbers", revisions="all").to_pylist()
    published = [(r["window_start"], r["page"], r["revision"]) for r in everything]
    assert len(published) == len(set(published)), "no revision of a row was written twice"
    statuses = {w["window_start"]: w["status"] for w in read_windows(folder / "state", "numbers").to_pylist()}
    assert set(statuses.values()) == {"final"}


def test_ten_kills_change_no_answer_of_a_join(survivor: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = survivor
    taps = group([r for r in records if r["site"] == "b"], 60, 60, "user")
    expected = {}
    for (start, page), hits in group(records, 60, 60, "page").items():
        pairs = [(h, t) for h in hits for t in taps.get((start, h["user"]), ())]
        if pairs:
            expected[start, page] = len(pairs), sum(h["bytes"] for h, _ in pairs), max(t["ms"] for _, t in pairs)
    rows = read_results(folder / "state", "pairs").to_pylist()
    assert {(r["start"], r["page"]): (r["n"], r["bytes"], r["high"]) for r in rows} == expected
    assert len(rows) == len(expected), "no row twice"


def test_processes_of_their_own_and_one_process_for_all_give_the_same_answers(
    spark: SparkSession, survivor: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    together, records = make_project(tmp_path / "together", seconds=4)
    run_project(spark, together)
    check_answers(together / "state", records)
    keep = ["window_start", "page", "n", "bytes", "low", "high"]
    apart, whole = (
        sorted(read_results(f / "state", "numbers").select(keep).to_pylist(), key=str) for f in (survivor[0], together)
    )
    assert apart == whole
