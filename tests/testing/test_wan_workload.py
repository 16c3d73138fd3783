"""The workload of the paper (Jonathan et al., SoCC'18) deployed: twelve queries, ten seconds apart, at eight sinks.

Catches: a plan of the example that cannot run, and answers that differ from the oracle's at any of its sinks. Cores,
journals, outboxes, inboxes and relays are the real ones, on simulated time and links; that the six sources are light is
not simulated: each is evaluated as if where it is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from catchment.deploy.deployment import Deployment
from catchment.deploy.submit import submit_text
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import View
from catchment.testing import ArrivingRecords, DeploymentSimulation
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.timeline import SECOND_US
from tests.testing.test_view_sites import at

EXAMPLE = Path(__file__).parents[2] / "examples" / "wan_workload"
EVERY_S = 10
SPAN_US = 180 * SECOND_US
COUNT = 40  # of each source


def draw_edits(seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    texts = ("channel", "page", "user", "country", "namespace")
    flags = ("robot", "anonymous", "new", "minor")
    return pa.table(
        {
            "time": pa.array(np.sort(BEGIN_US + chance.integers(0, SPAN_US, COUNT))).cast(pa.timestamp("us", tz="UTC")),
            **{name: pa.array([("Main", "Talk")[n] for n in chance.integers(0, 2, COUNT)]) for name in texts},
            **{name: pa.array(chance.random(COUNT) < 0.5) for name in flags},
            **{name: pa.array(chance.integers(0, 500, COUNT)) for name in ("added", "deleted", "delta")},
        }
    )


def test_the_workload_of_the_paper_is_answered_at_all_its_sinks(tmp_path: Path) -> None:
    folder = tmp_path / "wan"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("state", "data"))
    declared = folder / "queries" / "views.sql"
    views = [s for s in parse_sql(declared.read_text(), "views.sql") if isinstance(s, View)]
    declared.write_text(f"{views[0].to_sql()};\n")
    deployment = Deployment.load(folder)
    edits = deployment.catalog.streams["edits"]
    sources = edits.sites or ()
    workload = {("edits", site): ArrivingRecords.of(edits, site, draw_edits(n)) for n, site in enumerate(sources)}
    simulation = DeploymentSimulation(deployment, workload, 7)
    for number, view in enumerate(views[1:], 1):
        statement = f"{view.to_sql()};"
        at(simulation, number * EVERY_S, lambda text=statement: submit_text(simulation.world.project, text))  # type: ignore[misc]
    simulation.run().assert_right()
    wanted = {sink for view in views for sink in view.options.sink or ()}
    assert wanted == {simulation.world.project.center, *simulation.world.current().sinks}
    for view in (v for v in views if "300 seconds" not in v.definition):  # those begin with a window after the records
        (sink,) = view.options.sink or ()
        store = simulation.world.stores["" if sink == simulation.world.project.center else sink]
        assert store.results(view.name) is not None, f"{view.name} was not answered at {sink}"
