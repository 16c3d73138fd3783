"""The vectorised evaluator against Spark itself: expressions value by value, and whole micro-batches event by event.

Catches: a translated expression that means something else in Spark, for any of the odd values below; a pass over files
that takes, counts, quarantines or writes other records than Spark SQL does. Cannot catch: aggregates whose two forms
differ; `test_aggregates.py` does.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.aggregates import partials
from catchment.errors import CatchmentError
from catchment.query.fragment import SLICE_COLUMN
from catchment.site.events import Absorbed, Observed
from catchment.timeline import ManualClock
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.expressions import VectorExpression
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.scan_ahead import ScanAhead
from catchment.vectorised.translate import translate
from tests.worlds.one_site import open_site, read_once
from tests.worlds.tiers import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from catchment.spark.pipelines.micro_batch import ReducedBatch
    from catchment.spark.pipelines.scanning import ScannedFiles

pytestmark = pytest.mark.spark

UTC = dt.UTC
ODD: dict[str, tuple[pa.DataType, list[Any]]] = {
    "t": (pa.int8(), [None, 0, 1, -1, 127, -128]),
    "i": (pa.int32(), [None, 0, 1, -7, 2**31 - 1, -(2**31)]),
    "j": (pa.int32(), [None, 0, 3, -2, 1000]),
    "a": (pa.int64(), [None, 0, 1, -3, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "b": (pa.int64(), [None, 0, 2, -5, 10**6]),
    "x": (pa.float64(), [None, 0.0, -0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 5e-324, 1e308, 0.1]),
    "y": (pa.float64(), [None, 0.0, 2.0, -0.75, math.nan, 1e15]),
    "f": (pa.float32(), [None, 0.0, -0.0, 0.1, math.nan, 3e38]),
    "p": (pa.string(), [None, "", "a", "ab", "B", " pad ", "ä", "日本", "a\0", "%", "true"]),
    "q": (pa.string(), [None, "", "ab", "xa", "é b"]),
    "c": (pa.bool_(), [None, True, False]),
    "d": (pa.date32(), [None, dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(1600, 2, 29)]),
    "u": (
        pa.timestamp("us", "UTC"),
        [
            None,
            dt.datetime(1970, 1, 1, tzinfo=UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            dt.datetime(2024, 2, 29, 12, 34, 56, 789, UTC),
            dt.datetime(1650, 7, 1, 1, 2, 3, tzinfo=UTC),
        ],
    ),
    "m": (pa.decimal128(10, 2), [None, Decimal("0.00"), Decimal("1.50"), Decimal("-99999999.99")]),
    "n": (pa.decimal128(30, 6), [None, Decimal("0.000001"), Decimal("-123456789012345678901234.567891")]),
}
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in ODD.items()])
# Each form that is translated, at least once.
FORMS = """
a = b; a <> b; a < b; a <= j; i > a; t >= i; a <=> b; x = y; x < y; x <= y; x > y; x >= y; x <> y; x <=> y; f = f;
f < f; x = f; x > 0.5; x < 1; a < x; a = x; x >= -1.5; i <> 3; p = q; p < q; p >= 'ab'; c = TRUE; d < d;
d = DATE '2024-02-29'; u >= TIMESTAMP '1970-01-01 00:00:00'; u < '2024-02-29 12:34:56.000789'; u > '2024-01-01';
d >= '1970-01-01'; m = m; m > 1; m <= 1.5; n > 0.000001; m < x; u <> u; c <=> NULL; a <=> NULL; c AND a > 0;
c OR x > 0; NOT c; NOT (c AND a > 0) OR p = 'a'; c AND NULL; NULL OR c; a IS NULL; p IS NOT NULL; b IN (0, 2, 7);
NOT b IN (0, 2); p IN ('a', 'ä'); x IN (0.0D, 1.5D); j IN (3); b BETWEEN -5 AND 2; NOT x BETWEEN 0 AND 2;
p BETWEEN 'a' AND 'b'; p LIKE 'a%'; p LIKE '%b'; q LIKE '%b%'; p LIKE 'ab'; NOT p LIKE 'a%'; b + j; b - 1; j * 3;
b * j; x + y; x - y; x * 2; y * b; f + 1.5D; f * f; -b; -x; -y; abs(j); abs(x); -1.5;
CASE WHEN b <> 0 THEN j / b END; y / 2.0D; x / 3; j / 4; b DIV 3; b DIV -3; CASE WHEN j <> 0 THEN b DIV j END;
b % 3; CASE WHEN j <> 0 THEN b % j END; sqrt(x); isnan(x); isnan(f); CASE WHEN abs(y) < 1000 THEN floor(y) END;
CASE WHEN abs(y) < 1000 THEN ceil(y) END; CASE WHEN abs(x) < 9 THEN CAST(x AS BIGINT) ELSE -1 END;
CASE WHEN abs(x) < 9 THEN CAST(x AS INT) END; CAST(t AS BIGINT); CAST(j AS SMALLINT); CAST(a AS DOUBLE);
CAST(a AS FLOAT); CAST(x AS FLOAT); CAST(f AS DOUBLE); CAST(m AS DOUBLE); CAST(n AS DOUBLE);
CAST(m AS DECIMAL(20, 4)); CAST(a AS STRING); CAST(c AS STRING); CAST(c AS BIGINT); CAST(u AS DATE);
CAST(d AS TIMESTAMP); CAST(1.25 AS DOUBLE); CASE WHEN c THEN a WHEN b > 0 THEN j ELSE -1 END;
CASE WHEN c THEN x ELSE b END; CASE b WHEN 0 THEN 'zero' ELSE p END; IF(c, a, b); IF(x > 0, 'up', NULL);
coalesce(b, j, 0); coalesce(x, 0.0D); coalesce(p, 'none'); nullif(b, 2); nvl(j, 7); length(p); trim(p);
concat(p, '-', q); p || q; substring(p, 1, 1); substring(p, 2, 3); CASE WHEN p < 'b' THEN upper(p) END;
CASE WHEN p < 'b' THEN lower(p) END; startswith(p, 'a'); endswith(p, 'b'); contains(q, 'a'); hour(u); minute(u);
second(u); year(u); month(u); day(u); year(d); month(d); day(d); to_date(u); date_trunc('SECOND', u);
date_trunc('MINUTE', u); date_trunc('HOUR', u); date_trunc('DAY', u); unix_micros(u); unix_millis(u);
unix_seconds(u);
greatest(a, b); least(a, b, j); greatest(x, y); least(x, y, 0.5D); greatest(p, q); least(p, 'b'); greatest(u, u);
least(d, DATE '1970-01-01'); greatest(x, b); greatest(m, m); CASE WHEN y <> 0 THEN x % y END;
x % 3; pmod(b, 3); pmod(b, -3); pmod(i, 7); CASE WHEN j <> 0 THEN pmod(b, j) END;
round(x); round(x, 2); round(y, 1); round(j); round(b, 3); round(x, 15); ltrim(p); rtrim(p); left(p, 1); left(p, 0);
right(p, 1); right(p, 2); right(p, -1); substring(p, 2); replace(p, 'a', 'xyz'); replace(p, 'ab'); replace(q, ' ', '');
concat_ws('-', p, q); concat_ws('', p, 'x', q); reverse(p); p LIKE 'a_'; p LIKE '%a%b%'; p LIKE '_'; p LIKE '%';
p LIKE ''; NOT q LIKE '_a'; p LIKE '%_%'; CASE WHEN p < 'b' THEN p ILIKE 'A%' END;
CASE WHEN p < 'b' THEN p ILIKE '_B' END; quarter(u); dayofweek(u); weekday(u); dayofyear(u); weekofyear(u); quarter(d);
dayofweek(d); weekday(d); dayofyear(d); weekofyear(d); date_add(d, 3); date_sub(d, 40); date_add(u, -1); datediff(d, u);
date_trunc('WEEK', u); date_trunc('MONTH', u); date_trunc('QUARTER', u); date_trunc('YEAR', u); trunc(d, 'MM');
trunc(d, 'week'); trunc(d, 'QUARTER'); trunc(d, 'YYYY'); trunc(u, 'year'); extract(HOUR FROM u); extract(YEAR FROM d);
extract(DOW FROM u); extract(WEEK FROM d); date_part('minute', u); date_part('doy', d); nvl2(b, j, 7); nvl2(p, 'k', q);
isnull(a); isnotnull(p); equal_null(a, b); equal_null(x, y); nanvl(x, y); c IS TRUE; c IS NOT FALSE; (a > 0) IS FALSE;
sign(x); sign(y); sign(b); a & b; a | b; i ^ j; ~a; ~t; b & 7; timestamp_seconds(j); timestamp_millis(b);
timestamp_micros(b); octet_length(p);
"""


def odd_table(rows: int) -> pa.Table:
    chance = random.Random(5)
    columns = {}
    for name, (type_, values) in ODD.items():
        chosen = [values[row] if row < len(values) else chance.choice(values) for row in range(rows)]
        columns[name] = pa.array(chosen, type_)
    return pa.table(columns, schema=SCHEMA)


def bits(value: object) -> object:
    """Return a value in a form in which equal means equal in every bit, but for the bits of NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    return value


