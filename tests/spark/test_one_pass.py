"""Many fragments in one Spark job: the same partials as one native job each, whole, sampled, left out and spared.

Catches: expressions that the one projection evaluates otherwise than a query of their own would, samples that differ
between the two, bits and places that get lost on the way to the tasks. Cannot catch: aggregates whose two forms differ;
`test_aggregates.py` does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.aggregates import make_aggregate, partials
from catchment.aggregates.shed_terms import with_terms
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key, Lookup
from catchment.replay.spool import ARRIVAL, ROWS_PER_BATCH
from catchment.shedding.places import SamplingRule, history_rule
from catchment.shedding.reader_filter import ReadRequest
from catchment.shedding.sampler import GroupRates, Sampler, Selection, Side
from catchment.spark.evaluation.evaluator import SparkEvaluator, merge_pieces
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.sources.history import BatchFolder, number_rows
from catchment.spark.sources.replay import RowRange
from catchment.spark.sources.reread import RangeReader, reread_rows
from catchment.timeline import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 3_000
RULE = SamplingRule("s", ("_row",))
SECOND = WindowSpec(1_000_000, 1_000_000)
WIDE = WindowSpec(3_000_000, 1_000_000)


def of(function: str, argument: str | None, type_: pa.DataType | None) -> Any:
    return make_aggregate(function, argument, type_, name=f"{function}_{(argument or 'all').strip('`')[-3:]}")


AGGREGATES = with_terms(
    (
        of("count", None, None),
        of("count", "`s`.`v`", pa.int64()),
        of("sum", "`s`.`v`", pa.int64()),
        of("avg", "`s`.`x`", pa.float64()),
        of("min", "`s`.`page`", pa.string()),
        of("var_pop", "`s`.`x`", pa.float64()),
        of("approx_count_distinct", "`s`.`page`", pa.string()),
        of(
            "max_by",
            "STRUCT(`s`.`page` AS `value`, `s`.`v` AS `by`)",
            pa.struct([("value", pa.string()), ("by", pa.int64())]),
        ),
    )
)
PAGE = Key("page", "`s`.`page`", pa.string())
GROUPS = GroupRates(PAGE.sql, (("p1", 0.1), ("p2", 0.7), ("p5", 1.0)))
ALL = Fragment("all", "s", "ts", (), AGGREGATES, (SECOND,))
FRAGMENTS = (
    ALL,
    replace(ALL, name="pages", keys=(PAGE,), windows=(WIDE,)),
    replace(ALL, name="some", where="`s`.`page` LIKE 'p%' AND `s`.`v` > 10", keys=(PAGE,)),
    # The condition keeps the expressions from failing.
    replace(
        ALL,
        name="guarded",
        where="`s`.`v` <> 0",
        keys=(Key("half", "100 DIV `s`.`v`", pa.int64()),),
        aggregates=with_terms((of("sum", "1000 DIV `s`.`v`", pa.int64()),)),
    ),
    replace(
        ALL, name="aliased", stream="h", where="`h`.`v` > 5", aggregates=with_terms((of("sum", "`h`.`v`", pa.int64()),))
    ),
    replace(
        ALL,
        name="named",
        lookups=(Lookup("names", "n", "`s`.`page` = `n`.`page`"),),
        keys=(Key("title", "`n`.`title`", pa.string()),),
        aggregates=with_terms((of("count", None, None),)),
    ),
    replace(ALL, name="nobody", where="`s`.`v` > 1000000"),
)


def records(spark: SparkSession) -> DataFrame:
    columns = (
        "id AS _row",
        "timestamp_micros(1700000000000000 + id * 2500) AS ts",
        "concat('p', pmod(hash(id), 7)) AS page",
        "CASE WHEN id % 11 = 0 THEN NULL ELSE pmod(id * 37, 101) - 3 END AS v",
        "CASE WHEN id % 13 = 0 THEN NULL WHEN id % 17 = 0 THEN double('NaN') ELSE exp(pmod(id, 9)) END AS x",
    )
    return spark.range(0, ROWS, 1, 3).selectExpr(*columns)


def rows_of(table: pa.Table, fragment: Fragment) -> dict[Any, dict[str, Any]]:
    keys = [SLICE_COLUMN, *fragment.key_names]
    found = partials.lower(table, keys, fragment.aggregates).to_pylist()
    states = [s.name for a in fragment.aggregates for s in a.states if s.name.endswith(("__kept", "__more", "__g"))]
    for row, state in zip(found, table.select(states).to_pylist(), strict=True):
        row |= state
    return {tuple(row[k] for k in keys): row for row in found}


def check_same(one: Any, other: Any, fragment: Fragment) -> None:
    mine, theirs = rows_of(one.table, fragment), rows_of(other.table, fragment)
    assert len(mine) == one.table.num_rows
    assert mine.keys() == theirs.keys()
    for key, row in mine.items():
        for column, value in row.items():
            near = pytest.approx(theirs[key][column], rel=1e-9, nan_ok=True) if isinstance(value, float) else None
            assert value == (theirs[key][column] if near is None else near), (fragment.name, key, column)
    assert one.records == other.records
    assert sum(one.sizes["_size"].to_pylist()) == pytest.approx(sum(other.sizes["_size"].to_pylist()))


@pytest.mark.parametrize(
    ("rate", "side", "spare", "by_group"),
    [
        (1.0, Side.KEPT, False, False),
        (0.4, Side.LEFT, False, False),
        (0.4, Side.KEPT, True, False),
        (0.4, Side.KEPT, False, True),
        (0.4, Side.LEFT, True, True),
    ],
)
def test_many_fragments_in_one_job_have_the_partials_of_jobs_of_their_own(
    spark: SparkSession, rate: float, side: Side, spare: bool, by_group: bool
) -> None:
    names = spark.createDataFrame([("p1", "one"), ("p1", "uno"), ("p2", "two")], "page STRING, title STRING")
    evaluator, given = SparkEvaluator({"names": names}), records(spark)
    limits = {
        f.name: (("`s`.`v`", 60.0), ("`s`.`x`", 2000.0)) if f.name in ("all", "some") and spare else ()
        for f in FRAGMENTS
    }
    groups = {f.name: GROUPS if by_group and PAGE in f.keys else None for f in FRAGMENTS}
    takes = [Take(f, Selection(Sampler(rate, limits[f.name], groups[f.name]), side)) for f in FRAGMENTS]
    together = evaluator.reduce_all(given, takes, ROWS, RULE)
    for take, one in zip(takes, together, strict=True):
        pieces = [evaluator._alone(given, piece, RULE) for piece in take.split()]
        check_same(one, pieces[0] if len(pieces) == 1 else merge_pieces(pieces, take.split()), take.fragment)
    assert together[-1].table.num_rows == 0
    assert together[0].spared == (0 if side is Side.LEFT or not spare else large_ones(given))


def large_ones(given: DataFrame) -> int:
    rows = given.collect()
    return sum((r["v"] is not None and abs(r["v"]) > 60) or (r["x"] is not None and r["x"] > 2000.0) for r in rows)


def test_more_conditions_than_one_number_has_bits_and_the_places_of_records_arrive_whole(spark: SparkSession) -> None:
    count = with_terms((of("count", None, None),))
    fragments = [replace(ALL, name=f"v_{i}", where=f"pmod(`s`.`v`, 27) = {i}", aggregates=count) for i in range(27)]
    given = records(spark)
    found = SparkEvaluator({}).reduce_all(given, [Take(f, Selection(Sampler(0.4))) for f in fragments], ROWS, RULE)
    kept = [r["v"] for r in given.collect() if RULE.keep([pa.array([r["_row"]])], 0.4)[0] and r["v"] is not None]
    assert [sum(n for _, n in one.records) for one in found] == [sum(v % 27 == i for v in kept) for i in range(27)]


def kept_in(folder: Path, rows: DataFrame) -> BatchFolder:
    history = BatchFolder(folder)
    history.write(number_rows(rows), 4)
    return history


def test_records_of_a_batch_in_history_have_numbers_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever Spark packs into a task when it reads: these small files it reads in one."""
    history = kept_in(
        tmp_path, spark.range(0, 60_000, 1, 3).where("id < 50 OR id BETWEEN 20000 AND 24000 OR id >= 40000")
    )
    files = sorted((tmp_path / "batch=4").glob("*.parquet"))
    written = {id_: row for file in files for id_, row in numbers_in(file).items()}
    assert len(files) == 3
    assert len(written) == len(set(written.values())) == 50 + 4_001 + 20_000
    for file in files:
        rows = list(numbers_in(file).values())
        assert rows == sorted(rows)
    assert {r["id"]: r["_row"] for r in history.batch(spark, 4, "id BIGINT, _row BIGINT").collect()} == written


