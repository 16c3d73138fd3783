"""Spark and the core lift the same states, merge them alike, and merge each other's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from aggregate_cases import every_aggregate, records, same_state, same_value

from catchment import partials
from catchment.aggregates import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AGGREGATES = every_aggregate()
KEYS = ["g", "p"]
BATCH = 12  # aggregates in one query: Spark takes minutes to plan one with all of them


@pytest.fixture(scope="module")
def raw() -> pa.Table:
    return records(600, seed=7)


@pytest.fixture(scope="module")
def lifted_by_spark(spark: SparkSession, raw: pa.Table) -> pa.Table:
    return run(spark, raw, KEYS, "lift_sql")


@pytest.fixture(scope="module")
def lifted_by_core(raw: pa.Table) -> pa.Table:
    return partials.lift(raw, KEYS, AGGREGATES)


def run(spark: SparkSession, table: pa.Table, keys: list[str], verb: str) -> pa.Table:
    """Spark's GROUP BY with the expressions of `verb`, over one partition, in the order of the rows."""
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("given")
    batches = [AGGREGATES[at : at + BATCH] for at in range(0, len(AGGREGATES), BATCH)]
    found = [
        run_batch(spark, keys, batch, [sql for a in batch for sql in getattr(a, verb)()]) for batch in batches
    ]
    whole = found[0]
    for part in found[1:]:
        for name in part.column_names[len(keys) :]:
            whole = whole.append_column(name, part[name])
    return whole


def run_batch(
    spark: SparkSession, keys: list[str], batch: list[Aggregate], expressions: list[str]
) -> pa.Table:
    states = [s for a in batch for s in a.states]
    columns = [f"{sql} AS {state.sql}" for sql, state in zip(expressions, states, strict=True)]
    by = ", ".join(keys)
    found = spark.sql(f"SELECT {by}, {', '.join(columns)} FROM given GROUP BY {by} ORDER BY {by}").toArrow()
    assert found.schema.types[len(keys) :] == [s.type for s in states]
    return found


def by_key(table: pa.Table, keys: list[str]) -> dict[tuple[object, ...], dict[str, object]]:
    return {tuple(row[k] for k in keys): row for row in table.to_pylist()}


def differing_states(left: pa.Table, right: pa.Table, keys: list[str]) -> list[tuple[object, ...]]:
    a, b = by_key(left, keys), by_key(right, keys)
    assert a.keys() == b.keys()
    return [
        (aggregate.name, key, states(a[key], aggregate), states(b[key], aggregate))
        for aggregate in AGGREGATES
        for key in a
        if not same_state(aggregate, states(a[key], aggregate), states(b[key], aggregate))
    ]


def states(row: dict[str, object], aggregate: Aggregate) -> list[object]:
    return [row[s.name] for s in aggregate.states]


def differing_values(left: pa.Table, right: pa.Table, keys: list[str]) -> list[tuple[object, ...]]:
    a = by_key(partials.lower(left, keys, AGGREGATES), keys)
    b = by_key(partials.lower(right, keys, AGGREGATES), keys)
    assert a.keys() == b.keys()
    return [
        (x.name, key, a[key][x.name], b[key][x.name])
        for x in AGGREGATES
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
    merged = run(spark, lifted_by_core, ["g"], "merge_sql")
    assert (
        differing_states(merged, partials.combine(lifted_by_core.drop(["p"]), ["g"], AGGREGATES), ["g"]) == []
    )


def test_states_of_spark_and_of_the_core_merge_with_each_other(
    spark: SparkSession, raw: pa.Table, lifted_by_spark: pa.Table, lifted_by_core: pa.Table
) -> None:
    even = [row for row, p in enumerate(lifted_by_spark["p"].to_pylist()) if p % 2 == 0]
    odd = [row for row, p in enumerate(lifted_by_core["p"].to_pylist()) if p % 2 == 1]
    mixed = pa.concat_tables(
        [lifted_by_spark.take(even), lifted_by_core.take(odd).cast(lifted_by_spark.schema)]
    )
    whole = partials.lift(raw, ["g"], AGGREGATES)
    in_core = partials.combine(mixed.drop(["p"]), ["g"], AGGREGATES)
    in_spark = run(spark, mixed, ["g"], "merge_sql")
    assert differing_values(in_core, whole, ["g"]) == []
    assert differing_values(in_spark, whole, ["g"]) == []
