"""A project on a Spark standalone cluster: the answers are those of the oracle, and the executors did the work.

The center has its rows in shards, and is killed while its tasks publish them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

import tests
from benchmarks.scale.spark_cluster import SparkCluster
from catchment import cli
from tests.worlds.answers import check_answers, check_published_once
from tests.worlds.projects import as_lines, make_records, write_project
from tests.worlds.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.spark]

SITES = ("a", "b")
EXECUTORS = """
[spark.settings]
"spark.executor.memory" = "512m"
"spark.executor.cores" = 1
"spark.driver.host" = "127.0.0.1"
"""


def make_project(folder: Path, records: dict[str, list[dict[str, Any]]], master: str, more: str = "") -> Path:
    write_project(folder, SITES, {site: as_lines(mine) for site, mine in records.items()})
    settings = folder / "catchment.toml"
    on_cluster = settings.read_text().replace('master = "local[2]"', f'master = "{master}"')
    settings.write_text(on_cluster + more + (EXECUTORS if master.startswith("spark:") else ""))
    return folder


def run_once(folder: Path, *program: str, kill_when: Callable[[], bool] | None = None) -> None:
    """Run a project to its end, or until it is killed."""
    root = str(Path(tests.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    words = [*program, "run", "--once", "--json"]
    log = folder / "run.log"
    with log.open("w") as told:
        process = subprocess.Popen(words, cwd=folder, env={**os.environ, **own}, stdout=told, stderr=told)
        try:
            if kill_when is not None:
                wait_until(lambda: kill_when() or process.poll() is not None, "something to be published")
                process.send_signal(signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL, f"it ended before it was killed: {log.read_text()[-3000:]}"
            else:
                assert process.wait(900) == 0, log.read_text()[-6000:]
        finally:
            process.kill()


def test_a_cluster_answers_as_one_machine_does(tmp_path: Path) -> None:
    records = {site: make_records(400, seed) for seed, site in enumerate(SITES)}
    with SparkCluster(tmp_path / "cluster", workers=2) as cluster:
        spread = make_project(tmp_path / "spread", records, cluster.master, "center_shards = 3\n")
        in_tasks = (sys.executable, "-m", "tests.worlds.in_tasks")
        results = spread / "state" / "results"
        run_once(spread, *in_tasks, kill_when=lambda: any(results.glob("*/shard-*.parquet")))
        run_once(spread, *in_tasks)
        assert list(results.glob("numbers/shard-*.parquet")), "tasks wrote the answers"
        executors = {path.parts[-4] for path in cluster.folder.glob("work-*/app-*/*/stderr")}
        assert executors == {"work-0", "work-1"}, "every worker had an executor"
        # What spark-submit is told wins over catchment.toml.
        submitted = make_project(tmp_path / "submitted", records, "local[2]")
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        main = str(Path(cli.__file__).with_name("__main__.py"))
        run_once(submitted, submit, "--master", cluster.master, "--conf", "spark.executor.memory=512m", main)
        assert len(list(cluster.folder.glob("work-0/app-*"))) == 3, "the last run was on the cluster too"
    check_published_once(spread / "state")
    for folder in (spread, submitted):
        check_answers(folder / "state", [record for mine in records.values() for record in mine])
