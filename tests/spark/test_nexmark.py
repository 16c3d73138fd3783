"""Nexmark's queries on Spark: two sites, late files, a restart, a wire that loses and doubles; DuckDB is the oracle.

Catches: an expression, a record or a window that differs from what DuckDB makes of the same events. Which queries are
possible, and which are not and why, is in `tests/worlds/nexmark.py`, and in `docs/reference/nexmark.md` from there.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from catchment.center.results.read import read_results, read_windows
from catchment.query.plan_nodes import COPIES
from tests.worlds.nexmark import QUERIES, TOML, NexmarkQuery, draw_events, project_sql
from tests.worlds.runs import run_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]

Events = dict[str, list[dict[str, Any]]]
# Queries that run together, so that each project stays small: `pytest -k joins` runs one of them, `-k q11` one query.
GROUPS = {
    "records": ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"),
    "windows": ("q5", "q7", "q11", "q18"),
    "days": ("q15", "q16", "q17"),
    "joins": ("q3", "q8", "q20"),
}
POSSIBLE = {q.name: q for q in QUERIES if q.is_possible}
SITES = {"person": ("a", "b"), "auction": ("b",), "bid": ("a", "b")}
SIDE_INPUT = {key: f"value {key}" for key in range(8)}


@pytest.fixture(scope="module")
def answered(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Events]:
    """A project with one group of queries that has read all events, the last of every stream in a second run.

    Returned are its folder and the events. Queries that pytest was not asked for are left out.
    """
    asked = {name for item in request.session.items for name in query_names(item)}
    folder = tmp_path_factory.mktemp("nexmark") / "project"
    (folder / "queries").mkdir(parents=True)
    (folder / "catchment.toml").write_text(TOML)
    (folder / "queries" / "all.sql").write_text(project_sql([name for name in GROUPS[request.param] if name in asked]))
    (folder / "side_input.csv").write_text("key,value\n" + "".join(f"{k},{v}\n" for k, v in SIDE_INPUT.items()))
    events = draw_events(seed=7)
    late = {stream: records[::9] for stream, records in events.items()}
    on_time = {stream: [r for i, r in enumerate(records) if i % 9] for stream, records in events.items()}
    for name, part in (("first.json", on_time), ("second.json", late)):
        for stream, records in part.items():
            write_events(folder, stream, name, records)
        run_project(spark, folder, faults=True)
    return folder, events


def query_names(item: pytest.Item) -> list[str]:
    """The name of the query that a test is about, if it is about one."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return [parameters["query"].name] if "query" in parameters else []


def write_events(folder: Path, stream: str, name: str, records: list[dict[str, Any]]) -> None:
    sites = SITES[stream]
    for number, site in enumerate(sites):
        (folder / stream / site).mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in records[number :: len(sites)])
        (folder / stream / site / name).write_text(lines)


def test_every_possible_query_is_in_one_group() -> None:
    assert Counter(name for names in GROUPS.values() for name in names) == Counter(POSSIBLE.keys())


@pytest.mark.parametrize(
    ("answered", "query"),
    [pytest.param(g, POSSIBLE[name], id=f"{g}-{name}") for g, names in GROUPS.items() for name in names],
    indirect=["answered"],
)
def test_a_query_answers_what_duckdb_answers(query: NexmarkQuery, answered: tuple[Path, Events]) -> None:
    folder, events = answered
    rows = read_results(folder / "state", query.name).to_pylist()
    expected = ask_duckdb(events, query.duckdb)
    assert expected
    names = list(expected[0])
    copies = COPIES if rows and COPIES in rows[0] and COPIES not in names else None
    assert count_rows(rows, names, copies) == count_rows(expected, names)


@pytest.mark.parametrize(
    ("answered", "query"), [("windows", POSSIBLE["q7"])], ids=["windows-q7"], indirect=["answered"]
)
def test_windows_were_revised_and_end_exact(answered: tuple[Path, Events], query: NexmarkQuery) -> None:
    log = read_windows(answered[0] / "state", query.name).to_pylist()
    newest = {row["window_start"]: row["status"] for row in log}
    assert {"exact", "final"} >= set(newest.values())
    assert max(row["revision"] for row in log) > 1, "late bids revise windows"


def ask_duckdb(events: Events, sql: str) -> list[dict[str, Any]]:
    with duckdb.connect(config={"threads": 1}) as connection:
        for stream, records in events.items():
            instants = pa.array([datetime.fromisoformat(r["ts"]).replace(tzinfo=None) for r in records])
            table = pa.Table.from_pylist(records)
            connection.register(stream, table.set_column(table.column_names.index("ts"), "ts", instants))
        side = [{"key": key, "value": value} for key, value in SIDE_INPUT.items()]
        connection.register("side_input", pa.Table.from_pylist(side))
        found: list[dict[str, Any]] = connection.sql(sql).to_arrow_table().to_pylist()
        return found


def count_rows(rows: list[dict[str, Any]], names: list[str], copies: str | None = None) -> Counter[tuple[Any, ...]]:
    """How often each row is there; numbers that are not whole are compared to twelve digits."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counts[tuple(_comparable(row[name]) for name in names)] += row[copies] if copies else 1
    return counts


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.12g}")
    return value
