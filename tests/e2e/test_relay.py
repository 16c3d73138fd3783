"""Sites behind a relay, on Spark and real sockets: the answers are those of a star, in one process and in many."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.center.results.tables import read_results, read_windows
from tests.e2e.test_kill import Role, free_port
from tests.spark.test_pipelines import check_answers
from tests.worlds.projects import as_lines, make_records, write_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 4
DEADLINE_S = 300


def make_tree(folder: Path, sites: Sequence[str], connector: str) -> list[dict[str, Any]]:
    """Sites a and b send over hub, which may have records of its own."""
    records = {site: make_records(300, seed) for seed, site in enumerate(sites)}
    write_project(folder, sites, {s: as_lines(r) for s, r in records.items()}, connector=connector)
    text = (folder / "catchment.toml").read_text()
    for site in ("a", "b"):
        text = text.replace(f'from = "{site}"\nto = "center"', f'from = "{site}"\nto = "hub"')
    if "hub" not in sites:
        text += '[sites.hub]\n[[links]]\nfrom = "hub"\nto = "center"\n'
    for site in ("hub", "center"):
        text = text.replace(f"[sites.{site}]\n", f'[sites.{site}]\nlisten = "127.0.0.1:{free_port()}"\n')
    (folder / "catchment.toml").write_text(text)
    return [r for mine in records.values() for r in mine]


@pytest.mark.spark
def test_a_tree_in_one_process_gives_the_answers_of_a_star_and_merges_at_the_hub(
    spark: SparkSession, tmp_path: Path
) -> None:
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    records = make_tree(tmp_path / "p", ("a", "b", "hub"), "connector = 'files', path = 'data/{site}'")
    deployment = Deployment.load(tmp_path / "p")
    runner = Runner(deployment, spark, deployment.sites, True, once=True)
    try:
        runner.start()
        runner.run(seconds=120)
        assert runner.finished
        status = runner.status()
    finally:
        runner.close()
    check_answers(tmp_path / "p" / "state", records)
    hub = status["relays"]["hub"]
    assert hub["to"] == "center"
    assert hub["rows_out"] < hub["rows_in"] / 2, "three sites have the same keys"
    assert hub["bytes_sent"] < status["sites"]["a"]["bytes_sent"] + status["sites"]["b"]["bytes_sent"]


@pytest.mark.e2e
@pytest.mark.spark
def test_kills_of_the_relay_change_no_answer(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    replay = "connector = 'replay', path = 'data/{site}.jsonl', format = 'json', speed = 30"
    records = make_tree(folder, ("a", "b"), replay)
    roles = {name: Role(folder, *command) for name, command in (
        ("center", ("center",)), ("hub", ("site", "hub")), ("a", ("site", "a")), ("b", ("site", "b")),
    )}  # fmt: skip
    chance, kills, deadline = random.Random(7), 0, time.monotonic() + DEADLINE_S
    try:
        for role in roles.values():
            role.start()
        landed = folder / "state" / "relays" / "hub" / "journal"
        next_kill = None
        while not all(role.done for role in roles.values()):
            assert time.monotonic() < deadline, [(r.command, r.log.read_text()[-1500:]) for r in roles.values()]
            if next_kill is None and any(f.stat().st_size > 2_000 for f in landed.glob("journal-*.log")):
                next_kill = time.monotonic()
            if next_kill and kills < KILLS and time.monotonic() >= next_kill and not roles["hub"].done:
                roles["hub"].kill()
                roles["hub"].start()
                kills += 1
                next_kill = time.monotonic() + chance.uniform(3.0, 12.0)
            time.sleep(0.1)
    finally:
        for role in roles.values():
            role.end()
    assert kills, "the run was over before the first kill: make it longer"
    check_answers(folder / "state", records)
    everything = read_results(folder / "state", "numbers", revisions="all").to_pylist()
    published = [(r["window_start"], r["page"], r["revision"]) for r in everything]
    assert len(published) == len(set(published)), "no revision of a row was written twice"
    assert set(read_windows(folder / "state", "numbers")["status"].to_pylist()[-1:]) == {"final"}
