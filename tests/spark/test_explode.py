"""Explode on Spark: partials and counts of records are those of DuckDB, which knows nothing of how Spark does it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Stream, Table
from catchment.shedding.places import history_rule
from catchment.shedding.reader_filter import ROW
from catchment.shedding.sampler import Sampler, Selection, Side
from catchment.spark.evaluation.evaluator import SparkEvaluator
from catchment.spark.evaluation.one_pass import Take
from catchment.testing.simulated.evaluate import PureEvaluator
from catchment.testing.simulated.records import ArrivingRecords
from tests.query.test_explode import BY_TAG, DECLARED, SHED, plan

pytestmark = pytest.mark.spark

RECORDS = 60
TABLE = pa.table(
    {
        "ts": pa.array([5_000_000 * n for n in range(RECORDS)], pa.timestamp("us", tz="UTC")),
        "k": [None if n == 9 else "ab c"[: n % 5] for n in range(RECORDS)],
        "tags": pa.array([None if n % 7 == 0 else [None, "a", "b", "a"][: n % 5] for n in range(RECORDS)]),
        "m": pa.array(
            [None if n % 11 == 0 else [("a", n), ("z", None)][: n % 3] for n in range(RECORDS)],
            pa.map_(pa.string(), pa.int32()),
        ),
        "x": pa.array([None if n == 4 else n % 6 for n in range(RECORDS)], pa.int32()),
    }
)
SELECTS = (
    f"SELECT window.start, tag, count(*) AS c, sum(x) AS x FROM s LATERAL VIEW explode(tags) t AS tag "
    f"WHERE x > 1 AND (tag <> 'b' OR tag IS NULL) {BY_TAG}",
    "SELECT window.start, p, tag, u.key, sum(value) AS v FROM s LATERAL VIEW OUTER posexplode(tags) t AS p, tag "
    "LATERAL VIEW explode(m) u GROUP BY window(ts, '1 minute'), p, tag, u.key",
    "SELECT window.start, name, count(*) AS c, count(x) AS n FROM (SELECT ts, x, explode_outer(tags) AS tag FROM s) e "
    "LEFT JOIN n ON e.tag = n.tag GROUP BY window(ts, '1 minute'), name",
    "SELECT window.start, part, n.tag, count(*) AS c FROM s JOIN n ON s.k = n.tag "
    "LATERAL VIEW explode(split(n.name, 'i')) p AS part GROUP BY window(ts, '1 minute'), part, n.tag",
)


@pytest.mark.parametrize("select", SELECTS)
def test_partials_and_counts_are_those_of_duckdb(tmp_path: Path, spark: SparkSession, select: str) -> None:
    (tmp_path / "n.csv").write_text("tag,name\na,first\na,again\n")
    declared = {s.name: s for s in parse_sql(DECLARED.replace("{select}", select)) if isinstance(s, Stream | Table)}
    stream, table = declared["s"], declared["n"]
    assert isinstance(stream, Stream)
    assert isinstance(table, Table)
    fragment = plan(select).fragment
    arrivals = ArrivingRecords.of(stream, "us", TABLE)
    expected, counts = PureEvaluator(tmp_path, {"n": table}).rows(arrivals, fragment).lift()
    names = spark.createDataFrame(pa.table({"tag": ["a", "a"], "name": ["first", "again"]}))
    (found,) = SparkEvaluator({"n": names}).reduce_all(spark.createDataFrame(TABLE), [Take(fragment)], RECORDS)
    assert _rows(found.table) == _rows(expected)
    assert found.records == counts
    assert sum(count for _, count in counts) <= RECORDS


def _rows(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


SUMMED = (
    f"SELECT window.start, tag, count(*) AS c, sum(x) AS x, avg(x) AS m FROM s LATERAL VIEW explode(tags) t AS tag "
    f"WHERE x > 0 OR tag IS NULL {BY_TAG}",
    "SELECT window.start, count(x) AS c, sum(x + 1) AS x FROM (SELECT ts, x, explode_outer(tags) AS tag FROM s) e "
    "LEFT JOIN n ON e.tag = n.tag GROUP BY window(ts, '1 minute')",
    "SELECT window.start, name, count(*) AS c, sum(x) AS x, avg(x) AS m FROM s LEFT JOIN n ON s.k = n.tag "
    "GROUP BY window(ts, '1 minute'), name",
)


@pytest.mark.parametrize("select", SUMMED)
def test_a_sample_takes_all_rows_of_a_record_and_has_the_terms_of_record_totals(
    tmp_path: Path, spark: SparkSession, select: str
) -> None:
    """The same records pass by numpy and by Spark SQL, and both give one state, one count and equal terms."""
    (tmp_path / "n.csv").write_text("tag,name\na,first\na,again\n")
    declared = {s.name: s for s in parse_sql(SHED.replace("{select}", select)) if isinstance(s, Stream | Table)}
    stream, table = declared["s"], declared["n"]
    assert isinstance(stream, Stream)
    assert isinstance(table, Table)
    fragment = plan(select, SHED).fragment
    rule = history_rule("s", 3)
    arrivals = ArrivingRecords.of(stream, "us", TABLE)
    numbers = pa.array(range(RECORDS), pa.int64())
    passing = rule.keep([pa.array([3] * RECORDS, pa.int64()), numbers], 0.4)
    assert 0 < passing.sum() < RECORDS
    whole = PureEvaluator(tmp_path, {"n": table}).rows(arrivals, fragment)
    names = spark.createDataFrame(pa.table({"tag": ["a", "a"], "name": ["first", "again"]}))
    records = spark.createDataFrame(TABLE.append_column(ROW, numbers))
    takes = [Take(fragment, Selection(Sampler(0.4), side)) for side in (Side.KEPT, Side.LEFT)]
    found = SparkEvaluator({"n": names}).reduce_all(records, takes, RECORDS, rule)
    for reduced, (expected, counts) in zip(
        found, (whole.of_records(passing).lift(0.4), whole.of_records(~passing).lift()), strict=True
    ):
        keys = [(name, "ascending") for name in expected.column_names[: 1 + len(fragment.keys)]]
        mine, theirs = reduced.table.sort_by(keys).to_pydict(), expected.sort_by(keys).to_pydict()
        assert mine.keys() == theirs.keys()
        for column, values in theirs.items():
            assert mine[column] == (pytest.approx(values) if "__terms" in column else values), column
        assert reduced.records == counts
