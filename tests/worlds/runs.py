"""Running a whole project in the process of a test: every site and the center, on the session that tests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.shedding.monitor import LoadMonitor
from tests.worlds.waiting import PATIENCE_S
from tests.worlds.wire_support import FaultyUplink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner
    from catchment.wire.sending.uplink import Uplink

Status = Mapping[str, Any]


def run_project(
    spark: SparkSession,
    folder: Path,
    *,
    once: bool = True,
    faults: bool = False,
    until: Callable[[Runner, Status], bool] = lambda runner, status: False,
    make_monitor: type[LoadMonitor] = LoadMonitor,
) -> Status:
    """Run a project to the end of its streams, or until its status is enough; that status, or the last one.

    With `once` what is there now is read and published; without it the run goes on at the pace of its sources. With
    `faults` the wire loses, doubles and reorders what is sent.
    """
    from catchment.deploy.deployment import Deployment
    from catchment.spark.pipelines.runner import Runner

    seeds = count()

    def wrap_uplink(uplink: Uplink) -> Uplink:
        return FaultyUplink(uplink, next(seeds), 0.3, 0.3, 0.2) if faults else uplink

    deployment = Deployment.load(folder)
    runner = Runner(
        deployment, spark, deployment.sites, True, once=once, wrap_uplink=wrap_uplink, make_monitor=make_monitor
    )
    enough: Status | None = None

    def look(status: Status) -> None:
        nonlocal enough
        if enough is None and until(runner, status):
            enough = status
            runner.stop()

    try:
        runner.start()
        runner.run(look, seconds=PATIENCE_S)
        status = runner.status() if enough is None else enough
        assert enough is not None or runner.finished, f"the run did not end in {PATIENCE_S:.0f} s: {status}"
        return status
    finally:
        runner.close()
