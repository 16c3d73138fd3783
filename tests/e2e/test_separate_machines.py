"""Machines that share nothing: a center, sites that join it, and an operator elsewhere; answers equal a recomputation.

Folders, keys and state of every machine are its own. In the first test they meet on ports of the loopback, and run in
threads of this process on one Spark session, which is what `make test` can afford. In the second, for `make
integration`, each is a process in a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from catchment.control.commands import local_caller, run_command
from tests.worlds.control_world import ControlWorld
from tests.worlds.machine_story import ADDED, ALONE, RETIRED, SLOWEST, MachineStory, instant, instant_us
from tests.worlds.machines import Machine, start_center, start_site
from tests.worlds.namespaces import MISSING, Namespaces, has_namespaces
from tests.worlds.processes import Role
from tests.worlds.projects import ANOTHER_VIEW
from tests.worlds.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = 4  # of stream time that sites are without the center


@pytest.mark.e2e
@pytest.mark.spark
def test_answers_of_machines_that_share_nothing_equal_a_recomputation(spark: SparkSession, tmp_path: Path) -> None:
    world = ControlWorld(tmp_path)
    story = MachineStory(world)
    alice = world.as_person("alice")
    running: dict[str, Machine] = {}
    try:
        running["center"] = start_center(spark, world)
        for site in "ab":
            running[site] = start_site(spark, story.add(site))
        story.wait_for("numbers", "page", story.put("first", 0, "ab"))

        alice.run("submit", {"text": ANOTHER_VIEW})
        alice.run("sites add", {"name": "c", "from_us": instant_us(ADDED)})
        world.keys.issue("c")
        running["c"] = start_site(spark, story.add("c"))
        story.wait_until_followed("users", "abc")
        end = story.put("second", ADDED, "abc")
        story.wait_for("numbers", "page", end)
        story.wait_for("users", "user", end, since=instant(ADDED))

        alice.run("sites retire", {"name": "b", "from_us": instant_us(RETIRED)})
        story.wait_until_retired("b", "a")
        story.lose("b", since=end)
        story.wait_for("numbers", "page", story.put("third", RETIRED, "ac"))
        assert story.missing_sites("numbers", end) == ["b"], "what is lost is named"

        running.pop("center").stop()
        end = story.put("alone", ALONE, "ac", HOURS * 3600)
        run_command(world.folder, "submit", {"text": SLOWEST}, local_caller())
        running["center"] = start_center(spark, world)
        story.wait_for("numbers", "page", end)
        story.wait_until_followed("slowest", "ac")

        changes = [change["command"] for change in alice.run("show audit", {})["changes"]]
        assert changes == ["submit", "sites add", "sites retire", "submit"]
        assert set(alice.run("show status", {})["sites"]) >= {"a", "b", "c"}, "their status has reached the center"
    finally:
        for machine in reversed(running.values()):
            machine.stop()


@pytest.mark.e2e
@pytest.mark.spark
def test_a_center_whose_disk_is_lost_is_rebuilt_from_the_histories_of_its_sites(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = ControlWorld(tmp_path)
    story = MachineStory(world)
    running: dict[str, Machine] = {}
    try:
        running["center"] = start_center(spark, world)
        for site in "ab":
            running[site] = start_site(spark, story.add(site))
        story.wait_for("numbers", "page", story.put("first", 0, "ab"))

        running.pop("center").stop()
        shutil.rmtree(world.folder / "state")
        run_command(world.folder, "sites heal", {"name": "center"}, local_caller())
        running["center"] = start_center(spark, world)
        for site in "ab":
            assert "ordered to be healed" in str(running.pop(site).wait_until_failed()), "a supervisor starts it again"
            running[site] = start_site(spark, story.homes[site])
        story.wait_for("numbers", "page", story.put("second", ADDED, "ab"))
    finally:
        for machine in reversed(running.values()):
            machine.stop()


@pytest.mark.e2e
@pytest.mark.integration
@pytest.mark.skipif(not has_namespaces(), reason=MISSING)
def test_processes_in_network_namespaces_follow_an_operator_on_another_one(tmp_path: Path) -> None:
    with ExitStack() as closing:
        network = closing.enter_context(Namespaces(("center", "a", "b", "c", "laptop")))
        world = ControlWorld(tmp_path, host=network.address("center"))
        story = MachineStory(world)
        ask = Laptop(world, network, tmp_path)

        def start(machine: str, folder: Path, *command: str) -> Role:
            role = Role(folder, *command, before=network.command(machine))
            closing.callback(role.end)
            role.start()
            return role

        center = start("center", world.folder, "center")
        for site in "ab":
            start(site, story.add(site), "site")
        story.wait_for("numbers", "page", story.put("first", 0, "ab"))

        ask("submit", _write(tmp_path / "users.sql", ANOTHER_VIEW))
        ask("sites", "add", "c", "--from", str(instant(ADDED)))
        world.keys.issue("c")
        start("c", story.add("c"), "site")
        story.wait_until_followed("users", "abc")
        end = story.put("second", ADDED, "abc")
        story.wait_for("numbers", "page", end)
        story.wait_for("users", "user", end, since=instant(ADDED))
        seen = ask("sql", "SELECT sum(n) AS n FROM numbers WHERE window_start < '2024-03-01 00:10:00+00'")["rows"]
        assert seen[0]["n"] == sum(story.published("numbers", "page", instant(0), instant(ADDED)).values())

        ask("sites", "retire", "b", "--from", str(instant(RETIRED)))
        story.wait_until_retired("b", "a")
        story.lose("b", since=end)
        center.kill()
        end = story.put("alone", ALONE, "ac", HOURS * 3600)
        center.start()
        story.wait_for("numbers", "page", end)
        wait_until(lambda: set(ask("show", "status")["sites"]) >= {"a", "b", "c"}, "their status to reach the center")


class Laptop:
    """Runs commands of an operator in a namespace of its own, with nothing but keys and a profile."""

    def __init__(self, world: ControlWorld, network: Namespaces, folder: Path) -> None:
        config = folder / "laptop" / "catchment"
        config.mkdir(parents=True)
        (world.folder / "keys" / "alice").rename(config / "keys")
        (config / "profiles.toml").write_text(f'[prod]\ncenter = "{world.address}"\n')
        self._before = network.command("laptop")
        self._folder = config

    def __call__(self, *words: str) -> Any:
        done = subprocess.run(
            [*self._before, sys.executable, "-m", "catchment.cli", *words, "--center", "prod", "--json"],
            env={**os.environ, "XDG_CONFIG_HOME": str(self._folder.parent)},
            cwd=self._folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
