"""What people are told of a view that reads its past: how far each site is, and what it cannot have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from catchment.cli.commands.show_queries import _render
from catchment.cli.progress import status_table
from catchment.deploy.deployment import Deployment
from catchment.deploy.repairing.suspended import describe_queries
from catchment.deploy.reports.role_files import write_status
from catchment.timeline import START_OF_TIME_US
from tests.deploy.test_definitions import write_project


def status_of(fragment: str, **past: Any) -> dict[str, Any]:
    told = {"batches": 40, "read_batches": 12, "records": 3_000, "lost_us": [], "failure": None, **past}
    return {"fragments": {fragment: {"policy": "batching", "updates": 0, "reasons": {}, "backfill": told}}}


def shown(what: Any) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(what)
    return console.export_text()


@pytest.mark.parametrize(("read", "state"), [(12, "reading its past"), (40, "running")])
def test_a_view_says_how_far_its_past_is_read_at_every_site(tmp_path: Path, read: int, state: str) -> None:
    project = write_project(tmp_path / "p")
    (fragment,) = Deployment.load(project.folder).deployed.sharing.fragments
    lost = [[START_OF_TIME_US + 1, 60_000_000]]
    for site, told in (("a", {"read_batches": read}), ("b", {"read_batches": 40, "lost_us": lost, "failure": "why"})):
        project.site_folder(site).mkdir(parents=True)
        write_status(project.site_folder(site), status_of(fragment, **told))
    (query,) = describe_queries(project)
    assert query["state"] == state
    assert [(p["site"], p["read_batches"]) for p in query["past"]] == [("a", read), ("b", 40)]
    text = shown(_render({"queries": [query]}))
    assert f"pages has read of its past at a: {read} of 40 batches, 3,000 records" in text
    assert "it fails on a batch of its past: why" in text
    assert "it cannot have all of the beginning to 1970-01-01 00:01:00" in text


def test_the_status_of_a_site_names_the_fragments_that_read_their_past() -> None:
    status = {"sites": {"a": {"rows": 0, **status_of("hits_1")}}, "center": None}
    assert "a: hits_1 reads its past, 12 of 40 batches" in shown(status_table(status))
    over = {"sites": {"a": {"rows": 0, **status_of("hits_1", read_batches=40)}}, "center": None}
    assert "reads its past" not in shown(status_table(over))
