"""A project on a Spark standalone cluster: the answers are those of the oracle, and the executors did the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from benchmarks.scale.spark_cluster import SparkCluster
from catchment import cli
from tests.worlds.answers import check_answers
from tests.worlds.projects import as_lines, make_records, write_project

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.spark]

SITES = ("a", "b")
EXECUTORS = """
[spark.settings]
"spark.executor.memory" = "512m"
"spark.executor.cores" = 1
"spark.driver.host" = "127.0.0.1"
"""


def make_project(folder: Path, records: dict[str, list[dict[str, Any]]], master: str) -> Path:
    write_project(folder, SITES, {site: as_lines(mine) for site, mine in records.items()})
    settings = folder / "catchment.toml"
    on_cluster = settings.read_text().replace('master = "local[2]"', f'master = "{master}"')
    settings.write_text(on_cluster + (EXECUTORS if master.startswith("spark:") else ""))
    return folder


def run_once(folder: Path, *before: str) -> None:
    """Run a project to its end, by this interpreter or by what stands before the command."""
    words = [
        *(before or (sys.executable,)),
        str(Path(cli.__file__).with_name("__main__.py")),
        "run",
        "--once",
        "--json",
    ]
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}  # spark-submit takes any python3 else
    environment = {**os.environ, **own}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


def test_a_cluster_answers_as_one_machine_does(tmp_path: Path) -> None:
    records = {site: make_records(400, seed) for seed, site in enumerate(SITES)}
    with SparkCluster(tmp_path / "cluster", workers=2) as cluster:
        spread = make_project(tmp_path / "spread", records, cluster.master)
        run_once(spread)
        executors = {path.parts[-4] for path in cluster.folder.glob("work-*/app-*/*/stderr")}
        assert executors == {"work-0", "work-1"}, "every worker had an executor"
        # What spark-submit is told wins over catchment.toml.
        submitted = make_project(tmp_path / "submitted", records, "local[2]")
        submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        run_once(submitted, submit, "--master", cluster.master, "--conf", "spark.executor.memory=512m")
        assert len(list(cluster.folder.glob("work-0/app-*"))) == 2, "the second run was on the cluster too"
    for folder in (spread, submitted):
        check_answers(folder / "state", [record for mine in records.values() for record in mine])
