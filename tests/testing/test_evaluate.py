"""Fragments without Spark: columns that are taken as they are give what DuckDB gives.

Catches: rows, keys or values that differ where nothing is computed. Cannot catch: what Spark would compute otherwise;
tests/spark compares both.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from catchment.deploy.deployment import Deployment
from catchment.query.fragment import Fragment
from catchment.testing import ArrivingRecords
from catchment.testing.simulated import evaluate
from catchment.testing.simulated.evaluate import FragmentRows, PureEvaluator, column_of

TOML = """\
[project]
name = "taken"
center = "center"
[sites.a]
[sites.center]
[[links]]
from = "a"
to = "center"
"""
STREAM = """\
CREATE STREAM hits (ts TIMESTAMP, page STRING, ms DOUBLE, bytes BIGINT)
  WITH (event_time = 'ts', path = 'data/{site}');
"""
TIMES = pa.array([None, 1_000_000, 2_000_000, 3_000_000, 14_000_000, 15_000_000], pa.timestamp("us", tz="UTC"))
RECORDS = pa.table(
    {
        "ts": TIMES,
        "page": ["x", "a", None, "a", "b", "c"],
        "ms": [0.0, -0.0, float("nan"), None, 2.5, 0.0],
        "bytes": [1, None, 7, 9, 4, 8],
    }
)


def rows_of(fragment: Fragment, folder: Path, arrivals: ArrivingRecords) -> FragmentRows:
    return PureEvaluator(folder, {}).rows(arrivals, fragment)


@pytest.mark.parametrize("where", ["", "WHERE bytes > 5", "WHERE page <> 'c' OR bytes IS NULL"])
@pytest.mark.parametrize("keys", ["", ", page", ", page, ms"])
def test_columns_that_are_taken_as_they_are_give_what_duckdb_gives(
    where: str, keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queries").mkdir()
    (tmp_path / "catchment.toml").write_text(TOML)
    select = f"SELECT window.start{keys}, count(*) AS n, sum(bytes) AS b, max(ts) AS newest, avg(ms) AS m FROM hits"
    group = f"GROUP BY window(ts, '10 seconds'){keys}"
    (tmp_path / "queries" / "v.sql").write_text(f"{STREAM}CREATE MATERIALIZED VIEW v AS {select} {where} {group};")
    deployment = Deployment.load(tmp_path)
    arrivals = ArrivingRecords.of(deployment.catalog.streams["hits"], "a", RECORDS)
    fragment = deployment.plans[0].fragment

    taken = rows_of(fragment, tmp_path, arrivals)
    monkeypatch.setattr(evaluate, "column_of", lambda sql, stream: None)
    asked = rows_of(fragment, tmp_path, arrivals)

    assert taken.numbers.tolist() == asked.numbers.tolist()
    assert taken.table.schema.names == asked.table.schema.names
    (taken_states, taken_records), (asked_states, asked_records) = taken.lift(), asked.lift()
    assert taken_states.schema == asked_states.schema
    assert str(taken_states.to_pylist()) == str(asked_states.to_pylist())  # as text, because NaN differs from itself
    assert taken_records == asked_records


def test_only_a_column_of_the_stream_itself_is_taken_as_it_is() -> None:
    assert column_of("`hits`.`page`", "hits") == "page"
    assert column_of("page", "hits") == "page"
    others = ["`tables`.`page`", "`hits`.`place`.`town`", "upper(page)", "CAST(page AS DOUBLE)", "1"]
    assert [column_of(sql, "hits") for sql in others] == [None] * len(others)
