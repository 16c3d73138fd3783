"""Results that are kept, and the tables of the documentation that are made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Group
from rich.table import Table

from benchmarks import report
from catchment.errors import ConfigError


def result(commit: str, measured_at: str, rows: int = 1) -> dict[str, Any]:
    return {"benchmark": "bounds", "commit": commit, "machine": "2 cores", "measured_at": measured_at, "rows": rows}


def test_the_newest_result_is_the_one_measured_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.keep_result(result("b", "2026-01-02T00:00:00+00:00", 2))
    report.keep_result(result("a", "2026-01-03T00:00:00+00:00", 3))
    report.keep_result(result("c", "2026-01-01T00:00:00+00:00", 1))
    assert report.newest_result("bounds")["rows"] == 3
    with pytest.raises(ConfigError, match="no result of the benchmark 'edge' is kept"):
        report.newest_result("edge")


def test_what_a_benchmark_prints_becomes_markdown() -> None:
    table = Table(title="rows per second")
    table.add_column("who")
    table.add_column("rows", justify="right")
    table.add_row("a|b", "[bold]1[/bold]")
    table.add_row("c", "2")
    text = "\n".join(report.markdown_of(Group("seen once", table)))
    assert text.splitlines() == [
        "seen once",
        "",
        "**rows per second**",
        "",
        "| who | rows |",
        "|---|---|",
        "| a\\|b | 1 |",
        "| c | 2 |",
    ]


def test_pages_show_what_the_kept_results_say() -> None:
    assert report.update_pages(write=False) == [], "run `catchment bench report`"
