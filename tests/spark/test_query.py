"""What a plan says in Spark SQL is what Spark itself makes of the view's SELECT.

The oracle is Spark running the user's SELECT as it stands. These tests catch a name resolved wrongly, an
expression changed on its way through the parser, a condition lost, a type inferred wrongly. They do not look
at partials and their merging, which the tests of the aggregates do.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from catchment.aggregates import FUNCTIONS, Aggregate
from catchment.center.results.write import REVISION_ROWS
from catchment.query.plan import QueryPlan
from catchment.query.planning.calls import resolve_inputs
from catchment.query.planning.scope import Scope, infer_type
from catchment.query.sql.dialect import read_expression, render
from catchment.query.sql.statements import VERSION_COLUMN
from catchment.query.sql.tokens import SqlText
from catchment.query.types import sql_type
from catchment.spark.evaluation.finish import make_finish
from tests.worlds.query_support import Golden, base_catalog, make_plan, read_golden

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

# Windows that the center assembles have no fragment of their own; tests/center/test_assembled.py compares them.
ASSEMBLED = ("session_window", "cumulate", "calendar_window")
CASES = [case for case in read_golden("plans.sql") if not any(word in case.sql.lower() for word in ASSEMBLED)]
# Where Spark has no such function or form, estimates in its own way, or leaves the answer to chance. Distinct values
# are compared with those of Spark in test_aggregates.py.
NOT_NATIVE = (
    "moments",
    "percentile",
    "approx",
    "INTERVAL",
    "first(",
    "LIMIT",
    "count(DISTINCT",
    "collect_set(",
    "UNNEST",
)
NATIVE_CASES = [case for case in CASES if not any(word in case.sql for word in NOT_NATIVE)]


def rows(seed: int = 7, size: int = 200) -> list[tuple[Any, ...]]:
    pick = random.Random(seed)
    start = dt.datetime(2024, 3, 1, 23, 58, tzinfo=dt.UTC)

    def maybe(value: Any) -> Any:
        return value if pick.random() > 0.1 else None

    return [
        (
            start + dt.timedelta(seconds=pick.uniform(0, 300)),
            maybe(pick.randint(1, 4)),
            maybe(pick.choice(["hi", "lo"])),
            maybe(pick.choice(["us", "de", "US", "a`b"])),
            maybe(pick.choice(["/index", "/a/b/index", 'it\'s; -- \\ "fine"', "http://h.org/x?y=1"])),
            maybe(f"client{pick.randint(0, 30)}"),
            maybe(pick.randint(0, 200)),
            maybe(pick.uniform(0, 20)),
            maybe(Decimal(pick.randint(0, 500)) / 100),
            maybe(start + dt.timedelta(hours=pick.uniform(0, 5))),
            maybe((pick.choice([1.5, 2.5]), pick.uniform(0, 9))),
            maybe(["x"] * pick.randint(1, 3)),
        )
        for _ in range(size)
    ]


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[SparkSession]:
    """The schema's relations as Spark views, filled; so few rows are not worth compiling for."""
    providers = [(0, "zero", 3), (1, "one", 2), (2, "two", 1), (9, "nine", 0)]
    regions = [("US", "america"), ("DE", "europe"), ("DE", "two")]
    contents = {"beacons": rows(), "providers": providers, "regions": regions}
    catalog = base_catalog()
    for name, content in contents.items():
        relation = {**catalog.streams, **catalog.tables}[name]
        schema = ", ".join(f"`{c.name}` {sql_type(c.type)}" for c in relation.columns)
        spark.createDataFrame(content, schema).createOrReplaceTempView(name)
    tiers = [
        (1, "gold", dt.datetime(2024, 3, 1, tzinfo=dt.UTC), None),
        (2, "tin", dt.datetime(2024, 3, 2, tzinfo=dt.UTC), None),
    ]
    schema = "cpid INT, tier STRING, valid_from TIMESTAMP, valid_to TIMESTAMP"
    spark.createDataFrame(tiers, schema).createOrReplaceTempView("tiers")  # which a case declares itself
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, str(value))


def source(spark: SparkSession, plan: QueryPlan) -> DataFrame:
    from pyspark.sql import functions as f

    fragment = plan.fragment
    frame = spark.table(fragment.stream).select(*plan.scan.columns).alias(fragment.stream)
    for explode in fragment.explodes:
        ((name, _),) = explode.columns  # the golden plans have arrays without places alone
        elements = f.expr(f"explode(transform({explode.sql}, e -> named_struct('{name}', e)))")
        frame = frame.select("*", elements.alias(explode.alias))
    for lookup in fragment.lookups:
        table = spark.table(lookup.table).withColumn(VERSION_COLUMN, f.lit("as of a test"))
        frame = frame.join(table.alias(lookup.alias), f.expr(lookup.on), lookup.how)
    return frame.where(fragment.where) if fragment.where else frame