def listed_forms() -> list[str]:
    return [form.strip() for form in FORMS.split(";") if form.strip()]


def check_against_spark(spark: SparkSession, forms: dict[str, VectorExpression]) -> None:
    """Compare the values of expressions over the odd values with those of Spark."""
    table = odd_table(300)
    records = RecordColumns({name: table[name].combine_chunks() for name in table.column_names}, table.num_rows)
    mine = {form: expression.evaluate(records) for form, expression in forms.items()}
    names = {form: f"v{number}" for number, form in enumerate(mine)}
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    frame = spark.createDataFrame(numbered).coalesce(1).alias("s")
    found = frame.selectExpr("row", *(f"{form} AS {name}" for form, name in names.items())).toArrow().sort_by("row")
    for form, values in mine.items():
        theirs = found[names[form]].combine_chunks()
        assert values.type == theirs.type, (form, values.type, theirs.type)
        for row, (one, other) in enumerate(zip(values.to_pylist(), theirs.to_pylist(), strict=True)):
            assert bits(one) == bits(other), (form, one, other, numbered.slice(row, 1).to_pylist())


def test_every_translated_form_has_the_values_of_spark(spark: SparkSession) -> None:
    check_against_spark(spark, {form: translate(form, "s", SCHEMA) for form in listed_forms()})


