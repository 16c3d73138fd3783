"""How running processes come to what is deployed: the center first, then the sites; and how the center decides to move.

Without Spark: the record, the watcher and the rebalancer of a runner on a project folder. What they lead to at sites
and center is shown in `test_moves.py` on the cores and in `tests/spark/test_submit.py` on Spark.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from catchment.center.core import CenterCore
from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import CHECK_EVERY_US, FIRST_CHECK_US, Rebalancer
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import drop, submit
from catchment.deploy.watcher import DeploymentWatcher
from catchment.project.config import Project
from tests.worlds.projects import write_project

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW users AS
  SELECT window.start, CAST(user AS STRING) AS u, sum(bytes) AS bytes
  FROM hits GROUP BY window(ts, '1 minute'), CAST(user AS STRING);
"""
NEW = "CREATE MATERIALIZED VIEW total AS SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '1 minute');"
SPARSE = "[streams.hits]\nrows_per_s = 2\nrow_bytes = 60\n[streams.hits.distinct]\npage = 1_000_000\nuser = 1_000_000\n"


def laid_out(folder: Path) -> tuple[Project, Deployment]:
    write_project(folder, ["a", "b"], {"a": [], "b": []}, queries=QUERIES)
    (folder / "statistics.toml").write_text(SPARSE)
    (folder / "new.sql").write_text(NEW)
    return Project.load(folder), Deployment.load(folder)


def test_sites_follow_only_when_the_center_has(tmp_path: Path) -> None:
    project, deployment = laid_out(tmp_path / "p")
    center, site = DeploymentWatcher(deployment), DeploymentWatcher(deployment)
    center.begin()
    site.begin()
    center.acknowledge()
    assert not site.sites_may_follow(), "there is nothing new"
    submit(project, project.folder / "new.sql")
    found = site.poll()
    assert found is not None
    assert [p.name for p in found.plans] == ["pages", "users", "total"]
    assert not site.sites_may_follow(), "the center does not know the new fragment yet"
    assert center.poll() is not None
    center.acknowledge()
    assert site.sites_may_follow()
    assert not site.sites_may_follow(), "once is enough"


def test_a_watcher_hears_of_each_change_once_and_of_none_that_is_older(tmp_path: Path) -> None:
    project, deployment = laid_out(tmp_path / "p")
    watcher = DeploymentWatcher(deployment)
    watcher.begin()
    assert watcher.poll() is None
    drop(project, "users")
    found = watcher.poll()
    assert found is not None
    assert [q.name for q in found.center_queries] == ["pages"]
    assert watcher.poll() is None
    DeploymentStore(project.state_folder).keep(deployment.deployed)
    assert watcher.poll() is None


def measure(project: Project, rows_per_s: float, values: float, newest_us: int = 0) -> None:
    """What both sites say of themselves."""
    deployed = DeploymentStore(project.state_folder).read()
    assert deployed is not None
    read = {
        name: {"rows": 1, "bytes": 0, "selectivity": 1.0, "distinct": {k.sql: values for k in demand.keys}}
        for name, demand in deployed.sharing.fragments.items()
    }
    for site in ("a", "b"):
        folder = project.state_folder / "sites" / site
        folder.mkdir(parents=True, exist_ok=True)
        said = {"newest_event_us": newest_us, "statistics": {"rows_per_s": {"hits": rows_per_s}, "fragments": read}}
        (folder / "status.json").write_text(json.dumps(said))


def test_two_changes_within_one_tick_of_the_file_system_are_both_heard_of(tmp_path: Path) -> None:
    project, deployment = laid_out(tmp_path / "p")
    watcher = DeploymentWatcher(deployment)
    watcher.begin()
    store = DeploymentStore(project.state_folder)
    found = []
    for version in range(3):
        if version:
            store.change(lambda now: replace(now, version=now.version + 1) if now else deployment.deployed)
        os.utime(project.state_folder / "deployment.json", ns=(10**18, 10**18))  # clocks of file systems are coarse
        found.append(watcher.poll())
    assert [None if d is None else d.deployed.version for d in found] == [None, 2, 3]


