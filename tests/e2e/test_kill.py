"""kill -9 of real processes at random moments: the answers stay those of the oracle, and nothing counts twice.

Every role is a process of its own, as on many machines. Sites replay their log so slowly that it does not end while
roles are killed, each of them at work; then all are killed at once, and one process reads the rest of the log.
"""

from __future__ import annotations

import random
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
# An hour of records at 15 times its pace: a window every four seconds, for four minutes of work between kills.
SPREAD_S = 3_600
SPEED = 15

Survivor = tuple[Path, list[dict[str, Any]]]


def make_project(folder: Path) -> Survivor:
    records = {site: make_records(1_200, seed, SPREAD_S) for seed, site in enumerate(SITES)}
    write_project(
        folder,
        SITES,
        {site: as_lines(mine) for site, mine in records.items()},
        connector=f"connector = 'replay', path = 'data/{{site}}.jsonl', format = 'json', speed = {SPEED}",
        listen=f'listen = "127.0.0.1:{free_port()}"',
        queries=QUERIES + PAIRS,
        toml='[security]\nkeys = "keys"\n',  # every link is secured, as between machines
    )
    keys = KeyFolder(folder / "keys")
    keys.create("test")
    for site in (*SITES, "center"):
        keys.issue(site)
    return folder, [{**r, "site": site} for site, mine in records.items() for r in mine]


@pytest.fixture(
    scope="module", params=[3, pytest.param(12, marks=pytest.mark.soak)], ids=lambda kills: f"{kills} kills"
)
def survivor(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Survivor:
    """A project whose every role ran as a process of its own and was killed at work; and its records."""
    folder, records = make_project(tmp_path_factory.mktemp("kill") / "p")
    state, kills = folder / "state", int(request.param)
    center = Role(folder, "center", state=state / "center")
    sites = [Role(folder, "site", site, state=state / "sites" / site) for site in SITES]
    with running([center, *sites]):
        assert kill_in_turn([*sites, center], kills, random.Random(4)) == kills, "a role ended before it was killed"
        wait_until(
            lambda: (state / "windows" / "numbers" / "_delta_log").is_dir(),
            "a window to be published by processes of their own",
            state=lambda: center.last_words,
        )
    run_project(spark, folder)
    return folder, records


def test_kills_of_sites_and_center_change_no_answer(survivor: Survivor) -> None:
    folder, records = survivor
    check_answers(folder / "state", records)
    check_published_once(folder / "state")
    check_final(folder / "state")


def test_kills_change_no_answer_of_a_join(survivor: Survivor) -> None:
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
    spark: SparkSession, survivor: Survivor, tmp_path: Path
) -> None:
    together, records = make_project(tmp_path / "together")
    run_project(spark, together)
    check_answers(together / "state", records)
    keep = ["window_start", "page", "n", "bytes", "low", "high"]
    apart, whole = (
        sorted(read_results(f / "state", "numbers").select(keep).to_pylist(), key=str) for f in (survivor[0], together)
    )
    assert apart == whole
