"""Functions that a project brings, on real Spark: vectorised and native, at sites and at the center, as plain Python.

A function that raises is that of one record: its view is suspended alone, or the record is set aside.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import catchment
from catchment.deploy.deployment import Deployment
from catchment.spark.pipelines.runner import run_deployment
from tests.worlds.own_functions import VIEW, write_project

pytestmark = pytest.mark.spark

MINUTE_S = 60
BEGIN_S = 1_767_225_600
NATIVE = '[defaults]\nevaluator = "native"\n'
LOOKED_UP = (
    "CREATE TABLE names (c DOUBLE, name STRING) WITH (path = 'names.csv', format = 'csv');\n"
    "CREATE MATERIALIZED VIEW w AS SELECT window.start, name, geometric_mean(f) AS g, count_if(above(f, 40)) AS n "
    "FROM s JOIN names ON celsius(s.f) = names.c GROUP BY window(ts, '1 minute'), name;"
)
SET_ASIDE = VIEW.replace("VIEW v AS", "VIEW v WITH (on_error = 'quarantine') AS")


def _records(site: str) -> list[dict[str, object]]:
    shift = 0 if site == "north" else 3
    return [
        {"ts": _instant(BEGIN_S + 7 * n), "k": "ab"[n % 2], "f": None if n == 5 else 20.0 + 2 * n + shift}
        for n in range(40)
    ]


def _instant(seconds: int) -> str:
    minute, second = divmod(seconds - BEGIN_S, MINUTE_S)
    return f"2026-01-01T00:{minute:02d}:{second:02d}Z"


def _write_records(folder: Path, more: list[dict[str, object]] | None = None) -> list[dict[str, object]]:
    written = []
    for site in ("north", "south"):
        (folder / "data" / site).mkdir(parents=True)
        records = _records(site) + (more if more and site == "north" else [])
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "data" / site / "records.json").write_text(lines)
        written += records
    return written


def _expected(records: list[dict[str, object]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return geometric mean and greatest temperature in Celsius per (minute, key), by plain Python."""
    groups: dict[tuple[str, str], list[float]] = {}
    for record in records:
        f = record["f"]
        if isinstance(f, float) and (f - 32.0) * 5 / 9 > 0:
            groups.setdefault((str(record["ts"])[:16], str(record["k"])), []).append(f)
    return {
        key: (math.exp(sum(map(math.log, values)) / len(values)), (max(values) - 32.0) * 5 / 9)
        for key, values in groups.items()
    }


def _answers(folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    rows = catchment.open(folder).results("v").to_arrow().to_pylist()
    return {(row["start"].strftime("%Y-%m-%dT%H:%M"), row["k"]): (row["g"], row["c"]) for row in rows}


def _same(
    found: dict[tuple[str, str], tuple[float, float]], wanted: dict[tuple[str, str], tuple[float, float]]
) -> None:
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert found[key] == pytest.approx(values, rel=1e-9), key


@pytest.mark.parametrize("evaluator", ["", NATIVE], ids=["vectorised", "native"])
def test_own_functions_answer_as_plain_python_does(tmp_path: Path, spark: SparkSession, evaluator: str) -> None:
    write_project(tmp_path, f"{VIEW}\n{LOOKED_UP}")
    (tmp_path / "names.csv").write_text("c,name\n0.0,ice\n10.0,cool\n")
    toml = tmp_path / "catchment.toml"
    toml.write_text(toml.read_text() + evaluator)
    records = _write_records(tmp_path)
    run_deployment(Deployment.load(tmp_path), once=True, spark=spark)
    _same(_answers(tmp_path), _expected(records))
    looked_up = catchment.open(tmp_path).results("w").to_arrow().to_pylist()
    found = {(row["name"], round(row["g"], 6), row["n"]) for row in looked_up}
    assert found == {("ice", 32.0, 0), ("cool", 50.0, 1)}


def test_a_record_on_which_a_function_raises_is_set_aside_alone(tmp_path: Path, spark: SparkSession) -> None:
    write_project(tmp_path, SET_ASIDE)
    bad = {"ts": _instant(BEGIN_S + 61), "k": "a", "f": -1000.0}
    records = _write_records(tmp_path, [bad])
    run_deployment(Deployment.load(tmp_path), once=True, spark=spark)
    _same(_answers(tmp_path), _expected([record for record in records if record is not bad]))


def test_a_view_is_suspended_by_a_function_that_raises_and_says_on_which_record(
    tmp_path: Path, spark: SparkSession
) -> None:
    other = "CREATE MATERIALIZED VIEW n AS SELECT window.start, count(*) AS n FROM s GROUP BY window(ts, '1 minute');"
    write_project(tmp_path, f"{VIEW}\n{other}")
    _write_records(tmp_path, [{"ts": _instant(BEGIN_S + 61), "k": "a", "f": -1000.0}])
    status = run_deployment(Deployment.load(tmp_path), once=True, spark=spark)
    told = json.dumps(status, default=str)
    assert "colder than anything" in told
    assert "-1000.0" in told
    assert sum(row["n"] for row in catchment.open(tmp_path).results("n").to_arrow().to_pylist()) == 81
