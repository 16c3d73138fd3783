"""A project on a Spark standalone cluster: the answers are those of the oracle, and the executors did the work.

The center has its rows in shards, and is killed while its tasks publish them. Workers whose Python has no package at
all run what is shipped to them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import tests
from benchmarks.scale.spark_cluster import SparkCluster
from catchment import cli
from catchment.center.results.read import read_results
from catchment.deploy.processes.packed_environment import pack_environment
from tests.worlds.answers import check_answers, check_published_once
from tests.worlds.projects import QUERIES, as_lines, make_records, write_project
from tests.worlds.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.spark]

SITES = ("a", "b")
IN_TASKS = (sys.executable, "-m", "tests.worlds.in_tasks")
LEFT_TO_SQL = "is left to Spark SQL"
# A source in Python, whose beginning runs beside the driver and whose records are read by tasks.
REPLAYED = """
CREATE STREAM taps (ts TIMESTAMP, user INT, ms DOUBLE)
  WITH (event_time = 'ts', sites = 'b', connector = 'replay', path = 'data/{site}.jsonl', speed = 1000000);
CREATE MATERIALIZED VIEW tapped AS SELECT window.start, count(*) AS n FROM taps GROUP BY window(ts, '1 minute');
"""
EXECUTORS = """
[spark.settings]
"spark.executor.memory" = "512m"
"spark.executor.cores" = 1
"spark.driver.host" = "127.0.0.1"
"""


def make_project(
    folder: Path, records: dict[str, list[dict[str, Any]]], master: str, more: str = "", queries: str = QUERIES
) -> Path:
    write_project(folder, SITES, {site: as_lines(mine) for site, mine in records.items()}, queries=queries)
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster") / "c", workers=2) as started:
        yield started


def test_a_cluster_answers_as_one_machine_does(cluster: SparkCluster, tmp_path: Path) -> None:
    records = {site: make_records(400, seed) for seed, site in enumerate(SITES)}
    spread = make_project(tmp_path / "spread", records, cluster.master, "center_shards = 3\n")
    results = spread / "state" / "results"
    run_once(spread, *IN_TASKS, kill_when=lambda: any(results.glob("*/shard-*.parquet")))
    run_once(spread, *IN_TASKS)
    assert list(results.glob("numbers/shard-*.parquet")), "tasks wrote the answers"
    assert LEFT_TO_SQL not in (spread / "run.log").read_text(), "tasks read files and wrote history"
    executors = {path.parts[-4] for path in cluster.folder.glob("work-*/app-*/*/stderr")}
    assert executors == {"work-0", "work-1"}, "every worker had an executor"
    # What spark-submit is told wins over catchment.toml.
    before = len(list(cluster.folder.glob("work-0/app-*")))
    submitted = make_project(tmp_path / "submitted", records, "local[2]")
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    main = str(Path(cli.__file__).with_name("__main__.py"))
    run_once(submitted, submit, "--master", cluster.master, "--conf", "spark.executor.memory=512m", main)
    assert len(list(cluster.folder.glob("work-0/app-*"))) == before + 1, "the last run was on the cluster too"
    check_published_once(spread / "state")
    for folder in (spread, submitted):
        check_answers(folder / "state", [record for mine in records.values() for record in mine])


def test_workers_without_any_package_run_what_is_shipped_to_them(cluster: SparkCluster, tmp_path: Path) -> None:
    bare = sys._base_executable  # type: ignore[attr-defined]
    has_none = subprocess.run([bare, "-I", "-c", "import catchment"], capture_output=True, check=False)
    assert b"No module named 'catchment'" in has_none.stderr, f"{bare} has packages of its own"
    records = {site: make_records(400, seed) for seed, site in enumerate(SITES)}
    folder = make_project(
        tmp_path / "p", records, cluster.master, 'environment = "environment.tar.gz"\n', QUERIES + REPLAYED
    )
    with (folder / "catchment.toml").open("a") as settings:
        settings.write(f'"spark.executorEnv.CATCHMENT_PYTHON" = "{bare}"\n')
    pack_environment(folder / "environment.tar.gz", [])  # tasks need neither Delta nor DuckDB nor SciPy
    run_once(folder, *IN_TASKS)
    assert LEFT_TO_SQL not in (folder / "run.log").read_text()
    unpacked = list(cluster.folder.glob("work-*/app-*/*/catchment_environment/packages/catchment"))
    assert unpacked, "Spark has unpacked the archive beside its executors"
    check_answers(folder / "state", [record for mine in records.values() for record in mine])
    tapped = read_results(folder / "state", "tapped").to_pylist()
    assert sum(row["n"] for row in tapped) == len(records["b"])