def test_the_center_moves_queries_apart_when_what_sites_measure_makes_it_pay(tmp_path: Path) -> None:
    project, deployment = laid_out(tmp_path / "p")
    (shared,) = deployment.deployed.sharing.fragments
    watcher, core = DeploymentWatcher(deployment), CenterCore()
    watcher.begin()
    rebalancer = Rebalancer(watcher)
    (project.folder / "statistics.toml").write_text(SPARSE.replace("user = 1_000_000", "user = 300"))
    measure(project, 50_000, 300)
    at = 0
    rebalancer.step(core, at)
    assert watcher.store.version == 1, "it does not look before the rates have settled"
    at = FIRST_CHECK_US
    while watcher.store.version == 1:
        measure(project, 50_000, 300, at)
        rebalancer.step(core, at)
        at += CHECK_EVERY_US
        assert at < 100 * FIRST_CHECK_US
    moved = watcher.store.read()
    assert moved is not None
    assert set(moved.leaving) == {shared}
    assert len({d.fragment for d in moved.sharing.derivations.values()} - {shared}) == 2


def test_a_project_may_say_that_nothing_is_moved(tmp_path: Path) -> None:
    project, _ = laid_out(tmp_path / "p")
    toml = project.folder / "catchment.toml"
    toml.write_text(toml.read_text().replace("[defaults]", "[defaults]\nreoptimize = false"))
    deployment = Deployment.load(project.folder)
    watcher = DeploymentWatcher(deployment)
    watcher.begin()
    rebalancer = Rebalancer(watcher)
    measure(project, 50_000, 300)
    for at in range(0, 100 * FIRST_CHECK_US, CHECK_EVERY_US):
        measure(project, 50_000, 300, at)
        rebalancer.step(CenterCore(), at)
    assert watcher.store.version == 1


PROMISED = "CREATE MATERIALIZED VIEW promised WITH (max_error = 0.1) AS SELECT window.start, count(*) AS n FROM hits "
PROMISED += "GROUP BY window(ts, '1 minute');"


def test_a_deployment_that_breaks_a_contract_is_refused_by_its_version_and_what_runs_goes_on(tmp_path: Path) -> None:
    project, deployment = laid_out(tmp_path / "p")
    watcher = DeploymentWatcher(deployment)
    watcher.begin()
    watcher.acknowledge()
    (project.folder / "promised.sql").write_text(PROMISED)
    submit(project, project.folder / "promised.sql")
    (project.folder / "statistics.toml").write_text(SPARSE.replace("rows_per_s = 2", "rows_per_s = 2e9"))
    assert watcher.poll() is None
    assert (watcher.version, watcher.store.version, watcher.store.center_version) == (1, 2, 1)
    assert watcher.refused is not None
    assert "version 2 of what is deployed is not followed" in watcher.refused
    assert "'promised' cannot meet its contract" in watcher.refused
    assert watcher.poll() is None
    assert not watcher.sites_may_follow(), "sites follow the center, which has not reached it"
    (project.folder / "statistics.toml").write_text(SPARSE)
    drop(project, "users")
    found = watcher.poll()
    assert found is not None
    assert [q.name for q in found.center_queries] == ["pages", "promised"]
    assert watcher.refused is None


def test_queries_do_not_move_where_a_link_could_then_not_keep_a_contract(tmp_path: Path) -> None:
    project, deployment = laid_out(tmp_path / "p")
    watcher = DeploymentWatcher(deployment)
    watcher.begin()
    rebalancer = Rebalancer(watcher)
    narrow = replace(
        deployment,
        project=replace(project, links={n: replace(k, bandwidth_bytes_per_s=1.0) for n, k in project.links.items()}),
    )
    promised = {n: replace(q, has_contract=True) for n, q in deployment.deployed.sharing.queries.items()}
    watcher.deployment = replace(
        narrow,
        deployed=replace(narrow.deployed, sharing=replace(narrow.deployed.sharing, queries=promised)),
    )
    (project.folder / "statistics.toml").write_text(SPARSE.replace("user = 1_000_000", "user = 300"))
    for at in range(0, 100 * FIRST_CHECK_US, CHECK_EVERY_US):
        measure(project, 50_000, 300, at)
        rebalancer.step(CenterCore(), at)
    assert watcher.store.version == 1
