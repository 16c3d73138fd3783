"""The bytes of a view: those of its fragments over all links, and an equal part where views share them."""

from __future__ import annotations

import json
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.view_traffic import view_traffic
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import drop
from catchment.project.config import Project
from tests.worlds.projects import write_project

QUERIES = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, user INT, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', sites = '{sites}', {connector});
CREATE MATERIALIZED VIEW pages AS
  SELECT window.start, page, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW pages_too WITH (max_error = 0.1) AS
  SELECT window.start, page, sum(bytes) AS bytes FROM hits GROUP BY window(ts, '1 minute'), page;
CREATE MATERIALIZED VIEW slow WITH (policy = 'streaming') AS
  SELECT window.start, max(ms) AS high FROM hits GROUP BY window(ts, '1 minute');
"""


def test_bytes_of_a_shared_fragment_are_shared_and_those_of_every_role_are_added(tmp_path: Path) -> None:
    write_project(tmp_path, ["a", "b"], {"a": [], "b": []}, queries=QUERIES)
    project = Project.load(tmp_path)
    assert view_traffic(project, "pages") is None, "nothing is deployed yet"
    deployed = Deployment.load(tmp_path).deployed
    DeploymentStore(project.state_folder).keep(deployed)
    shared, own = (deployed.derivation(name).fragment for name in ("pages", "slow"))
    assert deployed.derivation("pages_too").fragment == shared
    for folder, sent in (("sites/a", {shared: 100, own: 7}), ("sites/b", {shared: 50}), ("relays/hub", {shared: 30})):
        (project.state_folder / folder).mkdir(parents=True)
        (project.state_folder / folder / "status.json").write_text(json.dumps({"bytes_by_fragment": sent}))
    found = view_traffic(project, "pages")
    assert found is not None
    assert (found["bytes"], found["own_bytes"]) == (180, 90.0)
    assert found["fragments"][0]["shared_with"] == ["pages_too"]
    assert found["fragments"][0]["bytes_by_role"] == {"a": 100, "b": 50, "relay hub": 30}
    alone = view_traffic(project, "slow")
    assert alone is not None
    assert (alone["bytes"], alone["own_bytes"], alone["fragments"][0]["shared_with"]) == (7, 7.0, [])
    drop(project, "pages")
    assert view_traffic(project, "pages") is None