def numbers_in(file: Path) -> dict[int, int]:
    table = pq.read_table(file, partitioning=None)
    return dict(zip(table["id"].to_pylist(), table["_row"].to_pylist(), strict=True))


def test_numbers_of_a_source_are_kept_and_equal_rows_have_different_places_in_different_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    history = kept_in(tmp_path, spark.range(0, 1_000, 1, 2).selectExpr("1 AS one", "id + 70000 AS _row"))
    rows = [r["_row"] for r in history.batch(spark, 4, "one INT, _row BIGINT").collect()]
    assert sorted(rows) == list(range(70_000, 71_000))
    numbers = spark.range(0, 1_000).selectExpr("id AS _row")
    places = [numbers.selectExpr(history_rule("s", batch).place_sql).collect() for batch in (4, 5)]
    assert len({r[0] for found in places for r in found}) == 2_000


def test_a_sample_of_history_is_joined_to_tables(spark: SparkSession, tmp_path: Path) -> None:
    names = spark.createDataFrame([("p1", "one"), ("p2", "two")], "page STRING, title STRING")
    fragment = next(f for f in FRAGMENTS if f.name == "named")
    history = kept_in(tmp_path, records(spark).drop("_row"))
    rows = history.batch(spark, 4, "ts TIMESTAMP, page STRING, v BIGINT, x DOUBLE, _row BIGINT")
    take = Take(fragment, Selection(Sampler(0.4)))
    (found,) = SparkEvaluator({"names": names}).reduce_all(rows, [take], ROWS, history_rule("s", 4))
    batch_and_row = SamplingRule("s", ("batch", "_row"))
    pages = [r["page"] for r in rows.collect() if batch_and_row.keep([pa.array([4]), pa.array([r["_row"]])], 0.4)[0]]
    assert sum(n for _, n in found.records) == pages.count("p1") + pages.count("p2") > 0


def test_the_cpu_time_to_filter_a_sample_is_counted_and_a_batch_that_is_read_whole_is_not_filtered(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.table({ARRIVAL: pa.array(np.arange(50_000)), "n": pa.array(np.arange(50_000))})
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_BATCH)
    for rate, kept in ((1.0, 40_000), (0.1, int(RULE.keep([pa.array(np.arange(10_000, 50_000))], 0.1).sum()))):
        reader = RangeReader(tmp_path / "s.arrow", RowRange(10_000, 50_000), "s", (ReadRequest(rate),))
        filter_cpu_s = spark.sparkContext.accumulator(0.0)
        rows = reread_rows(spark, reader, "n BIGINT", filter_cpu_s).toArrow()
        assert rows["n"].to_pylist() == rows["_row"].to_pylist()
        assert rows.num_rows == kept
        assert (filter_cpu_s.value > 0) == (rate < 1.0)
