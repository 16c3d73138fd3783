"""A real project, with Spark, that stops in the middle of its streams: its whole folder, checkpoints and results too.

The streams are replayed logs: the checkpoint of a replay counts rows, that of files names absolute paths, which would
mean nothing elsewhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.storage.host import Host
from tests.worlds.answers import check_answers, check_final, check_published_once
from tests.worlds.projects import as_lines, make_records, write_project
from tests.worlds.runs import Status, run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.runner import Runner

SITES = ("a", "b")
SPREAD_S = 1_200  # of event time
SPEED = 5  # four minutes, if the run is not stopped: also a slow machine stops it long before
TRIGGER = "3 s"  # few micro-batches, few files
LOGS_WRITTEN_S = 1_700_000_000  # a replay refuses a log that was modified; a whole second survives an archive
RECORDS_FILE = "records.json"


def run_to_the_middle(spark: SparkSession, folder: Path) -> None:
    """Run a new project until it has published some windows, and stop it."""
    records = {site: make_records(150, seed, SPREAD_S) for seed, site in enumerate(SITES)}
    connector = f"connector = 'replay', path = 'data/{{site}}.jsonl', format = 'json', speed = {SPEED}"
    lines = {site: as_lines(mine) for site, mine in records.items()}
    write_project(folder, SITES, lines, connector=connector, files_per_site=0)
    settings = folder / "catchment.toml"
    settings.write_text(settings.read_text().replace('trigger = "200 ms"', f'trigger = "{TRIGGER}"'))
    for log in (folder / "data").glob("*.jsonl"):
        os.utime(log, (LOGS_WRITTEN_S, LOGS_WRITTEN_S))
    (folder / RECORDS_FILE).write_text(json.dumps([record for mine in records.values() for record in mine]))
    status = run_project(spark, folder, once=False, until=_is_in_the_middle)
    assert not any(site["finished"] for site in status["sites"].values()), "the streams have ended: nothing is left"


def go_on(spark: SparkSession, folder: Path) -> None:
    """Take a stopped project up, read the rest of its logs, and check that nothing was lost and nothing came twice."""
    run_project(spark, folder)
    check_answers(folder / "state", json.loads((folder / RECORDS_FILE).read_text()))
    check_published_once(folder / "state")
    check_final(folder / "state")


def _is_in_the_middle(runner: Runner, status: Status) -> bool:
    """Every role has a snapshot and entries after it, and windows are published."""
    assert runner.center is not None
    hosts: list[Host[Any, Any]] = [runner.center.host, *(pipeline.host for pipeline in runner.pipelines)]
    if status["center"]["published"] >= 3 and not any(host.journal.base for host in hosts):
        for host in hosts:
            host.checkpoint()
    return all(0 < host.journal.base < host.next_sequence for host in hosts)
