"""What is known of roles that may be gone: how old their words are, and what an operator is told."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from catchment.cli.progress import status_table
from catchment.deploy.reports.role_files import read_status, write_status
from catchment.deploy.reports.role_status import RoleStatus, read_project_status
from catchment.project.config import Project
from catchment.site.meter import SiteMeter
from catchment.timeline import SECOND_US
from catchment.wire.sending.link_meter import LinkCounters
from tests.worlds.projects import write_project

NOW_US = 1_000 * SECOND_US
SITE = {"rows": 5, "bytes_sent": 10, "pending_rows": 0, "newest_event_us": None, "connected": True, "last_error": None}


def told(**values: Any) -> RoleStatus:
    return RoleStatus.of("a", {**SITE, **values})


def show(answer: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(status_table(answer))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_role_is_judged_by_the_age_of_its_words() -> None:
    assert told(reported_at_us=NOW_US - SECOND_US).state(NOW_US) == "running"
    assert told(reported_at_us=NOW_US - 42 * SECOND_US).state(NOW_US) == "silent"
    assert told(reported_at_us=NOW_US - 42 * SECOND_US, stopped=True).state(NOW_US) == "stopped"
    assert told(reported_at_us=0, finished=True).state(NOW_US) == "finished"
    assert told().state(NOW_US) == "silent", "words of an older version do not say when"
    assert RoleStatus.of("a", None).state(NOW_US) == "never started"


def test_a_killed_site_is_shown_as_silent_and_one_that_never_ran_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    project = Project.load(write_project(tmp_path / "p", ["a", "b", "c"], {"a": [], "b": [], "c": []}))
    for site in ("a", "b"):
        project.site_folder(site).mkdir(parents=True)
    write_status(project.site_folder("a"), SITE)
    write_status(project.site_folder("b"), {**SITE, "quarantined": 3}, stopped=True)
    center = project.state_folder / "center"
    center.mkdir(parents=True)
    heard_us = now_ns // 1000 - 65 * SECOND_US
    sites = {"c": {"heard_at_us": heard_us, "refused": {"blocked": 4}, "left_out_records": 7}}
    queries = {
        "q": {"marks_us": {"a": 1, "c": None}, "closed_us": None, "open_slices": 0, "unmerged_of_sites": {"b": 9}}
    }
    write_status(center, {"queries": queries, "sites": sites})
    written_us = read_status(project.site_folder("a"))["reported_at_us"]  # type: ignore[index]
    found = read_project_status(project)
    answer = found.to_json(written_us + 42 * SECOND_US)
    assert {name: site["state"] for name, site in answer["sites"].items()} == {
        "a": "silent",
        "b": "stopped",
        "c": "never started",
    }
    text = show(answer)
    assert "silent for" in text
    assert " up" not in text.replace("closed up to", "")
    for part in ("heard 65 s ago", "4 blocked", "7 records", "b 9", "3 records could not be used"):
        assert part in text, text


def test_a_link_says_since_when_it_is_down_and_since_when_something_waits() -> None:
    meter = SiteMeter()

    def note(connected: bool, queued: int, now_us: int) -> dict[str, Any]:
        counters = LinkCounters(connected=connected)
        meter.note_link(counters, queued, now_us)
        return meter.link_status(counters, queued, None)

    assert note(True, 0, 10)["link_down_since_us"] is None
    assert note(False, 5, 20)["link_down_since_us"] == 20
    status = note(False, 7, 30)
    assert (status["link_down_since_us"], status["queued_since_us"]) == (20, 20)
    status = note(True, 0, 40)
    assert (status["link_down_since_us"], status["queued_since_us"]) == (None, None)
