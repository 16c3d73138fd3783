"""A whole project in a process of its own that sheds every batch, to be killed: see `tests/e2e/test_shedding.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.project.config import SparkConfig
from catchment.spark.pipelines.runner import Runner
from catchment.spark.session import make_session
from tests.worlds.shed_project import ForcedMonitor
from tests.worlds.waiting import PATIENCE_S


def main(folder: Path) -> None:
    deployment = Deployment.load(folder)
    spark = make_session("shed", SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"}))
    runner = Runner(deployment, spark, deployment.sites, True, make_monitor=ForcedMonitor)
    runner.start()
    runner.run(seconds=PATIENCE_S)
    runner.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
