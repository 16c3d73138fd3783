"""kill -9 of a light site, again and again, and of the center that evaluates its records: no answer changes.

The light site is a process of its own, without Spark, and its records come over an encrypted link. It is given a few of
them at a time, more whenever it has journalled those, so that it is killed at work.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from catchment.center.results.read import read_results
from catchment.keys.key_folder import KeyFolder
from tests.worlds.answers import check_numbers, check_published_once
from tests.worlds.processes import Role, kill_in_turn, running
from tests.worlds.projects import QUERIES, as_lines, make_records, write_project
from tests.worlds.runs import run_project
from tests.worlds.waiting import free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

RECORDS, SPREAD_S = 30_000, 60_000  # more than any run reads
PORTION = 20  # records per file
MAX_OWN_KB = 60_000  # without pages of libraries: the kernel maps as many as its page cache happens to hold


class Feeder:
    """Gives the light site the next records whenever it has journalled more, or was started again."""

    def __init__(self, folder: Path, site: Role) -> None:
        self._folder = folder
        self._site = site
        self._records = make_records(RECORDS, 7, SPREAD_S)
        self._seen: object = None
        self.given: list[dict[str, Any]] = []
        self.own_kb = 0

    def feed(self) -> None:
        assert self._site.process is not None
        now = self._site.process.pid, self._site.journal()
        if now == self._seen:
            return
        self._seen = now
        self.own_kb = max(self.own_kb, _own_memory_kb(self._site.process.pid))
        more = self._records[len(self.given) : len(self.given) + PORTION]
        unfinished = self._folder / "edge.part"
        unfinished.write_text("".join(line + "\n" for line in as_lines(more)))
        unfinished.rename(self._folder / "data" / "edge" / f"{len(self.given):06d}.json")
        self.given += more


def _own_memory_kb(process: int) -> int:
    """Return the memory that a light process has to itself; 0 while it still reads the project, before it is one."""
    try:
        if b"light_process" not in Path(f"/proc/{process}/cmdline").read_bytes():
            return 0
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def _make_project(folder: Path) -> Path:
    write_project(
        folder,
        ["edge"],
        {"edge": []},
        listen=f'listen = "127.0.0.1:{free_port()}"',
        queries=QUERIES,
        toml='repair_horizon = "1 minute"\nmax_jump = "1 day"\n[security]\nkeys = "keys"\n',
    )
    settings = folder / "catchment.toml"
    settings.write_text(settings.read_text().replace("[sites.edge]\n", "[sites.edge]\ncompute = false\n"))
    keys = KeyFolder(folder / "keys")
    keys.create("test")
    for site in ("edge", "center"):
        keys.issue(site)
    return folder


@pytest.mark.parametrize("kills", [3, pytest.param(12, marks=pytest.mark.soak)])
def test_kills_of_a_light_site_and_of_the_center_change_no_answer(
    spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    folder = _make_project(tmp_path / "p")
    state = folder / "state"
    edge = Role(folder, "site", "edge", state=state / "sources" / "edge")
    center = Role(folder, "center", state=state / "center")
    feeder = Feeder(folder, edge)
    with running([center, edge]):
        killed = kill_in_turn([edge, edge, center], kills, random.Random(3), meanwhile=feeder.feed)
        assert killed == kills, "a role ended before it was killed"
        wait_until(
            lambda: (state / "windows" / "numbers" / "_delta_log").is_dir(),
            "a window of the records of the light site to be published",
            act=feeder.feed,
            state=lambda: (center.last_words, edge.last_words),
        )
        edge.stop()
    run_project(spark, folder)
    check_numbers(state, feeder.given)
    check_published_once(state)
    assert set(read_results(state, "numbers").column("status").to_pylist()) <= {"exact", "final"}
    assert 0 < feeder.own_kb < MAX_OWN_KB
