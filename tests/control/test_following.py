"""A site on a machine of its own follows its center: what it is told, what it refuses, and what it does alone.

Real gRPC with TLS over loopback, real folders; no Spark: what a site runs of a deployment is compared, not run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catchment.control.bundle import Bundle
from catchment.control.center_link import UnreachableError
from catchment.control.follower import MAX_PAUSE_S, PAUSE_S, Follower
from catchment.control.protocol import write_request
from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.requests import (
    request_repairs,
    request_resumption,
    requested_repairs,
    requested_resumptions,
)
from catchment.deploy.reports.role_files import write_status
from catchment.deploy.reports.role_status import read_project_status
from catchment.deploy.store import DeploymentStore
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import CatchmentError, ConfigError, WireError
from catchment.project.config import Project
from catchment.project.joined_site import JoinedSite
from catchment.query.sql.connectors import FilesConnector
from catchment.timeline import SystemClock
from tests.worlds.control_world import QUERIES, TABLE, ControlWorld, ScriptedCenter
from tests.worlds.projects import ANOTHER_VIEW
from tests.worlds.waiting import wait_until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ControlWorld]:
    world = ControlWorld(tmp_path)
    world.start()
    yield world
    world.stop()


def check_same_work(home: Path, world: ControlWorld, site: str) -> Deployment:
    """What a site would run by itself is what the center has planned for it."""
    mine, planned = Deployment.load(home), Deployment.load(world.folder)
    assert mine.deployed == planned.deployed
    assert mine.fragments_at(site) == planned.fragments_at(site) != ()
    assert mine.routes == planned.routes
    return mine


# --- what it is told ---------------------------------------------------------------------------------------------


def test_a_site_that_shares_no_folder_learns_what_it_is_to_run(world: ControlWorld) -> None:
    home = world.make_site("a")
    with pytest.raises(ConfigError, match="has not heard from its center"):
        Project.load(home)
    world.follower(home).step()
    mine = check_same_work(home, world, "a")
    assert mine.project.state_folder == home / "state"
    assert not (home / "catchment.toml").exists()
    assert not (home / "queries").exists()


def test_what_was_submitted_while_the_site_was_alone_reaches_it_afterwards(world: ControlWorld) -> None:
    home = world.make_site("a")
    follower = world.follower(home)
    follower.step()
    world.stop()
    with pytest.raises(UnreachableError):
        follower.step()
    alone = DeploymentWatcher(Deployment.load(home))
    alone.begin()
    assert alone.poll() is None
    assert Deployment.load(home).fragments_at("a"), "it starts and runs without the center"

    world.start()
    world.as_person("alice").run("submit", {"text": ANOTHER_VIEW})
    world.tick()
    follower.step()
    found = alone.poll()
    assert found is not None
    assert alone.sites_may_follow(), "the center has reached it: it tells nothing else"
    assert "users" in found.deployed.views
    check_same_work(home, world, "a")


def test_a_site_learns_that_it_is_to_answer_a_view_itself(world: ControlWorld) -> None:
    home = world.make_site("a")
    follower = world.follower(home)
    follower.step()
    running = DeploymentWatcher(Deployment.load(home))
    running.begin()
    text = ANOTHER_VIEW.replace(" AS", " WITH (sites = 'a', sink = 'a') AS", 1)
    world.as_person("alice").run("submit", {"text": text})
    world.tick()
    follower.step()
    found = running.poll()
    assert found is not None
    assert [plan.name for plan in found.sinks["a"].plans] == ["users"]
    mine = check_same_work(home, world, "a")
    assert mine.sinks["a"].project.state_folder == home / "state" / "sinks" / "a"
    assert [plan.exit_name for plan in mine.fragments_at("a")].count("a") == 1
    again = DeploymentWatcher(mine)
    again.begin()
    assert again.poll() is None, "a site changes nothing of what it was told"


def test_a_site_is_told_nothing_that_the_center_has_not_reached(world: ControlWorld) -> None:
    home = world.make_site("a")
    world.as_person("alice").run("submit", {"text": ANOTHER_VIEW})
    world.follower(home).step()
    assert "users" not in Deployment.load(home).deployed.views


def test_views_that_the_center_declares_at_its_next_start_reach_running_sites(world: ControlWorld) -> None:
    home = world.make_site("a")
    follower = world.follower(home)
    follower.step()
    running = DeploymentWatcher(Deployment.load(home))
    running.begin()
    world.stop()
    (world.folder / "queries" / "more.sql").write_text(ANOTHER_VIEW)
    world.start()
    follower.step()
    found = running.poll()
    assert found is not None
    assert "users" in found.deployed.views
    check_same_work(home, world, "a")


def test_a_site_that_is_added_while_views_run_finds_its_work(world: ControlWorld) -> None:
    first = world.follower(world.make_site("a"))
    first.step()
    world.as_person("alice").run("sites add", {"name": "c"})
    world.keys.issue("c")
    world.tick()
    home = world.make_site("c")
    world.follower(home).step()
    check_same_work(home, world, "c")
    first.step()
    check_same_work(first.joined.folder, world, "a")
    world.as_person("alice").run("sites retire", {"name": "c"})
    world.tick()
    world.follower(home).step()
    assert Deployment.load(home).fragments_at("c") == ()


def test_a_site_reads_its_own_sources(world: ControlWorld) -> None:
    world.stop()
    (world.folder / "queries" / "pages.sql").write_text(TABLE)
    world.start()
    home = world.make_site("a", '[sources.hits]\npath = "/var/log/hits"\n[sources.pages]\npath = "tables/pages.csv"\n')
    world.follower(home).step()
    catalog = check_same_work(home, world, "a").catalog
    assert isinstance(catalog.streams["hits"].connector, FilesConnector)
    assert catalog.streams["hits"].connector.path == "/var/log/hits"
    assert isinstance(catalog.tables["pages"].connector, FilesConnector)
    assert catalog.tables["pages"].connector.path == "tables/pages.csv"


FUNCTIONS = """import catchment
import pyarrow.compute as pc

