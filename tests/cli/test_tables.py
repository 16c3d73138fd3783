"""Tables and lines for people: cells, times and sizes as they are read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from catchment.cli import output
from catchment.cli.progress import status_table
from catchment.cli.tables import cell, plain_table, result_table

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (123456.7, "123,457"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ("[red]x", "[red]x"),
        (b"\x01\xff", "01ff"),
        ([{"item": "a", "count": 1200}, {"item": None, "count": 1}], "a:1,200 -:1"),
        ({"item": 9876, "count": 5}, "9876:5"),
        ([1.5, 2], "1.5 2"),
        ({"lat": 1, "lon": 2.5}, "lat 1, lon 2.5"),
    ],
)
def test_cells_are_written_as_people_read_them(value: Any, shown: str) -> None:
    assert cell(value) == shown


def rendered(table: Any) -> str:
    with output.console.capture() as captured:
        output.console.print(table)
    return captured.get()


def test_times_are_no_finer_than_they_need_to_be_and_a_common_date_stands_above_them() -> None:
    from datetime import UTC, datetime

    first, later = datetime(2024, 3, 1, 2, 0, tzinfo=UTC), datetime(2024, 3, 2, 2, 0, 30, tzinfo=UTC)
    one_day = rendered(plain_table([{"at": first}, {"at": None}], "t"))
    assert re.search(r"at\s+2024-03-01\s+─+\s+02:00\s+-\s", one_day)
    two_days = rendered(plain_table([{"at": first}, {"at": later}], "t"))
    assert "2024-03-01 02:00:00" in two_days
    assert "2024-03-02 02:00:30" in two_days


def test_a_column_that_happens_to_equal_the_window_in_one_row_is_still_shown() -> None:
    from datetime import UTC, datetime, timedelta

    start = datetime(2024, 3, 1, tzinfo=UTC)
    meta = {
        "window_end": start + timedelta(minutes=1),
        "bound": {},
        "published_at": start,
        "missing_sites": [],
        "revision": 1,
        "coverage": 1.0,
        "status": "exact",
    }
    rows = [
        {"window_start": start, "start": start, "first": start, **meta},
        {"window_start": start, "start": start, "first": start + timedelta(seconds=5), **meta},
    ]
    shown = rendered(result_table(rows, "t"))
    assert "00:00:05" in shown
    assert "first" in shown
    assert not re.search(r"\bstart\b", shown)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (2.5e9, "2.5 GB"), (3e15, "3000.0 TB")],
)
def test_sizes_are_written_as_people_read_them(count: float | None, shown: str) -> None:
    from catchment.cli.progress import size

    assert size(count) == shown


def test_without_a_terminal_a_run_says_a_line_now_and_then(
    published: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.cli import progress as live

    monkeypatch.setattr(live, "LINE_EVERY_S", 0.0)
    status = {
        "sites": {"us": json.loads((published / "state" / "sites" / "us" / "status.json").read_text())},
        "center": json.loads((published / "state" / "center" / "status.json").read_text()),
    }
    with live.watching(quiet=False) as report:
        report(status)
    assert capsys.readouterr().err == (
        "us 12,345 rows (0/s), 45.7 KB sent | traffic closed up to 2017-01-01 02:25:00\n"
    )
    with live.watching(quiet=True) as report:
        report(status)
    assert capsys.readouterr().err == ""


def test_a_status_tells_for_each_sink_what_sites_send_there_and_what_is_answered() -> None:
    query = {"closed_us": 1_767_225_600_000_000, "marks_us": {"a": 1}, "open_slices": 2}
    exit_told = {"to": "hub", "connected": False, "last_error": "no answer", "bytes_sent": 2048, "queued_bytes": 512}
    site = {"rows": 5, "bytes_sent": 10, "sinks": {"tokyo": exit_told}}
    status = {
        "sites": {"a": site, "b": {"rows": 0, "bytes_sent": 0}},
        "relays": {},
        "center": None,
        "sinks": {"tokyo": {"center": {"queries": {"traffic": query}}, "relays": {}}, "far": {"center": None}},
    }
    shown = rendered(status_table(status))
    for told in ("for tokyo:", "hub", "down: no answer", "traffic", "for far:"):
        assert told in shown
    assert "for " not in rendered(status_table({**status, "sinks": {}}))
