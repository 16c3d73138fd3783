"""One site that reads into a local inbox, and what it has sent and kept: what tests of its evaluators share."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

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
    """Let a site read what is there once, without leaving anything to Spark SQL that it began to scan."""
    try:
        pipeline.start(once=True)
        wait_until(lambda: pipeline.finished, "the site has read what is there", act=pipeline.tick)
    finally:
        pipeline.stop()
    assert all(pipeline.scanning.scans_of(stream).reason is None for stream in pipeline.streams)


def sent_rows(folder: Path) -> Counter[str]:
    """Return the rows of all updates that a site has sent."""
    from catchment.aggregates.partials import combine, lower
    from catchment.deploy.deployment import Deployment
    from catchment.wire.receiving.inbox import Inbox

    fragment = Deployment.load(folder).fragments_at("edge")[0].fragment
    inbox = Inbox(folder / "inbox")
    keys = ["slice_us", *fragment.key_names]
    tables = [u.table for segment in inbox.read_segments(0, inbox.last_position + 1) for u in segment.updates()]
    merged = combine(pa.concat_tables(tables).combine_chunks(), keys, fragment.aggregates)
    return Counter(repr(row) for row in lower(merged, keys, fragment.aggregates).to_pylist())


def kept_lines(spark: SparkSession, folder: Path) -> Counter[str]:
    """Return the records on disk as texts, without what differs between two runs."""
    rows = with_numbers(spark.read.parquet(str(folder)).drop("_row", "quarantined_at", "batch").toArrow())
    return Counter(repr(sorted(row.items())) for row in rows.to_pylist())


def with_numbers(rows: pa.Table) -> pa.Table:
    """Return rows with days and instants as numbers: Spark reads years that are too late for Python."""
    for name, type_ in (("ts", pa.int64()), ("day", pa.int32())):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(type_))
    return rows