@catchment.function(takes=["DOUBLE"], returns="DOUBLE")
def doubled(values):
    return pc.multiply(values, 2.0)
"""


def test_functions_are_installed_with_the_site_and_never_sent(world: ControlWorld) -> None:
    world.stop()
    (world.folder / "functions.py").write_text(FUNCTIONS)
    (world.folder / "queries" / "twice.sql").write_text(
        "CREATE MATERIALIZED VIEW twice AS SELECT window.start, sum(doubled(ms)) AS n FROM hits "
        "GROUP BY window(ts, '1 minute');"
    )
    world.start()
    home = world.make_site("a")
    follower = world.follower(home)
    follower.step()
    assert "lacks functions of its center" in str(follower.refused)
    (home / "functions.py").write_text(FUNCTIONS.replace("2.0", "3.0"))
    follower.step()
    assert "other code of them: doubled__" in str(follower.refused)
    assert follower.read_installed() is None
    (home / "functions.py").write_text(FUNCTIONS)
    follower.step()
    check_same_work(home, world, "a")


def test_a_source_that_changes_more_than_its_address_is_refused(world: ControlWorld) -> None:
    home = world.make_site("a", '[sources.hits]\nformat = "csv"\n')
    follower = world.follower(home)
    follower.step()
    assert "has no option 'format'" in str(follower.refused)
    assert follower.read_installed() is None


def test_where_answers_are_delivered_is_not_told_to_sites(tmp_path: Path) -> None:
    url = "postgresql://user@secret:5432/db"
    sink = f"CREATE SINK out FROM numbers WITH (connector = 'postgres', url = '{url}', table = 't');"

    world = ControlWorld(tmp_path, queries=QUERIES + sink)
    told = repr(Bundle.of(Deployment.load(world.folder)).to_message())
    assert "secret" not in told
    assert "numbers" in told


# --- what it refuses ---------------------------------------------------------------------------------------------


def test_an_older_or_another_deployment_is_refused_and_what_runs_goes_on(
    world: ControlWorld, caplog: pytest.LogCaptureFixture
) -> None:
    home = world.make_site("a")
    first = Bundle.of(Deployment.load(world.folder))
    world.as_person("alice").run("submit", {"text": ANOTHER_VIEW})
    world.tick()
    world.follower(home).step()
    held = DeploymentStore(home / "state").read()
    assert held is not None
    assert held.version > first.version

    older = Follower(JoinedSite.load(home), ScriptedCenter(first.to_message()))
    with caplog.at_level(logging.ERROR):
        older.step()
        older.step()
    assert "catchment sites heal" in str(older.refused)
    assert len(caplog.records) == 1, "it is said once"

    other = Deployment.load(world.folder)
    forged = replace(other, deployed=replace(held, dropped=("something",)))
    another = Follower(JoinedSite.load(home), ScriptedCenter(Bundle.of(forged).to_message()))
    another.step()
    assert "another version" in str(another.refused)
    assert DeploymentStore(home / "state").read() == held


def test_a_bundle_that_was_damaged_on_the_way_is_refused_whole(world: ControlWorld) -> None:
    home = world.make_site("a")
    message = Bundle.of(Deployment.load(world.folder)).to_message()
    changed: dict[str, Any] = {
        "document": message["document"][:-1] + b"\0",
        "declared": {**message["declared"], "statements": []},
        "digest": "0" * 64,
        "version": message["version"] + 1,
    }
    for damage, value in changed.items():
        follower = Follower(JoinedSite.load(home), ScriptedCenter({**message, damage: value}))
        with pytest.raises(WireError, match="checksum"):
            follower.step()
        assert follower.read_installed() is None


def test_nothing_is_changed_at_the_folder_of_a_site(world: ControlWorld) -> None:
    from catchment.control.commands import local_caller, run_command

    home = world.make_site("a")
    world.follower(home).step()
    with pytest.raises(ConfigError, match="where nothing is changed") as caught:
        run_command(home, "drop", {"query": "numbers"}, local_caller())
    assert f"--center {world.address}" in str(caught.value.hint)
    store = DeploymentStore(home / "state")
    with pytest.raises(ConfigError, match="where nothing is changed"):
        store.change(lambda now: replace(now, version=now.version + 1) if now else None)  # type: ignore[arg-type, return-value]


# --- what both tell each other -----------------------------------------------------------------------------------


def test_the_status_of_a_site_reaches_the_center_with_the_time_of_the_centers_clock(world: ControlWorld) -> None:
    home = world.make_site("a")
    follower = world.follower(home)
    follower.step()
    (home / "state" / "sites" / "a").mkdir(parents=True)
    write_status(home / "state" / "sites" / "a", {"rows": 7, "newest_event_us": 5})
    before_us = SystemClock().now_us()
    for _ in range(2):
        follower.step()
    seen = read_project_status(Project.load(world.folder)).sites["a"]
    assert seen.told["rows"] == 7
    assert seen.reported_at_us is not None
    assert seen.reported_at_us >= before_us


def test_the_last_words_of_a_site_reach_the_center(world: ControlWorld) -> None:
    home = world.make_site("a")
    with world.follower(home) as follower:
        wait_until(lambda: follower.read_installed() is not None, "the site to hear from its center")
        (home / "state" / "sites" / "a").mkdir(parents=True)
        write_status(home / "state" / "sites" / "a", {"rows": 7}, stopped=True)
    seen = read_project_status(Project.load(world.folder)).sites["a"]
    assert seen.state(SystemClock().now_us()) == "stopped"


def test_replaced_keys_are_used_with_the_next_call(world: ControlWorld) -> None:
    link = world.as_person("alice")
    assert link.run("show queries", {})["queries"]
    world.keys.rotate("alice", grace_days=0)
    assert link.run("show queries", {})["queries"]


def test_a_request_reaches_the_site_once_and_leaves_the_center_when_the_site_has_it(world: ControlWorld) -> None:
    home = world.make_site("a")
    follower = world.follower(home)
    follower.step()
    there, here = world.folder / "state" / "sites" / "a", home / "state" / "sites" / "a"
    there.mkdir(parents=True, exist_ok=True)
    request_repairs(there, ["numbers"])
    request_resumption(there, ["f1"])
    follower.step()
    assert requested_repairs(here) == {"numbers"}
    assert requested_resumptions(here) == {"f1"}
    request_repairs(there, ["later"])
    follower.step()
    assert requested_resumptions(there) == frozenset(), "the site has it"
    assert requested_repairs(there) == {"numbers", "later"}, "what came in between is not lost"
    follower.step()
    assert requested_repairs(there) == frozenset()
    assert requested_repairs(here) == {"numbers", "later"}


def test_a_status_that_unpacks_to_too_much_is_refused(world: ControlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    import zlib

    from catchment.control import reports

    monkeypatch.setattr(reports, "MAX_STATUS_BYTES", 1000)
    packed = zlib.compress(b'{"x": "' + b"y" * 2000 + b'"}')
    with pytest.raises(WireError, match="status of a site cannot be read"):
        world.as_site("a").follow({"holds": None, "report": {"site": packed}})


def test_pauses_grow_while_the_center_is_away_and_are_bounded(world: ControlWorld) -> None:
    follower = world.follower(world.make_site("a"))
    assert 0.75 * PAUSE_S <= follower.pause_s() <= 1.25 * PAUSE_S
    for _ in range(50):
        follower._failures += 1
    pauses = {follower.pause_s() for _ in range(20)}
    assert len(pauses) > 1, "sites do not come back all at once"
    assert all(0.75 * MAX_PAUSE_S <= pause <= 1.25 * MAX_PAUSE_S for pause in pauses)


def test_what_is_no_request_is_refused(world: ControlWorld) -> None:
    assert world.service is not None
    from catchment.control.protocol import COMMAND, read_answer
    from catchment.keys.tokens import OPERATOR, Caller

    alice = Caller("alice", OPERATOR)
    for data in (b"", b"\xc1", b"\x93\x01\x02\x03", write_request(command="nothing"), write_request(arguments=[1])):
        with pytest.raises(CatchmentError):
            read_answer(world.service.answer(COMMAND, data, alice), "here")
