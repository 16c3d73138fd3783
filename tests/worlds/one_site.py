"""One site that reads a folder of files into a local inbox: what tests of its evaluators have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from catchment.timeline import Clock
from tests.worlds.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.site import SitePipeline

PROJECT = """
[project]
name = "one"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
[defaults]
evaluator = "{evaluator}"
"""


def open_site(spark: SparkSession, folder: Path, data: Path, sql: str, evaluator: str, clock: Clock) -> SitePipeline:
    """Return the site of a new project that reads `data` and sends to the inbox of the project's folder."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.evaluation.evaluator import SparkEvaluator
    from catchment.spark.pipelines.site import SitePipeline
    from catchment.wire.receiving.inbox import Inbox, LocalUplink
    from catchment.wire.sending.sender import Sender

    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(PROJECT.format(evaluator=evaluator))
    (folder / "queries" / "q.sql").write_text(sql)
    (folder / "data").symlink_to(data)
    deployment = Deployment.load(folder)
    inbox = Inbox(folder / "inbox")
    return SitePipeline(
        spark,
        deployment.project,
        "edge",
        deployment.streams_at("edge"),
        deployment.fragments_at("edge"),
        SparkEvaluator({}),
        lambda outbox, sink: Sender(outbox, lambda: LocalUplink(inbox)),
        clock,
    )


def read_once(pipeline: SitePipeline) -> None:
    """Let a site read its files once, without leaving anything to Spark SQL that it began to scan."""
    try:
        pipeline.start(once=True)
        wait_until(lambda: pipeline.finished, "the site has read its files", act=pipeline.tick)
    finally:
        pipeline.stop()
    assert all(pipeline.scanning.scans_of(stream).reason is None for stream in pipeline.streams)
