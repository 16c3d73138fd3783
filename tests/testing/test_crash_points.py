"""The process ends, or its disk fails, at every single call that writes: nothing is lost, nothing is counted twice.

A small deployment (a site, a relay, a center, a view that is submitted) is run once for every call of every role's
disk, and stopped there: between two calls, in the middle of a write, or by an error that the other parts of the process
outlive until its next tick. A power cut follows, or not. Then it goes on, and its answers are those of the oracle. The
journal, snapshots, outboxes, inboxes and the small files of a role are all written by these calls. `make test` tries
every few calls, `make soak` all of them. Result tables are in memory here, and lose what was not synced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore
from catchment.deploy.submit import submit
from catchment.project.config import Project
from catchment.storage.disk import use_disk
from catchment.testing import ArrivingRecords, DeploymentSimulation, Feature, WorldOptions
from catchment.testing.campaigns.generate import BEGIN_US
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from tests.worlds.tiers import EXAMPLES_PER_TIER, examples

SECOND_US = 1_000_000
TOML = """\
[project]
name = "stopped"
center = "center"
[sites.s]
[sites.r]
[sites.center]
[[links]]
from = "s"
to = "r"
[[links]]
from = "r"
to = "center"
[defaults]
relay_wait = "1 s"
policy = "streaming"
"""
STREAM = "CREATE STREAM hits (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', path = 'data/{site}', sites = 's');\n"
VIEW = (
    "CREATE MATERIALIZED VIEW {} AS SELECT window.start, page, count(*) AS n FROM hits "
    "GROUP BY window(ts, '4 seconds'), page;\n"
)
ROLES = ["site", "relay", "center"]
KINDS = [DiskFault.KILL, DiskFault.TORN_WRITE, DiskFault.ERROR]


def make_deployment(folder: Path) -> Deployment:
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(STREAM + VIEW.format("pages"))
    return Deployment.load(folder)


def make_simulation(folder: Path, seed: int) -> DeploymentSimulation:
    deployment = make_deployment(folder)
    times = pa.array([BEGIN_US + t * SECOND_US for t in (0, 1, 3, 5, 6, 9)], pa.int64())
    records = pa.table({"ts": times.cast(pa.timestamp("us", tz="UTC")), "page": list("aabbab")})
    arrivals = ArrivingRecords.of(deployment.catalog.streams["hits"], "s", records, np.asarray(times))
    options = WorldOptions(checkpoint_chance=0.3)
    features = frozenset({Feature.SUBMIT})
    return DeploymentSimulation(deployment, {("hits", "s"): arrivals}, seed, features, [VIEW.format("more")], options)


def stopped_runs(folder: Path, role: str, kind: DiskFault, step: int) -> Iterator[int]:
    """Run once per chosen call of the role's disk, stopped there; end when a run makes fewer calls."""
    for call in count(step // 2 % 7, step):
        simulation = make_simulation(folder / f"{kind.name}-{call}", call)
        machine = next(r for r in simulation.world.roles.values() if r.kind == role).folder
        simulation.world.disk.plan_fault(machine, call, kind)
        simulation.run().assert_right()
        if simulation.world.disk.machine(machine).calls <= call:
            return
        yield call


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_that_stops_at_any_call_of_its_disk_loses_and_doubles_nothing(
    tmp_path: Path, role: str, kind: DiskFault
) -> None:
    step = 1 if examples(100) >= EXAMPLES_PER_TIER["soak"] else 47
    calls = list(stopped_runs(tmp_path, role, kind, step))
    assert len(calls) * step > 30, "fewer calls than the steps of this story make"


@pytest.mark.parametrize("kind", [DiskFault.KILL, DiskFault.TORN_WRITE, DiskFault.ERROR])
def test_a_change_of_the_deployment_that_stops_at_any_call_is_made_whole_or_not_at_all(
    tmp_path: Path, kind: DiskFault
) -> None:
    for call in count():
        folder = tmp_path / str(call)
        make_deployment(folder)
        (folder / "more.sql").write_text(VIEW.format("more"))
        project = Project.load(folder)
        disk = SimulatedDisk(random.Random(call))
        disk.plan_fault(project.state_folder, call, kind)
        with use_disk(disk):
            try:
                submit(project, folder / "more.sql")
            except (Killed, OSError):
                disk.cut_power(project.state_folder)
            stored = DeploymentStore(project.state_folder).read()
            assert stored is None or set(stored.views) == {"pages", "more"}
            if stored is None:
                submit(project, folder / "more.sql")
        assert set(Deployment.load(folder).deployed.views) == {"pages", "more"}
        if disk.machine(project.state_folder).calls <= call:
            return