def arguments(aggregate: Aggregate) -> str:
    """What the function is called with: a struct of arguments is taken apart."""
    fields = FUNCTIONS[aggregate.function].fields
    return ", ".join(f"{aggregate.argument}.{f}" for f in fields) or aggregate.argument or "*"


def evaluate(spark: SparkSession, plan: QueryPlan) -> DataFrame:
    from pyspark.sql import functions as f

    window, fragment = plan.window, plan.fragment
    sizes = [f"{us} microseconds" for us in (window.size_us, window.slide_us, window.offset_us)]
    time = f.window(f.col(f"{fragment.stream}.{fragment.event_time}"), *sizes)
    calls = [f"CAST({a.function}({arguments(a)}) AS {sql_type(a.result_type)})" for a in fragment.aggregates]
    grouped = source(spark, plan).groupBy(time.alias("w"), *(f.expr(k.sql).alias(k.name) for k in fragment.keys))
    lowered = grouped.agg(*(f.expr(c).alias(a.name) for c, a in zip(calls, fragment.aggregates, strict=True)))
    lowered = lowered.withColumns({"window_start": f.col("w.start"), "window_end": f.col("w.end")}).drop("w")
    kept = lowered.where(plan.having) if plan.having else lowered
    return kept.select(*(f.expr(c.sql).alias(c.name) for c in plan.columns))


def comparable(frame: DataFrame) -> list[str]:
    return sorted(str([_rounded(value) for value in row]) for row in frame.collect())


def _rounded(value: Any) -> Any:
    if isinstance(value, Decimal):
        return value.normalize()
    return f"{value:.9g}" if isinstance(value, float) else value


