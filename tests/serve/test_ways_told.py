"""What an operator is told of ways: which is used, since when and why, what the others gave, and bytes on each link."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from catchment.cli.progress import status_table
from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import write_status
from catchment.deploy.reports.role_status import read_project_status
from catchment.project.config import Project
from catchment.serve.explanation import explain_deployment
from catchment.serve.explanation_text import explanation_text
from catchment.serve.metrics import write_metrics
from catchment.serve.overview import OverviewReader
from catchment.storage.files import make_folder
from catchment.timeline import SystemClock
from catchment.wire.sending.shaper import Shaper
from catchment.wire.sending.uplink import LinkError, Uplink
from catchment.wire.ways.way_chooser import WayRules
from catchment.wire.ways.way_switch import Line, WaySwitch

TOML = """[project]
name = "p"
center = "center"
[sites.center]
[sites.a]
[sites.b]
listen = "127.0.0.1:9410"
"""
SQL = """CREATE STREAM hits (ts TIMESTAMP, page STRING) WITH (event_time = 'ts', sites = 'a,b', path = 'data/{site}');
CREATE MATERIALIZED VIEW pages AS SELECT window.start, page, count(*) AS n FROM hits
  GROUP BY window(ts, '1 minute'), page;
"""


def never() -> Uplink:
    raise AssertionError("nothing is sent here")


def make_project(folder: Path) -> Project:
    """A project in which the link of a is down, and its segments go over b."""
    (folder / "queries").mkdir(parents=True)
    links = [("a", "center"), ("a", "b"), ("b", "center")]
    text = "".join(f'[[links]]\nfrom = "{a}"\nto = "{b}"\n' for a, b in links)
    (folder / "catchment.toml").write_text(TOML + text)
    (folder / "queries" / "q.sql").write_text(SQL)
    project = Project.load(folder)
    direct, around = (Line(way, never, Shaper()) for way in (("a", "center"), ("a", "b", "center")))
    ways = WaySwitch([direct, around], SystemClock(), WayRules(down_after_s=0.0))
    ways.note_begun(direct, 0, 500)
    ways.note_failed(direct, LinkError("the cable is cut"))
    ways.step(0)
    ways.note_begun(around, 0, 700)
    ways.note_ended(around, 0, arrived=True)
    for site in ("a", "b"):
        make_folder(project.site_folder(site))
    told = {"rows": 1, "bytes_sent": 1200, "connected": True, "ways": ways.status(), "forwarded": {}}
    write_status(project.site_folder("a"), told)
    alone = WaySwitch([Line(("b", "center"), never, Shaper())], SystemClock(), WayRules())
    forwarded = {"center": {"bytes_sent": 700, "calls": 1, "failed": 0}}
    told = {"rows": 1, "bytes_sent": 50, "connected": True, "ways": alone.status(), "forwarded": forwarded}
    write_status(project.site_folder("b"), told)
    return project


def test_status_says_which_way_is_used_since_when_and_why(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    shown = Console(file=io.StringIO(), width=400)
    shown.print(status_table(read_project_status(project).to_json(SystemClock().now_us())))
    assert isinstance(shown.file, io.StringIO)
    text = shown.file.getvalue()
    assert "a: sends a -> b -> center for 0 s, because a -> center is down: the cable is cut" in text
    assert "a -> center fails: the cable is cut" in text
    assert "b: sends" not in text, "one that has a single way says nothing"


def test_explain_names_all_ways_and_the_one_that_is_used(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    answer = explain_deployment(Deployment.load(project.folder))
    (end,) = answer["ways"]
    assert [way["way"] for way in end["ways"]] == [["a", "center"], ["a", "b", "center"]]
    assert [way["declared_s"] for way in end["ways"]] == [0.25, 0.5]
    text = explanation_text(answer)
    assert "a -> center 250 ms; a -> b -> center 500 ms" in text
    assert "now a -> b -> center: a -> center is down" in text


def test_bytes_are_counted_on_every_link_that_they_took(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    overview = OverviewReader(project).read()
    sent = {(link["from"], link["to"]): link["bytes_sent"] for link in overview["links"]}
    assert sent == {("a", "center"): 500, ("a", "b"): 700, ("b", "center"): 750}
    assert overview["wan"]["sent_bytes"] == 1950
    metrics = write_metrics(overview)
    assert 'catchment_way_used{site="a",way="a -> b -> center"} 1' in metrics
    assert 'catchment_way_used{site="a",way="a -> center"} 0' in metrics
    assert 'catchment_way_changes_total{site="a"} 1' in metrics
    assert 'catchment_link_forwarded_bytes_total{from="b",to="center"} 700' in metrics
