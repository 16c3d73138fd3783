"""One timed run of a whole site over the files of a folder: Spark, journal, core, outbox, delivery to an inbox."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

PROJECT = """
[project]
name = "throughput"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
[defaults]
evaluator = "{evaluator}"
"""


@dataclass(frozen=True)
class SiteRun:
    """How long a site took until all was delivered, and what it has delivered."""

    seconds: float
    inbox: Any
    fragments: tuple[Any, ...]

    def answers(self) -> dict[str, pa.Table]:
        """Return the partials of each fragment, merged and lowered, in the order of their keys."""
        from catchment.aggregates.partials import combine, lower

        segments = self.inbox.read_segments(0, self.inbox.last_position + 1)
        updates = [update for segment in segments for update in segment.updates()]
        found = {}
        for fragment in self.fragments:
            keys = ["slice_us", *fragment.key_names]
            sent = pa.concat_tables([u.table for u in updates if u.fragment == fragment.name]).combine_chunks()
            lowered = lower(combine(sent, keys, fragment.aggregates), keys, fragment.aggregates)
            found[fragment.name] = lowered.sort_by([(key, "ascending") for key in keys])
        return found


def run_site(spark: Any, folder: Path, data: Path, sql: str, evaluator: str, files_per_batch: int) -> SiteRun:
    """Make a project in a folder, and run its site over the data until everything is delivered."""
    from catchment.deploy.deployment import Deployment
    from catchment.spark.evaluation.evaluator import SparkEvaluator
    from catchment.spark.pipelines import reading
    from catchment.spark.pipelines.site import SitePipeline
    from catchment.timeline import SystemClock
    from catchment.wire.receiving.inbox import Inbox, LocalUplink
    from catchment.wire.sending.sender import Sender

    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(PROJECT.format(evaluator=evaluator))
    (folder / "queries" / "q.sql").write_text(sql)
    (folder / "data").symlink_to(data)
    deployment = Deployment.load(folder)
    plans = deployment.fragments_at("edge")
    inbox = Inbox(folder / "inbox")
    bound = reading.MAX_FILES_PER_BATCH
    reading.MAX_FILES_PER_BATCH = files_per_batch
    pipeline = SitePipeline(
        spark,
        deployment.project,
        "edge",
        deployment.streams_at("edge"),
        plans,
        SparkEvaluator({}),
        lambda outbox, sink: Sender(outbox, lambda: LocalUplink(inbox)),
        SystemClock(),
    )
    began = time.perf_counter()
    try:
        pipeline.start(once=True)
        while not pipeline.finished:
            time.sleep(0.02)
            pipeline.tick()
        seconds = time.perf_counter() - began
    finally:
        pipeline.stop()
        reading.MAX_FILES_PER_BATCH = bound
    return SiteRun(seconds, inbox, tuple(plan.fragment for plan in plans))
