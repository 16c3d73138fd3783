"""A cloud on Spark that goes on from the state in a folder, whatever ended it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from catchment.feeds.cloud.choose_hosts import STRATEGIES
from catchment.feeds.cloud.event_files import EVENTS_FOLDER
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.runs.batch_runner import BatchRunner
from catchment.feeds.runs.durable_cloud import DurableCloud
from catchment.feeds.runs.open_cloud import refuse_answers
from catchment.feeds.runs.workload import Workload, placement_rule
from catchment.spark.feeds.cloud import SparkCloud
from catchment.timeline import Clock


def open_spark_cloud(
    spark: SparkSession, workload: Workload, state: Path, strategy: str, clock: Clock
) -> tuple[DurableCloud, BatchRunner]:
    """Return the cloud, and what runs its batches; a new one has no views yet."""
    refuse_answers(workload.program)
    rule = placement_rule(workload, STRATEGIES[strategy])
    graph = ViewGraph(workload.program, {}, {})
    cloud = SparkCloud(spark, graph, state / EVENTS_FOLDER, workload.feed_rates, rule)
    durable = DurableCloud(cloud, cloud.plane, state, clock)
    return durable, BatchRunner(durable, cloud.join)
