"""The order to heal a site, a relay or the center: what it changes of what is deployed, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.heal import heal
from catchment.deploy.reports.role_files import write_status
from catchment.deploy.store import DeploymentStore
from catchment.deploy.watcher import DeploymentWatcher
from catchment.errors import ConfigError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.query.view_start import ViewStart
from tests.worlds.projects import write_project

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE) WITH (event_time = 'ts', sites = 'a,b', {connector});
CREATE STREAM views (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', sites = 'b', path = 'views/{site}');
CREATE STREAM other (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', sites = 'b', path = 'other/{site}');
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW again AS
  SELECT window.start, page, count(*) AS n FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW joined AS
  SELECT window.start, h.page, count(*) AS n FROM hits h JOIN views v ON h.page = v.page
  GROUP BY window(h.ts, '1 minute'), h.page;
CREATE MATERIALIZED VIEW alone AS
  SELECT window.start, count(*) AS n FROM other GROUP BY window(ts, '1 minute');
"""


def start(folder: Path, queries: str = QUERIES) -> Deployed:
    write_project(folder, ["a", "b"], {"a": [], "b": []}, queries=queries)
    deployment = Deployment.load(folder)
    DeploymentWatcher(deployment).begin()
    return deployment.deployed


def now(folder: Path) -> Deployed:
    found = DeploymentStore(folder / "state").read()
    assert found is not None
    return found


def test_what_reads_a_stream_of_the_site_gets_fragments_of_other_names_and_stays_shared(tmp_path: Path) -> None:
    before = start(tmp_path)
    (tmp_path / "state" / "center").mkdir(exist_ok=True)
    write_status(
        tmp_path / "state" / "center",
        {
            "queries": {
                "pages": {"has_begun": True, "changeable_from_us": 120_000_000},
                "again": {"has_begun": True, "changeable_from_us": 60_000_000},
                "joined": {"has_begun": True, "changeable_from_us": 180_000_000},
            }
        },
    )
    answer = heal(tmp_path, "a")
    after = now(tmp_path)
    assert answer["healed"] == ["a"]
    assert answer["views"] == ["again", "joined", "pages"]
    old = {query: derivation.fragment for query, derivation in before.sharing.derivations.items()}
    new = {query: derivation.fragment for query, derivation in after.sharing.derivations.items()}
    assert new["alone"] == old["alone"], "what does not read of the site goes on"
    assert not {f for q, f in new.items() if q != "alone"} & set(old.values())
    assert new["pages"] == new["again"] == new["joined.left"], "those that shared one share the new one"
    assert new["pages"] in after.begun
    assert after.orders.lives == {"a": 1}
    assert after.orders.is_healed("a")
    assert after.starts[new["pages"]] == ViewStart(60_000_000), "as early as any of its views can change"
    assert {after.renewals[q] for q in after.renewals} == {1}
    assert Deployment.load(tmp_path).deployed == after, "the same project goes on with it"


def test_a_relay_is_healed_with_all_that_send_through_it_and_the_center_with_everybody(tmp_path: Path) -> None:
    start(tmp_path)
    path = tmp_path / "catchment.toml"
    path.write_text(path.read_text().replace('from = "a"\nto = "center"', 'from = "a"\nto = "b"'))
    assert heal(tmp_path, "b")["healed"] == ["a", "b"]
    assert heal(tmp_path, "a")["healed"] == ["a"]
    assert heal(tmp_path, "center")["healed"] == ["a", "b"]
    assert now(tmp_path).orders.lives == {"a": 3, "b": 2}
    assert set(now(tmp_path).starts.values()) == {ViewStart()}


def test_without_the_record_of_what_was_deployed_no_name_and_no_life_comes_twice(tmp_path: Path) -> None:
    before = start(tmp_path)
    heal(tmp_path, "a")
    former = {*before.sharing.fragments, *now(tmp_path).sharing.fragments}
    (tmp_path / "state" / "deployment.json").unlink()
    heal(tmp_path, "center")
    after = now(tmp_path)
    assert not former & after.sharing.fragments.keys()
    assert min(after.orders.lives.values()) > 1_000_000


def test_who_is_not_there_and_what_has_no_history_is_refused(tmp_path: Path) -> None:
    before = start(tmp_path / "one")
    with pytest.raises(ConfigError, match="no stream that a view reads is born at 'nowhere'"):
        heal(tmp_path / "one", "nowhere")
    assert now(tmp_path / "one") == before
    start(tmp_path / "two", QUERIES.replace("sites = 'a,b',", "sites = 'a,b', history = false,"))
    with pytest.raises(ConfigError, match="no history is kept of hits"):
        heal(tmp_path / "two", "a")
    assert not now(tmp_path / "two").renewals
