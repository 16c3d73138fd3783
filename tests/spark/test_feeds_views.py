"""The view graph on Spark is the view graph of the pure form, and so are its changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from catchment.errors import FeedError
from catchment.feeds.language.functions import FeedFunction, with_functions
from catchment.feeds.language.read_program import read_program
from catchment.feeds.language.reference import ReferenceData
from catchment.feeds.language.view_graph import generate_views
from tests.worlds.feeds_world import DECLARED, LAYERED, NEARBY, random_friends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXT = (
    DECLARED
    + LAYERED
    + """
CREATE TABLE circles (owner BIGINT, label STRING, open BOOLEAN);
CREATE FEED VIEW tracked AS SELECT l.user AS who, f.friend AS whom, l.lat, l.lon, f.radius AS r
  FROM location l JOIN friends f ON f.user = l.user WHERE l.speed > 1 AND sample(l, f.share);
CREATE FEED VIEW circled AS SELECT t.who, b.user AS friend, c.label FROM tracked t
  JOIN circles c ON c.owner = t.who AND c.open AND even(c.owner) = false JOIN location b ON t.whom = b.user
  WHERE distance(t.lat, t.lon, b.lat, b.lon) < t.r AND c.label <> 'it\\'s';
"""
)
FUNCTIONS = with_functions(FeedFunction("even", 1, lambda n: n % 2 == 0, returns="boolean"))
PROGRAM = read_program(TEXT, FUNCTIONS)
Tables = dict[str, list[tuple[object, ...]]]


def random_tables(seed: int) -> Tables:
    rng = random.Random(seed)
    labels = [(i % 8, rng.choice(["a", "it's", "b\\c"]), rng.random() < 0.7) for i in range(10)]
    return {"friends": list(random_friends(rng, 8, 20)), "circles": labels}


def frames(spark: SparkSession, tables: Tables) -> dict[str, DataFrame]:
    schemas = {
        "friends": "user bigint, friend bigint, share double, friend_share double, radius double",
        "circles": "owner bigint, label string, open boolean",
    }
    return {name: spark.createDataFrame(rows, schemas[name]) for name, rows in tables.items()}


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1])
def test_the_graph_on_spark_is_that_of_the_pure_form(spark: SparkSession, seed: int) -> None:
    from catchment.spark.feeds.views import spark_views, to_view_graph

    tables = random_tables(seed)
    ours = to_view_graph(spark_views(spark, PROGRAM, frames(spark, tables)), PROGRAM)
    pure = generate_views(PROGRAM, ReferenceData(tables))
    assert {v.template for v in pure.views.values()} == {"nearby", "meet", "circled"}
    assert dict(ours.views) == dict(pure.views)
    assert dict(ours.feeds) == dict(pure.feeds)
    assert list(ours.views) == list(pure.views)


@pytest.mark.spark
def test_the_change_on_spark_is_that_of_the_pure_form(spark: SparkSession) -> None:
    from catchment.spark.feeds.views import spark_views, views_delta

    before, after = random_tables(3), random_tables(4)
    after["friends"] = [*before["friends"][4:], *after["friends"][:4]]
    after["circles"] = before["circles"]
    graphs = [spark_views(spark, PROGRAM, frames(spark, tables)) for tables in (before, after)]
    changed = {(r["view"], r["change"]) for r in views_delta(*graphs).select("view", "change").collect()}
    old, new = (generate_views(PROGRAM, ReferenceData(t)) for t in (before, after))
    delta = old.delta_to(new)
    expected = {(v.name, "added") for v in delta.added} | {(v.name, "changed") for v in delta.changed}
    assert changed == expected | {(name, "removed") for name in delta.removed}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 1, 0.5, 0.5, 1.0), "self edge"),
        ((1, 9, 0.5, 0.5, 1.0), "unknown device for 'b'"),
        ((1, 2, 0.5, 1.5, 1.0), "share of 'b'"),
        ((1, None, 0.5, 0.5, 1.0), "names no device for 'b'"),
    ],
)
def test_a_wrong_reference_row_is_refused_on_spark(spark: SparkSession, row: tuple[object, ...], message: str) -> None:
    from catchment.spark.feeds.views import spark_views

    devices = spark.createDataFrame([(1,), (2,)], "id bigint")
    tables = frames(spark, {"friends": [row], "circles": []})
    with pytest.raises(FeedError, match=message):
        spark_views(spark, PROGRAM, tables, devices)


@pytest.mark.spark
def test_wrong_reference_rows_are_left_out_on_spark_as_they_are_by_the_pure_form(spark: SparkSession) -> None:
    from catchment.spark.feeds.views import view_graph_on

    program = read_program(DECLARED + NEARBY)
    good = [(1, 2, 0.5, 0.5, 1.0), (2, 3, 1.0, 0.25, 1.0)]
    bad = [(1, 1, 0.5, 0.5, 1.0), (1, 3, 7.0, 0.5, 1.0), (None, 2, 0.5, 0.5, 1.0)]
    data = ReferenceData({"friends": [*good, *bad]}, devices=(1, 2))  # device 3 may come later
    told: list[str] = []
    ours = view_graph_on(spark, program, data, lambda error, rows: told.append(error.message))
    pure = generate_views(program, data, lambda error, rows: None)
    assert dict(ours.views) == dict(pure.views)
    assert len(pure.views) == 2
    assert ["self edge" in told[0], "share" in told[1]] == [True, True]