def test_rounding_is_that_of_spark_at_and_beside_every_half(spark: SparkSession) -> None:
    """The halves of decimal digits are no halves of doubles: most lie a little above or below."""
    chance = random.Random(3)
    halves = [chance.randrange(-(10**9), 10**9) * 10.0**-places for places in range(1, 9) for _ in range(examples(400))]
    halves += [round(chance.randrange(10**6) / 1000 + 0.0005, 4) for _ in range(examples(1000))]
    numbers = [*halves, *(math.nextafter(n, math.inf) for n in halves), *(math.nextafter(n, 0) for n in halves)]
    numbers += [chance.uniform(-1, 1) * 10.0 ** chance.randrange(-20, 25) for _ in range(examples(1000))]
    table = pa.table({"x": pa.array(numbers, pa.float64()), "row": pa.array(range(len(numbers)))})
    records = RecordColumns({"x": table["x"].combine_chunks()}, len(numbers))
    forms = [f"round(x, {digits})" for digits in range(10)]
    frame = spark.createDataFrame(table).coalesce(1).alias("s")
    found = frame.selectExpr("row", *(f"{form} AS r{n}" for n, form in enumerate(forms))).toArrow().sort_by("row")
    for number, form in enumerate(forms):
        mine = translate(form, "s", pa.schema([("x", pa.float64())])).evaluate(records).to_pylist()
        for one, other, given in zip(mine, found[f"r{number}"].to_pylist(), numbers, strict=True):
            assert bits(one) == bits(other), (form, given, one, other)


