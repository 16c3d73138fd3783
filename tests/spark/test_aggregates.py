"""Spark and the core lift the same states, merge them alike, and merge each other's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from catchment.aggregates import Aggregate, make_aggregate, partials
from catchment.aggregates.quantiles import ApproxPercentile
from catchment.aggregates.topk import ApproxTopK
from catchment.aggregates.value_by import ValueBy
from catchment.query.types import sql_type
from tests.worlds.aggregate_cases import (
    COVARIATIONS,
    HISTOGRAM,
    REGRESSIONS,
    SHAPES,
    SPREADS,
    TYPES,
    close,
    every_aggregate,
    records,
    same_state,
    same_value,
    tolerance,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AGGREGATES = every_aggregate()
MERGED_IN_SPARK = [a for a in AGGREGATES if a.merges_in_spark]
KEYS = ["g", "p"]


@pytest.fixture(scope="module")
def raw() -> pa.Table:
    return records(600, seed=7)


@pytest.fixture(scope="module")
def lifted_by_spark(spark: SparkSession, raw: pa.Table) -> pa.Table:
    return run(spark, raw, KEYS, "lift_sql")


@pytest.fixture(scope="module")
def lifted_by_core(raw: pa.Table) -> pa.Table:
    return partials.lift(raw, KEYS, AGGREGATES)


def run(
    spark: SparkSession, table: pa.Table, keys: list[str], verb: str, aggregates: list[Aggregate] = AGGREGATES
) -> pa.Table:
    """Spark's GROUP BY with the expressions of `verb`, over one partition, in the order of the rows."""
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("given")
    states = [s for a in aggregates for s in a.states]
    expressions = [sql for a in aggregates for sql in getattr(a, verb)()]
    columns = ", ".join(f"{sql} AS {state.sql}" for sql, state in zip(expressions, states, strict=True))
    by = ", ".join(keys)
    found = spark.sql(f"SELECT {by}, {columns} FROM given GROUP BY {by}").toArrow()
    assert [sql_type(t) for t in found.schema.types[len(keys) :]] == [sql_type(s.type) for s in states]
    return found.cast(pa.schema([*list(found.schema)[: len(keys)], *(pa.field(s.name, s.type) for s in states)]))


def by_key(table: pa.Table, keys: list[str]) -> dict[tuple[object, ...], dict[str, object]]:
    return {tuple(row[k] for k in keys): row for row in table.to_pylist()}


def differing_states(
    left: pa.Table, right: pa.Table, keys: list[str], aggregates: list[Aggregate] = AGGREGATES
) -> list[tuple[object, ...]]:
    a, b = by_key(left, keys), by_key(right, keys)
    assert a.keys() == b.keys()
    return [
        (aggregate.name, key, states(a[key], aggregate), states(b[key], aggregate))
        for aggregate in aggregates
        for key in a
        if not same_state(aggregate, states(a[key], aggregate), states(b[key], aggregate))
    ]


def states(row: dict[str, object], aggregate: Aggregate) -> list[object]:
    return [row[s.name] for s in aggregate.states]


def differing_values(
    left: pa.Table, right: pa.Table, keys: list[str], aggregates: list[Aggregate] = AGGREGATES
) -> list[tuple[object, ...]]:
    a = by_key(partials.lower(left, keys, aggregates), keys)
    b = by_key(partials.lower(right, keys, aggregates), keys)
    assert a.keys() == b.keys()
    return [
        (x.name, key, a[key][x.name], b[key][x.name])
        for x in aggregates
        for key in a
        if not same_value(x, a[key][x.name], b[key][x.name])
    ]


def test_spark_and_the_core_lift_the_same_states(lifted_by_spark: pa.Table, lifted_by_core: pa.Table) -> None:
    assert differing_states(lifted_by_spark, lifted_by_core, KEYS) == []


def test_hll_states_are_the_same_bytes(lifted_by_spark: pa.Table, lifted_by_core: pa.Table) -> None:
    a, b = by_key(lifted_by_spark, KEYS), by_key(lifted_by_core, KEYS)
    hll = [x for x in AGGREGATES if x.function == "approx_count_distinct"]
    assert [(x.name, key) for x in hll for key in a if states(a[key], x) != states(b[key], x)] == []


