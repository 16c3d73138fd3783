"""A whole project in a process of its own that sheds every batch, to be killed: see `test_shed_live.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from shed_project import ForcedMonitor

from catchment.config import SparkConfig
from catchment.spark.deploy import Deployment
from catchment.spark.run import Runner
from catchment.spark.session import make_session


def main(folder: Path) -> None:
    deployment = Deployment.load(folder)
    spark = make_session("shed", SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"}))
    runner = Runner(deployment, spark, deployment.sites, True, make_monitor=ForcedMonitor)
    runner.start()
    runner.run(seconds=240)
    runner.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
