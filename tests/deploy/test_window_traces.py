"""The life of a window as a trace: whichever process tells a part of it, the parts come together at a collector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from catchment.center.events import Publish
from catchment.center.statuses import EXACT, ON_TIME
from catchment.deploy.deployment import Deployment
from catchment.errors import CatchmentError
from catchment.progress.events import Gathered, Landed
from catchment.project.config import Project
from catchment.timeline import ManualClock, Window
from catchment.wire.messages import Segment, Updates
from tests.worlds.projects import TWO_VIEWS, write_project

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")

from catchment.deploy.reports import window_traces
from catchment.deploy.reports.window_traces import TracedWindows, open_traces
from tests.worlds.trace_collector import run_collector

MINUTE_US = 60_000_000
START_US = 1_700_000_040_000_000  # a whole minute
VIEWS = ("numbers", "slowest")


def deploy(folder: Path, endpoint: str, sample: float = 1.0) -> Deployment:
    toml = f'[traces]\nendpoint = "{endpoint}"\nsample = {sample}\n'
    return Deployment.load(write_project(folder, ("us", "eu"), {"us": [], "eu": []}, toml=toml, queries=TWO_VIEWS))


def update(fragment: str) -> Updates:
    return Updates(fragment, pa.table({"slice_us": [START_US]}), ((START_US, 1),))


def publish(view: str, revision: int, status: str, missing: tuple[str, ...] = ()) -> Publish:
    window = Window(START_US, START_US + MINUTE_US)
    return Publish(view, window, revision, status, 1.0, missing, "because", pa.table({"n": [1]}))


def live(deployment: Deployment) -> None:
    """Tell the life of one window: two sites, each with a process of its own, and the center with a third."""
    clock = ManualClock(START_US)
    sites = {site: open_traces(deployment, clock, deployment.project.traces) for site in ("us", "eu")}
    center = open_traces(deployment, clock, deployment.project.traces)
    fragments = sorted({part.source_fragment for q in deployment.center_queries for part in q.parts})
    for site, traces in sites.items():
        for fragment in fragments:
            clock.advance(1_000)
            traces.note_read(site, fragment, [START_US])
            traces.note_read(site, fragment, [START_US])  # further records of the slice change nothing
        clock.advance(1_000)
        traces.note_flushed(site, 7, [update(f) for f in fragments])
        clock.advance(1_000)
        center.note_landed(Segment(site, "first", 7, tuple(update(f) for f in fragments)))
        traces.note_acked(site, 7)
        clock.advance(1_000)
        began_us = clock.now_us()
        clock.advance(1_000)
        gathered = [Gathered(f, pa.table({"slice_us": [START_US]}), (), ((site, START_US),)) for f in fragments]
        center.note_merged([*gathered, Landed(site, 7)], began_us)
        clock.advance(1_000)
        is_last = site == "eu"
        actions = [publish(v, 1 + is_last, EXACT if is_last else ON_TIME, () if is_last else ("eu",)) for v in VIEWS]
        center.note_published(actions)
    for traces in (*sites.values(), center):
        traces.close()


def test_the_parts_of_a_window_that_three_processes_tell_are_one_trace_at_the_collector(tmp_path: Path) -> None:
    with run_collector() as collector:
        deployment = deploy(tmp_path / "p", collector.endpoint)
        live(deployment)
        spans = collector.spans
        assert {r["service.name"] for r in collector.resources} == {"catchment"}
    assert len({span.trace_id for span in spans}) == len(VIEWS)
    for view in VIEWS:
        mine = [span for span in spans if span.attributes["catchment.view"] == view]
        assert len({span.trace_id for span in mine}) == 1
        (root,) = [span for span in mine if not span.parent_id]
        assert root.name == f"window of {view}"
        assert {span.parent_id for span in mine if span is not root} == {root.span_id}
        told = sorted(span.name for span in mine)
        expected = ["inbox", "link", "merge", "publish", "site", "window"]
        assert sorted({name.split()[0] for name in told}) == expected
        assert [name for name in told if name.startswith("publish")] == ["publish exact", "publish on_time"]
        for site in ("us", "eu"):
            of_site = {s.name: s for s in mine if s.attributes.get("catchment.site") == site}
            assert of_site["site"].marks == ("first record read", "flush")
            assert of_site["site"].start_us < of_site["site"].end_us == of_site["link"].start_us
            assert of_site["link"].end_us == of_site["inbox"].start_us
            assert of_site["inbox"].marks == ("landed", "taken")
        assert root.end_us == max(span.end_us for span in mine)
        assert root.attributes["catchment.status"] == EXACT


def test_the_same_share_of_windows_is_traced_everywhere(tmp_path: Path) -> None:
    windows = [Window(START_US + i * MINUTE_US, START_US + (i + 1) * MINUTE_US) for i in range(2_000)]
    deployment = deploy(tmp_path / "p", "http://127.0.0.1:1", sample=0.1)
    here, there = TracedWindows.of(deployment), TracedWindows.of(deployment)
    traced = [here.find("numbers", window) for window in windows]
    assert traced == [there.find("numbers", window) for window in windows]
    assert 150 < sum(found is not None for found in traced) < 250  # about 200, and always the same ones


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_traces, "REMEMBERED", 10)
    with run_collector() as collector:
        deployment = deploy(tmp_path / "p", collector.endpoint)
        traces = open_traces(deployment, ManualClock(START_US), deployment.project.traces)
        fragment = deployment.center_queries[0].parts[0].source_fragment
        for number in range(100):
            traces.note_read("us", fragment, [START_US + number * MINUTE_US])
        assert len(traces._first_read_us._entries) == 10
        traces.close()


def test_a_collector_that_hangs_or_is_away_is_not_waited_for(tmp_path: Path) -> None:
    with run_collector(answers=False) as collector:
        deployment = deploy(tmp_path / "hangs", collector.endpoint)
        traces = open_traces(deployment, ManualClock(START_US), deployment.project.traces)
        for revision in range(1, 2_000):  # more than one batch of spans
            traces.note_published([publish("numbers", revision, EXACT)])
        collector.was_asked.wait()
        traces.note_published([publish("numbers", 2_000, EXACT)])
        assert not collector.spans, "it has answered nobody, and everything was noted meanwhile"
        collector.may_answer.set()
        traces.close()
        assert collector.spans
    deployment = deploy(tmp_path / "away", "http://127.0.0.1:1")
    away = open_traces(deployment, ManualClock(START_US), deployment.project.traces)
    away.note_published([publish("numbers", 1, EXACT)])
    away.close()


def test_traces_are_off_by_default_and_then_nothing_of_them_is_loaded(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "p", ("us",), {"us": []}, queries=TWO_VIEWS)
    assert Project.load(folder).traces.endpoint is None
    code = (
        "import sys; from pathlib import Path; from catchment.deploy.deployment import Deployment;"
        "from catchment.spark.pipelines.runner import Runner;"
        f"d = Deployment.load(Path({str(folder)!r})); r = Runner(d, None, d.sites, True);"
        "print(r.connections.observer, [m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    pytest.importorskip("pyspark")
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "None []\n"


def test_an_endpoint_that_is_no_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatchmentError, match="endpoint"):
        deploy(tmp_path / "p", "127.0.0.1:4317")