NUMBERS = ("a", "b", "i", "j", "t", "x", "y", "f", "m", "0", "1", "-3", "0.5", "2.0D", "3L")


def random_number(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(NUMBERS)
    one, other = (random_number(chance, depth - 1) for _ in range(2))
    calls = ["coalesce", "nullif", "greatest", "least", "pmod", "round", "sign"]
    form = chance.choice(["+", "-", "*", "/", "DIV", "%", "&", "|", "case", "if", "cast", "neg", "abs", *calls])
    if form in ("case", "if"):
        condition = random_condition(chance, depth - 1)
        return (
            f"CASE WHEN {condition} THEN {one} ELSE {other} END"
            if form == "case"
            else f"IF({condition}, {one}, {other})"
        )
    if form in ("round", "sign"):
        return f"{form}({one})"
    if form in calls:
        return f"{form}({one}, {other})"
    if form == "cast":
        return f"CAST({one} AS {chance.choice(['BIGINT', 'INT', 'DOUBLE', 'FLOAT'])})"
    return f"{ {'neg': '-', 'abs': 'abs'}[form] }({one})" if form in ("neg", "abs") else f"({one}) {form} ({other})"


def random_condition(chance: random.Random, depth: int) -> str:
    if depth <= 0:
        return chance.choice(
            ["c", "p = 'a'", "x > 0", "b <> 0", "j IS NULL", "p LIKE '%a'", "a < 10", "u > '2000-01-01'"]
        )
    form = chance.choice(["AND", "OR", "NOT", "=", "<", "<=", "<=>", "<>", "BETWEEN", "IS NULL"])
    if form in ("AND", "OR"):
        return f"({random_condition(chance, depth - 1)}) {form} ({random_condition(chance, depth - 1)})"
    if form == "NOT":
        return f"NOT ({random_condition(chance, depth - 1)})"
    one, other, third = (random_number(chance, depth - 1) for _ in range(3))
    if form == "IS NULL":
        return f"({one}) IS NULL"
    return f"({one}) BETWEEN ({other}) AND ({third})" if form == "BETWEEN" else f"({one}) {form} ({other})"


def test_random_expressions_that_are_computed_here_have_the_values_of_spark(spark: SparkSession) -> None:
    """What is not translated, or is an error for some record, is left to Spark and not compared."""
    chance = random.Random(11)
    table = odd_table(300)
    records = RecordColumns({name: table[name].combine_chunks() for name in table.column_names}, table.num_rows)
    forms: dict[str, VectorExpression] = {}
    while len(forms) < examples(150):
        form = (random_number if chance.random() < 0.6 else random_condition)(chance, 3)
        try:
            expression = translate(form, "s", SCHEMA)
            expression.evaluate(records)
        except (NotVectorisedError, pa.ArrowException, CatchmentError):
            continue
        if expression.reads:
            forms[form] = expression
    check_against_spark(spark, forms)


# --- whole micro-batches ------------------------------------------------------------------------------------------

SQL = """
CREATE STREAM hits (ts TIMESTAMP, page STRING, device INT, ms DOUBLE, bytes BIGINT, cost DECIMAL(10, 2), ok BOOLEAN)
  WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data', format = 'parquet', source = 'device',
        history = {history});
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, page, count(*) AS n, sum(ms) AS ms, sum(cost) AS cost, max(bytes) AS most, avg(bytes) AS mean
  FROM hits GROUP BY window(ts, '10 seconds'), page;
CREATE MATERIALIZED VIEW sliding AS
  SELECT window.start, ms AS ms, count(bytes) AS n, min(page) AS first, stddev_samp(ms) AS spread
  FROM hits WHERE ok AND bytes % 3 <> 1 GROUP BY window(ts, '20 seconds', '5 seconds'), ms;
CREATE MATERIALIZED VIEW sketches AS
  SELECT window.start, CASE WHEN bytes > 500 THEN 'large' ELSE 'small' END AS size,
         approx_count_distinct(page) AS pages, approx_percentile(ms, 0.5) AS median, approx_top_k(page, 3) AS top,
         last(page) AS newest, max_by(device, bytes) AS largest,
         corr(CAST(bytes AS DOUBLE), CAST(device AS DOUBLE)) AS r,
         approx_top_k(page, 2) FILTER (WHERE ok) AS good_top, count(*) FILTER (WHERE NOT ok) AS failed
  FROM hits GROUP BY window(ts, '10 seconds'), CASE WHEN bytes > 500 THEN 'large' ELSE 'small' END;
CREATE MATERIALIZED VIEW watched WITH (max_error = 0.05) AS
  SELECT window.start, sum(ms) AS ms FROM hits WHERE bytes IS NOT NULL GROUP BY window(ts, '10 seconds');
CREATE MATERIALIZED VIEW left_to_spark AS
  SELECT window.start, md5(page) AS page, count(*) AS n FROM hits GROUP BY window(ts, '10 seconds'), md5(page);
"""
START = dt.datetime(2026, 3, 1, tzinfo=UTC)


def hits(rows: int, seed: int, bad: int) -> pa.Table:
    """Records with odd values; some have no event time, or one of another century."""
    chance = np.random.default_rng(seed)
    times: list[dt.datetime | None] = [
        START + dt.timedelta(microseconds=int(us))
        for us in chance.integers(seed * 20_000_000, (seed + 2) * 20_000_000, rows)
    ]
    for row in range(bad):
        times[row * 7 % rows] = None if row % 2 else dt.datetime(2099, 1, 1 + seed, tzinfo=UTC)
    some = chance.random(rows)
    ms = np.round(chance.lognormal(1, 1, rows), 1)
    numbers = [
        math.nan if s < 0.02 else -0.0 if s < 0.04 else 0.0 if s < 0.06 else float(v)
        for s, v in zip(some, ms, strict=True)
    ]
    return pa.table(
        {
            "bytes": pa.array(
                [None if s > 0.97 else int(v) for s, v in zip(some, chance.integers(0, 1000, rows), strict=True)]
            ),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "page": [
                None if s > 0.99 else f"/{int(k)}" for s, k in zip(some, chance.integers(0, 12, rows), strict=True)
            ],
            "device": pa.array(
                [None if s < 0.01 else int(d) for s, d in zip(some, chance.integers(0, 4, rows), strict=True)],
                pa.int32(),
            ),
            "ms": pa.array([None if 0.5 < s < 0.52 else n for s, n in zip(some, numbers, strict=True)], pa.float64()),
            "cost": pa.array([Decimal(int(v)) / 100 for v in chance.integers(-999, 999, rows)], pa.decimal128(10, 2)),
            "ok": pa.array([None if 0.6 < s < 0.65 else bool(s < 0.8) for s in some]),
            "undeclared": ["x"] * rows,
        }
    )


def reduce_files(
    spark: SparkSession, folder: Path, data: Path, evaluator: str, history: bool
) -> tuple[list[ReducedBatch], Path]:
    """Return what a site reduces the files to, and its folder."""
    from catchment.spark.pipelines.scanning import ScanningReducer

    clock = ManualClock(int((START + dt.timedelta(minutes=5)).timestamp() * 1e6))
    pipeline = open_site(spark, folder, data, SQL.format(history=str(history).lower()), evaluator, clock)
    reduced = []
    reduce = pipeline.scanning.reduce

    def record(*given: Any) -> ReducedBatch:
        found = reduce(*given)
        reduced.append(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScanningReducer, "reduce", lambda self, *given: record(*given))
        read_once(pipeline)
    return reduced, pipeline.folder


def lowered(event: Absorbed, fragments: dict[str, Any]) -> dict[Any, Any]:
    fragment = fragments[event.fragment]
    keys = [SLICE_COLUMN, *fragment.key_names]
    rows = partials.lower(event.partials, keys, fragment.aggregates).to_pylist()
    return {tuple(bits(row[k]) for k in keys): {k: v for k, v in row.items() if k not in keys} for row in rows}


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; sums of doubles may differ in their last bits."""
    if isinstance(one, float) and isinstance(other, float):
        return bits(one) == bits(other) or one == pytest.approx(other, rel=1e-12)
    return bool(one == other)


@pytest.mark.parametrize("history", [True, False])
def test_a_pass_over_files_finds_what_spark_sql_finds(spark: SparkSession, tmp_path: Path, history: bool) -> None:
    from catchment.deploy.deployment import Deployment

    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        bad = 5 if number else 0
        pq.write_table(hits(1500, number, bad), data / f"{number}.parquet", row_group_size=400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("catchment.spark.pipelines.reading.MAX_FILES_PER_BATCH", 2)
        # Processes scan the first batch; where there is history, the second one too, which then is scanned ahead.
        patch.setattr("catchment.spark.evaluation.file_scan.SMALL_BYTES", 10_000 if history else 45_000)
        taken: list[bool] = []
        take: Any = ScanAhead.take
        patch.setattr(ScanAhead, "take", lambda self, *given: note_taken(taken, take(self, *given)))
        mine, scanned = reduce_files(spark, tmp_path / "scan", data, "vectorised", history)
        theirs, native = reduce_files(spark, tmp_path / "native", data, "native", history)
    assert len(mine) == len(theirs) == 2
    assert taken == [True, history]
    fragments = {p.fragment.name: p.fragment for p in Deployment.load(tmp_path / "scan").fragments_at("edge")}
    for one, other in zip(mine, theirs, strict=True):
        assert one.stats == other.stats
        assert one.stats.bad > 0
        assert one.times == other.times
        partials_of = {e.fragment: e for e in one.events if isinstance(e, Absorbed)}
        assert partials_of.keys() == fragments.keys()
        for event in (e for e in other.events if isinstance(e, Absorbed)):
            found, expected = lowered(partials_of[event.fragment], fragments), lowered(event, fragments)
            assert found.keys() == expected.keys()
            for key, row in expected.items():
                assert all(is_same(found[key][name], value) for name, value in row.items()), (key, row, found[key])
            assert partials_of[event.fragment].records == event.records
        watched = [[e for e in batch.events if isinstance(e, Observed)] for batch in (one, other)]
        assert len(watched[0]) == len(watched[1]) == 1
        for here, there in zip(*watched, strict=True):
            columns = [sorted(e.table.to_pylist(), key=lambda r: (r["source"], r["slice_us"])) for e in (here, there)]
            assert here.table.schema.names == there.table.schema.names
            assert all(is_same(a[c], b[c]) for a, b in zip(*columns, strict=True) for c in a)
    assert kept(spark, scanned / "quarantine" / "hits") == kept(spark, native / "quarantine" / "hits")
    if history:
        assert kept(spark, scanned / "history" / "hits") == kept(spark, native / "history" / "hits")
        assert not list((scanned / "history" / "hits").glob("_*"))
        numbers = spark.read.parquet(str(scanned / "history" / "hits")).select("batch", "_row").collect()
        assert len(set(numbers)) == len(numbers)


def note_taken(taken: list[bool], found: ScannedFiles | None) -> ScannedFiles | None:
    taken.append(found is not None)
    return found


def kept(spark: SparkSession, folder: Path) -> Counter[str]:
    """Return the records on disk as texts, without what differs between two runs."""
    rows = spark.read.parquet(str(folder)).drop("_row", "quarantined_at").collect()
    return Counter(repr(sorted(row.asDict().items(), key=lambda item: item[0])) for row in rows)
