"""What a role knows is what its journal says, at any moment: compared in simulated deployments.

Catches: state that is changed beside the journal, or by something that a replay does not see. Cannot catch: what both
forget alike; the oracle of the other simulations does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.testing import ArrivingRecords, BrokenSimulationError, DeploymentSimulation
from catchment.testing import simulation as simulation_module
from catchment.testing.campaigns.campaign import run_seed
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.roles import SimulatedCenter, SimulatedRelay
from catchment.testing.simulated.site import SimulatedSite
from catchment.testing.simulated.world import WorldOptions
from tests.worlds.tiers import seeds

TOML = """\
[project]
name = "replayed"
center = "center"
[sites.a]
[sites.hub]
[sites.center]
[[links]]
from = "a"
to = "hub"
[[links]]
from = "hub"
to = "center"
[defaults]
policy = "streaming"
"""
SQL = """\
CREATE STREAM hits (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', path = 'data/{site}', sites = 'a');
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n FROM hits
  GROUP BY window(ts, '10 seconds'), page;
"""


def relayed_project(folder: Path) -> DeploymentSimulation:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(SQL)
    deployment = Deployment.load(folder)
    times = pa.array([BEGIN_US + second * 1_000_000 for second in (1, 2, 11, 25)]).cast(pa.timestamp("us", tz="UTC"))
    records = pa.table({"ts": times, "page": ["a", "b", "a", "a"]})
    workload = {("hits", "a"): ArrivingRecords.of(deployment.catalog.streams["hits"], "a", records)}
    return DeploymentSimulation(deployment, workload, options=WorldOptions(replay_chance=1.0))


def test_what_every_role_knows_is_what_its_journal_says_after_every_tick(tmp_path: Path) -> None:
    simulation = relayed_project(tmp_path / "project")
    simulation.run().assert_right()
    assert simulation.world.seen[RareState.REPLAY_COMPARED] > 3 * 10, "three roles, compared at every tick"


@pytest.mark.parametrize("seed", seeds(3))
def test_under_any_faults_what_roles_know_is_what_their_journals_say(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation_module, "WorldOptions", partial(WorldOptions, replay_chance=0.1))
    report = run_seed(30_000 + seed)
    report.assert_right()
    assert report.seen[RareState.REPLAY_COMPARED]


def pause(site: SimulatedSite) -> None:
    site.core._paused.add("elsewhere")


def count_rows(relay: SimulatedRelay) -> None:
    relay.pipeline.core.rows_in += 1


def forget_slices(center: SimulatedCenter) -> None:
    center.pipeline.core.newest["elsewhere"] = 1


def double_partials(center: SimulatedCenter) -> None:
    for tables in center.pipeline.core.queries["pages"].windows.state.slices.values():
        tables.append(tables[0])


@pytest.mark.parametrize(
    ("role", "change", "named"),
    [
        (SimulatedSite, pause, "site a would know something else after a restart: state.paused"),
        (SimulatedRelay, count_rows, "relay hub would know something else after a restart: state.rows_in"),
        (SimulatedCenter, forget_slices, "center center would know something else after a restart: state.newest"),
        (SimulatedCenter, double_partials, r"center center would know something else .*windows\.slices"),
    ],
)
def test_a_state_that_is_changed_beside_the_journal_is_noticed(
    role: type[Any], change: Callable[[Any], None], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the checker."""
    tick = role.tick

    def tick_and_change(running: Any) -> None:
        tick(running)
        change(running)

    monkeypatch.setattr(role, "tick", tick_and_change)
    with pytest.raises(BrokenSimulationError, match=named):
        relayed_project(tmp_path / "project").run().assert_right()
