"""Sites that come and go as an operator orders it, or as `catchment.toml` declares it, without Spark.

What follows at the center is shown in `tests/center/test_roster.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.center.events import SiteJoined, SiteReplaced, SiteRetired
from catchment.deploy.deployment import Deployment
from catchment.deploy.leaving_sites import read_leaving
from catchment.deploy.sites import LeavingSites, add_site, list_sites, replace_site, retire_site, retire_site_after
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import ConfigError, QueryError
from catchment.progress.admission import Admission
from catchment.progress.frontier import Frontier
from catchment.project.config import PROJECT_FILE, Project
from tests.worlds.operated_project import OperatedProject
from tests.worlds.projects import write_project

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE) WITH (event_time = 'ts', {connector});
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW slow AS
  SELECT window.start, max(ms) AS ms FROM hits GROUP BY window(ts, '10 seconds');
"""


class Operated(OperatedProject):
    """The project of these tests, whose sites say how far they have come."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ["a", "b"], QUERIES)

    def state_progress(self, site: str, mark_us: int) -> None:
        """Let a site say how far it has come with all it does."""
        frontier = self.core.frontiers.setdefault(site, Frontier())
        for fragment in self.deployment.deployed.sharing.fragments:
            frontier.marks[fragment] = mark_us


def test_a_site_is_added_retired_and_replaced_while_everything_runs(tmp_path: Path) -> None:
    world = Operated(tmp_path)
    fragments = set(world.deployment.deployed.sharing.fragments)
    add_site(tmp_path, "c")
    assert 'from = "c"' in (tmp_path / PROJECT_FILE).read_text()
    assert world.follow() == [SiteJoined(("pages", "slow"), "c")]
    assert world.deployment.fragments_at("c"), "the new site runs the fragments of every view"
    retire_site(tmp_path, "a", until_us=60_000_000)
    assert world.follow() == [SiteRetired(("pages", "slow"), "a", 60_000_000)]
    assert not world.deployment.fragments_at("a")
    replace_site(tmp_path, "b")
    assert world.follow() == [SiteReplaced("b", 1)]
    assert world.follow() == [], "an order is followed once"
    assert set(world.sites().values()) == {("b", "c")}
    assert set(world.deployment.deployed.sharing.fragments) == fragments, "nothing that runs gets another name"
    add_site(tmp_path, "a")
    assert world.follow() == [SiteJoined(("pages", "slow"), "a")]
    states = {site["site"]: site["state"] for site in list_sites(tmp_path)["sites"]}
    assert states == {"a": "counts", "b": "counts", "c": "counts", "center": "center"}


def test_a_site_is_retired_by_the_center_when_it_has_completed_every_window_before_an_instant(tmp_path: Path) -> None:
    world = Operated(tmp_path)
    leaving = LeavingSites(world.watcher)
    retire_site_after(tmp_path, "a", 60_000_000)
    assert {site["site"]: site["state"] for site in list_sites(tmp_path)["sites"]}["a"] == "leaving"
    leaving.step(world.core)
    assert world.follow() == [], "it has not come that far"
    world.state_progress("a", 59_000_000)
    leaving.step(world.core)
    assert world.follow() == []
    world.state_progress("a", 61_000_000)
    leaving.step(world.core)
    assert world.follow() == [SiteRetired(("pages", "slow"), "a", 60_000_000)]
    assert set(world.sites().values()) == {("b",)}
    leaving.step(world.core)
    assert read_leaving(tmp_path / "state") == {}
    add_site(tmp_path, "a")
    assert world.follow() == [SiteJoined(("pages", "slow"), "a")]
    retire_site_after(tmp_path, "a", 90_000_000)
    add_site(tmp_path, "a")
    assert read_leaving(tmp_path / "state") == {}, "the order was taken back"


def test_an_order_to_retire_later_that_cannot_be_carried_out_is_refused_at_once(tmp_path: Path) -> None:
    Operated(tmp_path)
    with pytest.raises(ConfigError, match="no stream that a view reads is born at 'nowhere'"):
        retire_site_after(tmp_path, "nowhere", 1)
    retire_site(tmp_path, "a")
    with pytest.raises(QueryError, match="every site of stream 'hits' is retired"):
        retire_site_after(tmp_path, "b", 1)
    assert read_leaving(tmp_path / "state") == {}


def test_the_same_is_done_by_changing_the_project_and_starting_again(tmp_path: Path) -> None:
    world = Operated(tmp_path)
    path = tmp_path / PROJECT_FILE
    declared = path.read_text()
    path.write_text(f'{declared}\n[sites.c]\n[[links]]\nfrom = "c"\nto = "center"\n')
    (tmp_path / "data" / "c").mkdir(parents=True, exist_ok=True)
    world.restart()
    assert world.follow() == [SiteJoined(("pages", "slow"), "c")]
    path.write_text(declared)
    world.restart()
    assert world.follow() == [SiteRetired(("pages", "slow"), "c")]
    assert set(world.sites().values()) == {("a", "b")}


def test_a_retired_site_is_refused_by_name(tmp_path: Path) -> None:
    world = Operated(tmp_path)
    retire_site(tmp_path, "b")
    world.follow()
    deployment = world.deployment
    assert deployment.births == {"hits": ("a",)}
    assert "b" not in Admission(deployment.deployed.known, deployment.routings, deployment.births).births["hits"]


def test_what_cannot_be_ordered_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    world = Operated(tmp_path)
    before = (tmp_path / PROJECT_FILE).read_bytes()
    with pytest.raises(ConfigError, match="no stream that a view reads is born at 'nowhere'"):
        retire_site(tmp_path, "nowhere")
    with pytest.raises(ConfigError, match="cannot be the name of a site"):
        add_site(tmp_path, "not a name")
    retire_site(tmp_path, "a")
    with pytest.raises(QueryError, match="every site of stream 'hits' is retired"):
        retire_site(tmp_path, "b")
    assert (tmp_path / PROJECT_FILE).read_bytes() == before
    world.follow()
    assert set(world.sites().values()) == {("b",)}


def test_a_site_behind_another_is_refused_because_its_records_cannot_be_told_apart(tmp_path: Path) -> None:
    write_project(tmp_path, ["a", "b"], {"a": [], "b": []}, queries=QUERIES)
    path = tmp_path / PROJECT_FILE
    path.write_text(path.read_text().replace('from = "b"\nto = "center"', 'from = "b"\nto = "a"'))
    assert Project.load(tmp_path).links.keys() == {("a", "center"), ("b", "a")}
    with pytest.raises(ConfigError, match="sends through other sites"):
        replace_site(tmp_path, "b")
    DeploymentWatcher(Deployment.load(tmp_path)).begin()
    path.write_text(f'{path.read_text()}\n[sites.c]\n[[links]]\nfrom = "c"\nto = "a"\n')
    with pytest.raises(ConfigError, match="'c' sends through others"):
        Deployment.load(tmp_path)
