"""A whole project in a process of its own that sheds every batch, to be killed: see `tests/e2e/test_shedding.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.project.sections import SparkConfig
from catchment.spark.pipelines import reading
from catchment.spark.pipelines.runner import Runner
from catchment.spark.session import make_session
from catchment.spark.sources import streams as sources
from tests.worlds.shed_project import ForcedMonitor
from tests.worlds.waiting import PATIENCE_S

ROWS_PER_BATCH = 200  # so that it has many batches to be killed in


def main(folder: Path, files: int = 0) -> None:
    """Run to the end of the streams; of files, which have none, until so many are read and nothing is owed."""
    sources.MAX_REPLAYED_ROWS_PER_BATCH = ROWS_PER_BATCH
    reading.MAX_FILES_PER_BATCH = 1
    deployment = Deployment.load(folder)
    spark = make_session("shed", SparkConfig(master="local[2]", settings={"spark.sql.shuffle.partitions": "1"}))
    runner = Runner(deployment, spark, deployment.sites, True, make_monitor=ForcedMonitor)

    def look(status: Mapping[str, Any]) -> None:
        pipelines = runner.pipelines
        is_read = all(len(p.core.files.of("hits").files) >= files for p in pipelines)
        is_sent = not any(p.repairs.next_repair() or p.outbox.pending() for p in pipelines)
        if files and is_read and is_sent and runner.center is not None and runner.center.consumed:
            runner.stop()

    runner.start()
    runner.run(look, seconds=PATIENCE_S)
    runner.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
