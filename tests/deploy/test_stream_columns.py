"""Columns of a stream over time: they may be added, because history has null there, and change in no other way."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import refuse_changed_streams, refuse_redefined_views
from catchment.deploy.store import DeploymentStore
from catchment.errors import ConfigError
from catchment.project.config import Project

TOML = '[project]\nname = "p"\ncenter = "center"\n[sites.center]\n[sites.a]\n[[links]]\nfrom = "a"\nto = "center"\n'
STREAM = "CREATE STREAM hits ({}) WITH (event_time = 'ts', path = 'data/{{site}}');"
VIEW = "CREATE MATERIALIZED VIEW pages AS SELECT window.start, count(*) AS n FROM hits GROUP BY window(ts, '10 s');"
FIRST = "ts TIMESTAMP, page STRING"


def declare(folder: Path, columns: str) -> Deployment:
    """The project with these columns, as a site would start it."""
    (folder / "queries").mkdir(parents=True, exist_ok=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(f"{STREAM.format(columns)}\n{VIEW}\n")
    deployment = Deployment.load(folder)
    site = Project.load(folder).site_folder("a")
    refuse_redefined_views(site, deployment.plans)
    refuse_changed_streams(site, deployment.streams_at("a"))
    DeploymentStore(deployment.project.state_folder).keep(deployment.deployed)
    return deployment


def test_a_column_may_be_added_and_what_runs_goes_on_as_it_is(tmp_path: Path) -> None:
    before = declare(tmp_path, FIRST)
    after = declare(tmp_path, f"{FIRST}, country STRING")
    assert after.deployed == before.deployed
    declare(tmp_path, f"country STRING, {FIRST}")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("ts TIMESTAMP", "column 'page' of stream 'hits' was STRING and is gone"),
        ("ts TIMESTAMP, page INT", "column 'page' of stream 'hits' was STRING and is INT now"),
    ],
)
def test_a_column_that_is_gone_or_has_another_type_is_refused_by_name(
    tmp_path: Path, columns: str, message: str
) -> None:
    declare(tmp_path, FIRST)
    with pytest.raises(ConfigError, match=message) as caught:
        declare(tmp_path, columns)
    assert caught.value.hint is not None
    assert "may be added" in caught.value.hint
    declare(tmp_path, FIRST)
