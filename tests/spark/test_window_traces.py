"""A run on Spark sends the life of its windows to a real collector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.worlds.projects import TWO_VIEWS, make_records, write_project
from tests.worlds.runs import run_project

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")

from tests.worlds.trace_collector import run_collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_window_of_a_run_is_a_trace_from_its_first_record_to_its_exact_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = {site: [json.dumps(r) for r in make_records(200, seed, 180)] for seed, site in enumerate(("us", "eu"))}
    with run_collector() as collector:
        toml = f'[traces]\nendpoint = "{collector.endpoint}"\n'
        run_project(spark, write_project(tmp_path / "p", ("us", "eu"), lines, toml=toml, queries=TWO_VIEWS))
        spans = collector.spans
    roots = {span.trace_id: span for span in spans if not span.parent_id}
    windows = {(s.attributes["catchment.view"], s.attributes["catchment.window_start_us"]) for s in roots.values()}
    assert {view for view, _ in windows} == {"numbers", "slowest"}
    assert len(windows) == len(roots) >= 6
    for trace_id, root in roots.items():
        mine = [span for span in spans if span.trace_id == trace_id and span is not root]
        assert {span.parent_id for span in mine} == {root.span_id}
        assert {"site", "link", "inbox", "merge"} <= {span.name for span in mine}
        assert {s.attributes["catchment.site"] for s in mine if s.name == "site"} == {"us", "eu"}
        assert any(span.name in ("publish exact", "publish final") for span in mine)
