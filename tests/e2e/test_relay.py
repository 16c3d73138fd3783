"""Sites behind a relay, on Spark and real sockets: the answers are those of a star, in one process and in many."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.deploy.sites import move_site
from catchment.errors import ConfigError
from tests.worlds.answers import check_answers, check_final, check_published_once
from tests.worlds.processes import Role, kill_in_turn, running, wait_until_done
from tests.worlds.projects import as_lines, make_records, write_project
from tests.worlds.runs import run_project
from tests.worlds.waiting import free_port, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    records = make_tree(tmp_path / "p", ("a", "b", "hub"), "connector = 'files', path = 'data/{site}'")
    status = run_project(spark, tmp_path / "p")
    check_answers(tmp_path / "p" / "state", records)
    hub = status["relays"]["hub"]
    assert hub["to"] == "center"
    assert hub["rows_out"] < hub["rows_in"] / 2, "three sites have the same keys"
    assert hub["bytes_sent"] < status["sites"]["a"]["bytes_sent"] + status["sites"]["b"]["bytes_sent"]


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.parametrize(
    ("kills", "speed"), [(1, 120), pytest.param(8, 5, marks=pytest.mark.soak)], ids=["few kills", "many kills"]
)
def test_kills_of_the_relay_change_no_answer(tmp_path: Path, kills: int, speed: int) -> None:
    """The relay is killed at work: once before its second site begins, so that it cannot have ended, and then as often
    as the logs last; then every role ends by itself."""
    folder, state = tmp_path / "p", tmp_path / "p" / "state"
    replay = f"connector = 'replay', path = 'data/{{site}}.jsonl', format = 'json', speed = {speed}"
    records = make_tree(folder, ("a", "b"), replay)
    hub = Role(folder, "site", "hub", state=state / "relays" / "hub")
    first, second = [Role(folder, "center"), Role(folder, "site", "a")], Role(folder, "site", "b")
    chance = random.Random(7)
    with running([hub, *first]):
        assert kill_in_turn([hub], 1, chance) == 1, "the relay ended before it was killed"
        with running([second]):
            kill_in_turn([hub], kills, chance)
            wait_until_done([hub, *first, second])
    check_answers(state, records)
    check_published_once(state)
    check_final(state)


@pytest.mark.e2e
@pytest.mark.spark
def test_sites_are_moved_to_another_relay_while_their_own_and_they_themselves_are_killed(tmp_path: Path) -> None:
    """The first site is moved away from a relay that is down, to one that stood by; then the second one, whose stream
    cannot have ended before. The site that was moved and the new relay are killed in the middle."""
    folder, state = tmp_path / "p", tmp_path / "p" / "state"
    replay = "connector = 'replay', path = 'data/{site}.jsonl', format = 'json', speed = 60"
    records = make_tree(folder, ("a", "b"), replay)
    with (folder / "catchment.toml").open("a") as project:
        project.write(f'[sites.other]\nlisten = "127.0.0.1:{free_port()}"\n')
        for origin, to in (("a", "other"), ("b", "other"), ("other", "center")):
            project.write(f'[[links]]\nfrom = "{origin}"\nto = "{to}"\nlatency = "20 ms"\n')
    hub = Role(folder, "site", "hub", state=state / "relays" / "hub")
    other = Role(folder, "site", "other", state=state / "relays" / "other")
    center, a, b = (
        Role(folder, "center"),
        Role(folder, "site", "a", state=state / "sites" / "a"),
        Role(folder, "site", "b"),
    )
    chance = random.Random(11)
    with running([hub, other, center, a]):
        wait_until(lambda: hub.has_worked, "the first relay to work", state=lambda: hub.last_words)
        hub.kill()
        move_site(folder, "a", "other")
        assert kill_in_turn([other], 1, chance) == 1, "the new relay ended before it was killed"
        kill_in_turn([a], 1, chance)
        hub.start()
        with running([b]):
            wait_until(
                lambda: _can_move(folder, "b", "other"), "the first move to be over", state=lambda: center.last_words
            )
            wait_until_done([center, a, b])
    check_answers(state, records)
    check_published_once(state)
    check_final(state)


def _can_move(folder: Path, site: str, to: str) -> bool:
    try:
        move_site(folder, site, to)
    except ConfigError:
        return False
    return True
