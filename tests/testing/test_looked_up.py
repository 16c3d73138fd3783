"""A simulated deployment whose view looks records up in a table that may change: its windows say in which version.

Under crashes, cuts of links and a relay that merges. Cannot catch: that the version is the one that Spark has used.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.testing.campaigns.features import Feature
from catchment.testing.campaigns.generate import draw_workload, write_project
from catchment.testing.simulated.evaluate import SIMULATED_VERSION
from catchment.testing.simulation import DeploymentSimulation

FEATURES = frozenset({Feature.LOOKUP, Feature.RELAY, Feature.LATE, Feature.CRASH, Feature.ONE_WAY_CUT, Feature.DOUBLED})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_window_says_in_which_version_of_a_table_its_records_were_looked_up(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = write_project(tmp_path / "project", chance, FEATURES).folder
    sql = folder / "queries" / "all.sql"
    still = sql.read_text().replace(", refresh = '1 minute'", "")
    sql.write_text(still.replace("format = 'csv')", "format = 'csv', refresh = '1 minute')"))
    deployment = Deployment.load(folder)
    assert deployment.catalog.tables["sections"].refresh_us is not None
    simulation = DeploymentSimulation(deployment, draw_workload(deployment.catalog, chance, FEATURES), seed, FEATURES)
    simulation.run().assert_right()
    rows = simulation.world.store.rows("windows", "looked")
    assert rows is not None
    told = [row["reason"] for row in rows.to_pylist() if row["status"] != "early"]
    assert told
    assert all(f"; as of version {SIMULATED_VERSION} of table sections" in reason for reason in told), told
