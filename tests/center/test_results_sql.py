"""SQL over results: what a statement sees, what it may not reach, and bounds at the confidence of the reader."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from catchment.center.results.read import read_results
from catchment.center.results.sql import SqlLimits, query_results
from catchment.center.statuses import ON_TIME
from catchment.errors import QueryError
from catchment.quality.merge_sites import ColumnLateness, Lateness
from tests.worlds.result_tables import (
    COUNTRY,
    NUMBERS,
    SKETCHES,
    make_tables,
    publish,
)
from tests.worlds.waiting import PATIENCE_S


@pytest.fixture
def queried(tmp_path: Path) -> Path:
    tables = make_tables(tmp_path)
    tables.publish(1, [publish(tables, 0, [("nl", 200, 5), ("de", 200, 1)])])
    tables.publish(2, [publish(tables, 0, [("nl", 200, 9)], revision=2)])
    return tmp_path


def test_sql_sees_the_latest_revisions_under_the_name_of_the_view(queried: Path) -> None:
    assert query_results(queried, "SELECT country, total FROM q ORDER BY total").to_pylist() == [
        {"country": "de", "total": 1},
        {"country": "nl", "total": 9},
    ]
    assert query_results(queried, "SELECT count(*) AS n FROM Q__Revisions;").to_pylist() == [{"n": 3}]
    sums = query_results(
        queried, f"SELECT sum(total) AS s, sum(total) * {10**20} AS large, sum(NULL::INT) AS none FROM q"
    )
    assert sums.to_pylist() == [{"s": 10, "large": 10**21, "none": None}]
    assert sums.schema.field("s").type == pa.int64(), "DuckDB sums integers in 128 bits"
    assert query_results(queried, "WITH t AS (SELECT 1 AS one) SELECT one FROM t").to_pylist() == [{"one": 1}]


@pytest.mark.parametrize(
    "statement",
    [
        "SELEC 1",
        "SELECT * FROM nowhere",
        "SELECT nothing FROM q",
        "",
        "-- only a remark",
        "CREATE TABLE t (a INT)",
        "SELECT 1; SELECT 2",
        "DROP VIEW q",
        "SELECT * FROM names",
        "SELECT * FROM session",
    ],
)
def test_sql_that_is_not_one_select_over_the_views_is_a_mistake_that_names_them(queried: Path, statement: str) -> None:
    with pytest.raises(QueryError) as caught:
        query_results(queried, statement)
    assert caught.value.message
    assert caught.value.hint is not None
    assert "q" in caught.value.hint


def test_sql_reads_nothing_but_the_views(queried: Path) -> None:
    secret = queried / "secret.csv"
    secret.write_text("a\n1\n")
    for statement in (f"SELECT * FROM '{secret}'", f"COPY (SELECT 1) TO '{queried / 'out.csv'}'"):
        with pytest.raises(QueryError):
            query_results(queried, statement)
    assert not (queried / "out.csv").exists()


def test_sql_that_takes_too_long_or_too_much_ends_with_the_limit_and_leaves_no_file(
    queried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    limits = SqlLimits(memory_bytes=50_000_000, time_s=0.2)
    endless = "SELECT count(*) AS n FROM range(1000000000) a, range(1000000) b"
    with pytest.raises(QueryError, match=r"no answer within 0\.2 s"):
        query_results(queried, endless, limits)
    patient = SqlLimits(memory_bytes=50_000_000, time_s=PATIENCE_S)
    sorted_pairs = "SELECT a.range, b.range AS b FROM range(1000000) a, range(1000) b ORDER BY 1, 2"
    for statement in (sorted_pairs, "SELECT * FROM range(1000000000)"):
        with pytest.raises(QueryError, match="more than 50 MB of memory"):
            query_results(queried, statement, patient)
    assert list(here.iterdir()) == []


# --- the reader's confidence ---------------------------------------------------------------------------------------


@pytest.fixture
def estimated(tmp_path: Path) -> Path:
    """A view with a sketch whose last window may lack records."""
    tables = make_tables(tmp_path, (COUNTRY,), (*NUMBERS, SKETCHES[0]))
    late = Lateness(5.0, 20.0, (ColumnLateness("total", 0.1, 10.0),))
    tables.publish(1, [publish(tables, 0, [("nl", 200, v) for v in range(20)])])
    tables.publish(
        2, [publish(tables, 1, [("nl", 200, v) for v in range(20)], status=ON_TIME, coverage=0.8, late=late)]
    )
    return tmp_path


def test_a_reader_has_the_bound_at_another_confidence(estimated: Path) -> None:
    asked = "SELECT bound.users AS own, confidence(users, 0.5) AS low, confidence(users, 0.99) AS high FROM q"
    asked = f"{asked} ORDER BY window_start"
    whole, lacking = query_results(estimated, asked).to_pylist()
    assert 0 < whole["low"] < whole["own"] < whole["high"] < 0.1
    assert whole["own"] < lacking["own"], "more values may come"
    assert lacking["high"] is None, "what is late is known at the view's confidence"
    counts = "SELECT confidence(t.n, 0.9) AS n, confidence(total, 0.9) AS total FROM q AS t ORDER BY t.window_start"
    exact, late = query_results(estimated, counts).to_pylist()
    assert exact == {"n": 0.0, "total": 0.0}
    assert late["n"] == pytest.approx(5 / 25)
    assert late["total"] == pytest.approx(10 / (190 + 10))


def test_the_terms_of_bounds_are_shown_to_nobody_who_does_not_ask(estimated: Path) -> None:
    assert "bound_terms" not in query_results(estimated, "SELECT * FROM q").column_names
    assert "bound_terms" not in read_results(estimated, "q").column_names


@pytest.mark.parametrize("call", ["confidence(n, 2)", "confidence(n)", "confidence(1, 0.9)", "confidence(nobody, 0.9)"])
def test_a_confidence_that_is_none_is_refused(estimated: Path, call: str) -> None:
    with pytest.raises(QueryError):
        query_results(estimated, f"SELECT {call} FROM q")