def test_spark_and_the_core_merge_alike(spark: SparkSession, lifted_by_core: pa.Table) -> None:
    merged = run(spark, lifted_by_core, ["g"], "merge_sql", MERGED_IN_SPARK)
    by_core = partials.combine(lifted_by_core.drop(["p"]), ["g"], MERGED_IN_SPARK)
    assert differing_states(merged, by_core, ["g"], MERGED_IN_SPARK) == []


def test_states_of_spark_and_of_the_core_merge_with_each_other(
    spark: SparkSession, raw: pa.Table, lifted_by_spark: pa.Table, lifted_by_core: pa.Table
) -> None:
    even = [row for row, p in enumerate(lifted_by_spark["p"].to_pylist()) if p % 2 == 0]
    odd = [row for row, p in enumerate(lifted_by_core["p"].to_pylist()) if p % 2 == 1]
    mixed = pa.concat_tables([lifted_by_spark.take(even), lifted_by_core.take(odd).cast(lifted_by_spark.schema)])
    whole = partials.lift(raw, ["g"], AGGREGATES)
    in_core = partials.combine(mixed.drop(["p"]), ["g"], AGGREGATES)
    in_spark = run(spark, mixed, ["g"], "merge_sql", MERGED_IN_SPARK)
    assert differing_values(in_core, whole, ["g"]) == []
    assert differing_values(in_spark, whole, ["g"], MERGED_IN_SPARK) == []


def own_sql(aggregate: Aggregate) -> str:
    """Spark's own function for the value of an aggregate, over the raw rows."""
    x = aggregate.argument or "*"
    if aggregate.function == "approx_count_distinct":
        return f"count(DISTINCT {x})"
    if aggregate.function == "histogram":
        low, high, parts = HISTOGRAM
        place = f"width_bucket(CAST({x} AS DOUBLE), {low}D, {high}D, {parts})"
        inside = ", ".join(f"count_if({place} = {number})" for number in range(parts + 1))
        above = f"{place} = {parts + 1} OR isnan(CAST({x} AS DOUBLE))"  # Spark has no bucket for NaN
        return f"array({inside}, count_if({above}))"
    if aggregate.function == "moments":
        powers = (" * ".join([f"CAST({x} AS DOUBLE)"] * k) for k in range(1, 6))
        return f"IF(count({x}) > 0, array({', '.join(f'avg({power})' for power in powers)}), NULL)"
    if aggregate.function == "percentile_approx":
        return f"percentile_approx(CAST({x} AS DOUBLE), array(0.0, 0.25, 0.5, 1.0))"
    if aggregate.function == "percentile":
        return f"percentile({x}, array(0.0, 0.3, 0.5, 1.0))"
    if aggregate.function == "count_distinct":
        return f"count(DISTINCT {f'{x}.value, {x}.by' if x == 'text_by' else x})"
    if aggregate.function == "collect_set":
        return f"slice(array_sort(collect_set({x})), 1, 5)"
    if aggregate.argument == "wrapped":
        return "approx_top_k(wrapped.item, 100, 100) FILTER (WHERE wrapped IS NOT NULL)"
    if aggregate.function in COVARIATIONS:
        pair = f"{x}.y, {x}.x" if aggregate.function in REGRESSIONS else f"{x}.x, {x}.y"
        return f"{aggregate.function}({pair})"
    if isinstance(aggregate, ValueBy):  # Spark's own takes any value of those with an equal `by`
        tied = f"filter(collect_list({x}), e -> e.by = {aggregate.which}({x}.by))"
        return f"array_{aggregate.which}(transform({tied}, e -> e.value))"
    return f"approx_top_k({x}, 100, 100)" if aggregate.function == "approx_top_k" else f"{aggregate.function}({x})"


def agrees(aggregate: Aggregate, mine: object, own: object) -> bool:
    """Spark's top k breaks ties at random, and its floating point is plain; all else is equal."""
    if aggregate.function == "approx_top_k":
        assert isinstance(own, list)
        ranked = sorted(own, key=lambda e: (-e["count"], e["item"] is not None, e["item"]))
        return mine == ranked[:3]
    if isinstance(mine, list) and isinstance(own, list):
        return all(close(a, b, 1e-12) for a, b in zip(mine, own, strict=True))
    if aggregate.function in (*SHAPES, *COVARIATIONS):
        return same_value(aggregate, mine, own)
    return close(mine, own, tolerance(aggregate))


