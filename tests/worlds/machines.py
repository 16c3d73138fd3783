"""A center and joined sites, each in a folder of its own, run on the Spark session that tests share."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from catchment.cli.joined_site import joined_deployment
from catchment.control.flight_sql import FlightSqlService
from catchment.control.service import ControlService
from catchment.deploy.deployment import Deployment
from catchment.project.config import Project
from catchment.project.joined_site import JoinedSite
from tests.worlds.control_world import ControlWorld
from tests.worlds.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner


class Machine:
    """One role that runs in a thread, until it is stopped; what it failed with is raised then."""

    def __init__(self, runner: Runner, closing: ExitStack) -> None:
        self._runner = runner
        self._closing = closing
        self._failure: BaseException | None = None
        closing.callback(runner.close)
        runner.start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._runner.stop()
        self._thread.join()
        self._closing.close()
        if self._failure is not None:
            raise self._failure

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Release what a role that has ended by itself still holds."""
        self._closing.close()

    def wait_until_failed(self) -> BaseException:
        """Wait until it has ended by itself, and return why."""
        self._thread.join(PATIENCE_S)
        assert self._failure is not None, "it was to end by itself"
        self._closing.close()
        return self._failure

    def _run(self) -> None:
        try:
            self._runner.run()
        except BaseException as failure:  # noqa: BLE001 - it is raised by `stop`
            self._failure = failure


def start_center(spark: SparkSession, world: ControlWorld) -> Machine:
    """Run the center of a world, as `catchment center` does."""
    return run_center(spark, world.folder)


def run_center(spark: SparkSession, folder: Path) -> Machine:
    """Run the center of a project, with its control service, as `catchment center` does."""
    from catchment.spark.pipelines.runner import Runner

    control = ControlService(Project.load(folder))
    deployment = Deployment.load(folder)
    services = (control, FlightSqlService(folder / "state"))
    runner = Runner(deployment, spark, (), True, services=services, on_reached=control.publish)
    return Machine(runner, ExitStack())


def start_site(spark: SparkSession, home: Path) -> Machine:
    """Run a site in the folder of its machine, as `catchment site` does."""
    from catchment.spark.pipelines.runner import Runner

    name = JoinedSite.load(home).name
    closing = ExitStack()
    deployment = closing.enter_context(joined_deployment(home, None))
    return Machine(Runner(deployment, spark, (name,), False), closing)