@pytest.mark.parametrize("case", NATIVE_CASES, ids=lambda case: case.title)
def test_a_plan_gives_what_spark_gives_for_the_select(case: Golden, tables: SparkSession) -> None:
    expected = tables.sql(case.sql[case.sql.upper().index("SELECT") :])
    found = evaluate(tables, make_plan(case.sql))
    assert comparable(found) == comparable(expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_partials_have_the_types_that_the_fragment_says(case: Golden, tables: SparkSession) -> None:
    from pyspark.sql import functions as f

    fragment = make_plan(case.sql).fragment
    states = [pair for a in fragment.aggregates for pair in zip(a.lift_sql(), a.states, strict=True)]
    slice_sql = fragment.slicing.sql(f"unix_micros(`{fragment.stream}`.`{fragment.event_time}`)")
    keys = [f.expr(slice_sql).alias("slice_us"), *(f.expr(k.sql).alias(k.name) for k in fragment.keys)]
    partials = source(tables, make_plan(case.sql)).groupBy(*keys)
    found = partials.agg(*(f.expr(sql).alias(state.name) for sql, state in states)).schema
    expected = [(field.name, sql_type(field.type).lower()) for field in fragment.schema]
    types = [(field.name, field.dataType.simpleString().replace(",", ", ").replace(":", ": ")) for field in found]
    assert types == expected


EXPRESSIONS = """
cpid + 1; cpid % 10; -cpid; abs(cpid); cpid + bytes; cpid * 1.5; ms * 2; bytes / cpid; cpid div 2
pmod(cpid, 3); floor(ms); ceil(ms); round(ms, 1); round(bytes); sqrt(bytes); pow(bytes, 2); ln(ms)
exp(ms); sign(cpid); cpid & 3; greatest(cpid, ms); least(cpid, bytes); coalesce(bytes, 0)
nvl(country, 'x'); nullif(cpid, 0); ifnull(ms, 1); if(cpid > 1, 1, 2); if(cpid > 1, country, null)
CASE WHEN cpid > 1 THEN bytes END; CASE WHEN ms > 1 THEN 1 ELSE ms END; upper(country); lower(country)
trim(url); length(url); substring(url, 1, 2); left(url, 2); right(url, 2); url || 'x'
concat(country, bw); concat_ws('-', country, bw); split(url, '/')[0]; split_part(url, '/', 2)
reverse(url); substring_index(url, '/', 1); regexp_extract(url, '(a)', 1); regexp_replace(url, 'a', 'b')
replace(url, 'a', 'b'); try_parse_url(url, 'HOST'); instr(url, 'a'); locate('a', url); lpad(bw, 4, ' ')
initcap(bw); md5(url); hash(url); xxhash64(url); crc32(url); ascii(bw); hex(bytes); bin(bytes)
translate(url, 'a', 'b'); repeat(bw, 2); soundex(url); startswith(url, '/'); contains(url, 'a')
endswith(url, 'x'); url LIKE '%a%'; url RLIKE 'a'; url IN ('a'); url IS NULL; bytes BETWEEN 1 AND 3
NOT (bytes > 3); bytes > 3 AND ms < 1; bytes <=> 3; date_trunc('hour', arrived); to_date(arrived)
date(arrived); year(arrived); month(arrived); day(arrived); hour(arrived); minute(arrived)
second(arrived); dayofweek(arrived); weekday(arrived); dayofyear(arrived); weekofyear(arrived)
quarter(arrived); date_format(arrived, 'HH'); unix_timestamp(arrived); unix_micros(arrived)
unix_millis(arrived); extract(hour from arrived); arrived + INTERVAL 1 DAY; date_add(to_date(arrived), 1)
datediff(arrived, ts); timestamp_seconds(bytes); from_unixtime(bytes); trunc(arrived, 'MM')
make_date(2020, 1, 1); last_day(arrived); CAST(bytes AS STRING); CAST(price AS DOUBLE); bytes::INT
try_cast(url AS INT); CAST(ms AS DECIMAL(10, 2)); size(tags); tags[0]; element_at(tags, 1)
array_contains(tags, 'x'); geo.lat; geo.lat + 1; true; 'x'; 1; 3000000000; bytes > 3 OR NULL; log10(ms)
log2(ms); sin(ms); degrees(ms); cbrt(ms); width_bucket(ms, 0, 1, 5); url_decode(url)
"""


def family(type_: str) -> str:
    """The kind of a type, widths apart; a decimal that comes from a literal counts as floating."""
    for name, members in {"whole": "tinyint smallint int bigint", "floating": "float double decimal"}.items():
        if type_.split("(")[0].lower() in members.split():
            return name
    return type_.lower()


def test_types_are_inferred_as_spark_has_them_or_not_at_all(tables: SparkSession) -> None:
    beacons = base_catalog().streams["beacons"]
    scope = Scope(SqlText(""), {"beacons": beacons}, {"beacons": "beacons"})
    texts = [t.strip() for line in EXPRESSIONS.strip().splitlines() for t in line.split(";")]
    resolved = {text: resolve_inputs(read_expression(text), scope, "a test") for text in texts}
    columns = [f"{render(e)} AS c{i}" for i, e in enumerate(resolved.values())]
    original = [f"{text} AS c{i}" for i, text in enumerate(texts)]
    found = tables.table("beacons").selectExpr(*columns)
    inferred = {t: infer_type(e) for t, e in resolved.items()}
    spark_types = dict(zip(texts, (f.dataType.simpleString() for f in found.schema), strict=True))
    wrong = {
        text: (sql_type(type_), spark_types[text])
        for text, type_ in inferred.items()
        if type_ is not None and family(sql_type(type_)) != family(spark_types[text])
    }
    assert not wrong
    assert sum(type_ is None for type_ in inferred.values()) <= 2
    assert comparable(found) == comparable(tables.table("beacons").selectExpr(*original))


def test_the_first_rows_are_chosen_after_expressions_and_having(spark: SparkSession) -> None:
    plan = make_plan(
        "SELECT window.start, cpid, sum(bytes) / 2 AS half FROM beacons GROUP BY window(ts, '1 minute'), cpid "
        "HAVING count(*) > 1 ORDER BY -sum(bytes) ASC NULLS LAST LIMIT 2"
    )
    start = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
    given = [(0, 1, 10, 5), (0, 2, 90, 1), (0, 3, 30, 2), (0, 4, None, 2), (0, 5, 30, 3), (1, 1, 7, 2)]
    lowered = pa.table(
        {
            "window_start": pa.array([start] * len(given), pa.timestamp("us", "UTC")),
            "window_end": pa.array([start] * len(given), pa.timestamp("us", "UTC")),
            "cpid": pa.array([cpid for _, cpid, _, _ in given], pa.int32()),
            "sum_bytes": pa.array([total for _, _, total, _ in given], pa.int64()),
            "count": pa.array([n for *_, n in given], pa.int64()),
            REVISION_ROWS: pa.array([revision for revision, *_ in given], pa.int64()),
        }
    )
    found = make_finish(spark, plan)(lowered)
    shown = [row["cpid"] for row in found.to_pylist() if not row["retracted"]]
    assert shown == [3, 5, 1]  # of the first revision 3 and 5, because too few records are behind 2