def special_doubles() -> pa.Table:
    """Groups of NaN, infinities, zeros of both signs, nulls, single and huge numbers."""
    inf, nan = math.inf, math.nan
    groups = [
        [nan, 1.0],
        [inf, 1.0],
        [inf, -inf],
        [-0.0, 0.0],
        [None, None],
        [5.0],
        [None, 7.5],
        [nan],
        [inf],
        [-0.0],
        [1e300, 1e300, -1e300],
        [-inf, None, 2.0],
        [1e-310, 2e-310],
    ]
    rows = [(key, value) for key, values in enumerate(groups) for value in values]
    return pa.table({"g": pa.array([k for k, _ in rows]), "d": pa.array([v for _, v in rows], pa.float64())})


def disagreements(spark: SparkSession, raw: pa.Table, aggregates: list[Aggregate]) -> list[tuple[object, ...]]:
    mine = by_key(partials.lower(partials.lift(raw, ["g"], aggregates), ["g"], aggregates), ["g"])
    spark.createDataFrame(raw).createOrReplaceTempView("given")
    columns = ", ".join(f"{own_sql(a)} AS {a.name}" for a in aggregates)
    own = by_key(spark.sql(f"SELECT g, {columns} FROM given GROUP BY g").toArrow(), ["g"])
    assert mine.keys() == own.keys()
    rows = [(a, key, mine[key][a.name], own[key][a.name]) for a in aggregates for key in mine]
    return [(a.name, key, left, right) for a, key, left, right in rows if not agrees(a, left, right)]


def test_values_are_those_of_sparks_own_functions(spark: SparkSession, raw: pa.Table) -> None:
    assert disagreements(spark, raw, AGGREGATES[::2]) + disagreements(spark, raw, AGGREGATES[1::2]) == []


def test_values_of_special_doubles_are_those_of_sparks_own_functions(spark: SparkSession) -> None:
    of_doubles = [a for a in AGGREGATES if a.argument == "d" and a.function != "percentile_approx"]
    assert disagreements(spark, special_doubles(), of_doubles) == []


def test_states_of_special_doubles_are_lifted_alike(spark: SparkSession) -> None:
    of_doubles = [a for a in AGGREGATES if a.argument == "d" and a.function not in SPREADS]
    raw = special_doubles()
    lifted = run(spark, raw, ["g"], "lift_sql", of_doubles)
    assert differing_states(lifted, partials.lift(raw, ["g"], of_doubles), ["g"], of_doubles) == []


def test_large_states_of_spark_merge_in_the_core_within_their_errors(spark: SparkSession) -> None:
    """Sums of doubles, HLL in registers, KLL and top-k beyond what they keep exactly."""
    random = np.random.default_rng(9)
    d, i = random.lognormal(0, 4, 200_000), random.zipf(1.3, 200_000) % 9000
    raw = pa.table({"p": random.integers(0, 3, len(d)), "d": d, "i": pa.array(i.astype(np.int32))})
    distinct = make_aggregate("approx_count_distinct", "d", TYPES["d"], name="distinct")
    total = make_aggregate("sum", "d", TYPES["d"], name="total")
    median = ApproxPercentile("median", "percentile_approx", "d", TYPES["d"])
    wide = make_aggregate("percentile", "d", TYPES["d"], (0.5, 1000), name="wide")
    top = ApproxTopK("top", "approx_top_k", "i", TYPES["i"], 3, 200)
    aggregates = [total, distinct, median, wide, top]
    lifted = run(spark, raw, ["p"], "lift_sql", aggregates).drop(["p"])
    merged = partials.lower(partials.combine(lifted, [], aggregates), [], aggregates).to_pylist()[0]
    alone = partials.lower(partials.lift(raw, [], [distinct]), [], [distinct]).to_pylist()[0]
    assert merged["total"] == pytest.approx(math.fsum(d.tolist()), rel=1e-12, abs=0.0)
    assert merged["distinct"] == alone["distinct"]
    assert np.mean(d <= merged["median"]) == pytest.approx(0.5, abs=3 * median.sketch_error)
    assert np.mean(d <= merged["wide"]) == pytest.approx(0.5, abs=3 * wide.sketch_error)
    counts = [(e["count"], int(np.sum(i == e["item"]))) for e in merged["top"]]
    assert all(abs(found - true) <= top.sketch_error * len(i) for found, true in counts)
