"""Whether the answers of the views of `tests.worlds.projects` are those of their records, computed by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from catchment.center.results.read import read_results, read_windows
from tests.worlds.projects import expected_numbers, expected_sections, group


def check_answers(state: Path, records: list[dict[str, Any]]) -> None:
    """Check all views."""
    check_numbers(state, records)
    check_sketches(state, records)
    found = {
        (r["start"], r["section"]): (r["bytes_per_hit"], r["slow"]) for r in read_results(state, "sections").to_pylist()
    }
    assert found == expected_sections(records)


def check_numbers(state: Path, records: list[dict[str, Any]]) -> None:
    rows = read_results(state, "numbers").to_pylist()
    expected = expected_numbers(records)
    assert {(r["start"], r["page"]) for r in rows} == set(expected)
    assert len(rows) == len(expected), "no row twice"
    for row in rows:
        wanted = expected[row["start"], row["page"]]
        assert {c: row[c] for c in ("n", "bytes", "low", "high")} == {
            c: wanted[c] for c in ("n", "bytes", "low", "high")
        }
        assert row["total"] == pytest.approx(wanted["total"], rel=1e-12, abs=0)
        assert row["mean"] == pytest.approx(wanted["mean"], rel=1e-12, abs=0)
        for name in ("variance", "spread", "moments"):
            same = wanted[name] if wanted[name] is None else pytest.approx(wanted[name], rel=1e-9, abs=1e-12)
            assert row[name] == same, name
        assert row["window_end"] - row["window_start"] == timedelta(minutes=1)


def check_sketches(state: Path, records: list[dict[str, Any]]) -> None:
    rows = read_results(state, "sketches").to_pylist()
    groups = {start: rows for (start, _), rows in group(records, 180, 60, None).items()}
    assert {r["start"] for r in rows} == set(groups)
    for row in rows:
        mine = groups[row["start"]]
        users = len({r["user"] for r in mine})
        assert abs(row["users"] - users) <= max(2, row["bound"]["users"] * users * 2)
        ranked = sorted(r["ms"] for r in mine)
        below = sum(x <= row["median"] for x in ranked) / len(ranked)
        assert abs(below - 0.5) < 0.05  # KLL with k = 200: 1.65% rank error, and ties
        exact = {p: sum(r["page"] == p for r in mine) for p in {r["page"] for r in mine}}
        best = sorted(exact.items(), key=lambda item: (-item[1], item[0]))[:2]
        assert [(t["item"], t["count"]) for t in row["top"]] == best, "few items: the sketch counts them exactly"


def check_published_once(state: Path) -> None:
    """No revision of a row of `numbers` was written twice."""
    everything = read_results(state, "numbers", revisions="all").to_pylist()
    published = [(r["window_start"], r["page"], r["revision"]) for r in everything]
    assert len(published) == len(set(published))


def check_final(state: Path) -> None:
    """The last word on every window of `numbers` is that it will not change."""
    statuses = {w["window_start"]: w["status"] for w in read_windows(state, "numbers").to_pylist()}
    assert set(statuses.values()) == {"final"}
