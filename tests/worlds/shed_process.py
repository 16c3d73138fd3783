"""A whole project in a process of its own that sheds every batch, to be killed: see `tests/e2e/test_shedding.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.project.sections import SparkConfig
from catchment.spark.pipelines.runner import Runner
from catchment.spark.session import make_session
from catchment.spark.sources import streams as sources
from tests.worlds.shed_project import ForcedMonitor
from tests.worlds.waiting import PATIENCE_S

ROWS_PER_BATCH = 200  # so that it has many batches to be killed in


def main(folder: Path) -> None:
    sources.MAX_REPLAYED_ROWS_PER_BATCH = ROWS_PER_BATCH
    deployment = Deployment.load(folder)
    spark = make_session("shed", SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"}))
    runner = Runner(deployment, spark, deployment.sites, True, make_monitor=ForcedMonitor)
    runner.start()
    runner.run(seconds=PATIENCE_S)
    runner.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
