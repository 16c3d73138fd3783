"""kill -9 of real processes at random moments: the answers stay those of the oracle, and nothing counts twice.

Every role is a process of its own, as on many machines. Sites are given a few records at a time, more whenever they
have read those, so that roles are killed at work; then all are killed at once, and one process reads what is left.
"""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.read import read_results
from catchment.keys.key_folder import KeyFolder
from tests.worlds.answers import check_answers, check_final, check_published_once
from tests.worlds.processes import Role, kill_in_turn, running
from tests.worlds.projects import QUERIES, as_lines, group, make_records, write_project
from tests.worlds.runs import run_project
from tests.worlds.waiting import free_port, wait_until

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
RECORDS, SPREAD_S = 30_000, 60_000  # more than any run reads: a window needs 30 records of each site
PORTION = 10  # records per file
# A window is final a minute after its end, long before the end of what a run reads.
DEFAULTS = 'repair_horizon = "1 minute"\nmax_jump = "1 day"\n'
SECURITY = '[security]\nkeys = "keys"\n'  # every link is secured, as between machines

Survivor = tuple[Path, dict[str, list[dict[str, Any]]]]


def make_project(folder: Path) -> Path:
    write_project(
        folder,
        SITES,
        {site: [] for site in SITES},
        listen=f'listen = "127.0.0.1:{free_port()}"',
        queries=QUERIES + PAIRS,
        toml=DEFAULTS + SECURITY,
    )
    keys = KeyFolder(folder / "keys")
    keys.create("test")
    for site in (*SITES, "center"):
        keys.issue(site)
    return folder


def write_file(folder: Path, site: str, name: str, records: list[dict[str, Any]]) -> None:
    """Put records before a site, all of them at once."""
    unfinished = folder / f"{site}.part"
    unfinished.write_text("".join(line + "\n" for line in as_lines(records)))
    unfinished.rename(folder / "data" / site / f"{name}.json")


def minute(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["ts"]).replace(second=0, microsecond=0)


class Feeder:
    """Gives every site a portion of its records when it is started, and the next one when it has journalled more."""

    def __init__(self, folder: Path, sites: dict[str, Role]) -> None:
        self.folder, self.sites = folder, sites
        self.records = {name: make_records(RECORDS, seed, SPREAD_S) for seed, name in enumerate(sites)}
        self.given: dict[str, list[dict[str, Any]]] = {name: [] for name in sites}
        self._seen: dict[str, object] = {}

    def feed(self) -> None:
        for name, role in self.sites.items():
            assert role.process is not None
            now = role.process.pid, role.journal()
            if self._seen.get(name) != now:
                self._seen[name] = now
                self._give(name, PORTION)

    def level(self) -> None:
        """Bring all sites to the end of one minute, so that what each has read closes the windows of the others."""
        last = max(minute(mine[-1]) for mine in self.given.values())
        for name, mine in self.given.items():
            self._give(name, sum(minute(r) <= last for r in self.records[name]) - len(mine))

    def _give(self, name: str, count: int) -> None:
        given = self.given[name]
        more = self.records[name][len(given) : len(given) + count]
        write_file(self.folder, name, f"{len(given):06d}", more)
        given += more


@pytest.fixture(
    scope="module", params=[3, pytest.param(12, marks=pytest.mark.soak)], ids=lambda kills: f"{kills} kills"
)
def survivor(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Survivor:
    """A project whose every role ran as a process of its own and was killed at work; and its records."""
    folder = make_project(tmp_path_factory.mktemp("kill") / "p")
    state, kills = folder / "state", int(request.param)
    center = Role(folder, "center", state=state / "center")
    sites = {site: Role(folder, "site", site, state=state / "sites" / site) for site in SITES}
    feeder = Feeder(folder, sites)
    with running([center, *sites.values()]):
        killed = kill_in_turn([*sites.values(), center], kills, random.Random(4), meanwhile=feeder.feed)
        assert killed == kills, "a role ended before it was killed"
        wait_until(
            lambda: (state / "windows" / "numbers" / "_delta_log").is_dir(),
            "a window to be published by processes of their own",
            act=feeder.feed,
            state=lambda: center.last_words,
        )
    feeder.level()
    run_project(spark, folder)
    return folder, feeder.given


def all_of(given: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [r for mine in given.values() for r in mine]


def test_kills_of_sites_and_center_change_no_answer(survivor: Survivor) -> None:
    folder, records = survivor[0], all_of(survivor[1])
    check_answers(folder / "state", records)
    check_published_once(folder / "state")
    check_final(folder / "state")


def test_kills_change_no_answer_of_a_join(survivor: Survivor) -> None:
    folder, given = survivor
    taps = group(given["b"], 60, 60, "user")
    expected = {}
    for (start, page), hits in group(all_of(given), 60, 60, "page").items():
        pairs = [(h, t) for h in hits for t in taps.get((start, h["user"]), ())]
        if pairs:
            expected[start, page] = len(pairs), sum(h["bytes"] for h, _ in pairs), max(t["ms"] for _, t in pairs)
    rows = read_results(folder / "state", "pairs").to_pylist()
    assert {(r["start"], r["page"]): (r["n"], r["bytes"], r["high"]) for r in rows} == expected
    assert len(rows) == len(expected), "no row twice"


def test_processes_of_their_own_and_one_process_for_all_give_the_same_answers(
    spark: SparkSession, survivor: Survivor, tmp_path: Path
) -> None:
    together, (_, given) = make_project(tmp_path / "together"), survivor
    for site, mine in given.items():
        write_file(together, site, "all", mine)
    run_project(spark, together)
    check_answers(together / "state", all_of(given))
    keep = ["window_start", "page", "n", "bytes", "low", "high"]
    apart, whole = (
        sorted(read_results(f / "state", "numbers").select(keep).to_pylist(), key=str) for f in (survivor[0], together)
    )
    assert apart == whole
