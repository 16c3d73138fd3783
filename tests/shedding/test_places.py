"""The sampling rule: the same records on replay, nested rates, independent records; and Spark decides as
numpy does."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from catchment.aggregates.hashing import hash_rows
from catchment.errors import CatchmentError
from catchment.shedding.places import (
    PLACES,
    SamplingRule,
    number_sql,
    stratum_rate_sql,
    text_sql,
)
from catchment.shedding.sampler import Sampler
from catchment.wire.frames.limits import MAX_STRATA
from tests.worlds.tiers import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = SamplingRule("beacons", ("source", "row"), seed=7)


def identities(count: int, source: str = "log-1") -> list[pa.Array]:
    return [pa.array([source] * count), pa.array(np.arange(count))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0xEF46DB3751D8E999),
        ("a", 0xD24EC4F1A98C6E5B),
        ("abc", 0x44BC2CF5AD770999),
        ("Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_xxh64_by_its_published_vectors(text: str, expected: int) -> None:
    assert int(hash_rows([pa.array([text])], seed=0)[0]) == expected


def test_a_replayed_batch_sheds_the_same_records_in_any_order_and_cut() -> None:
    columns = identities(5_000)
    kept = RULE.keep(columns, 0.3)
    order = np.random.default_rng(1).permutation(5_000)
    shuffled = [column.take(pa.array(order)) for column in columns]
    assert (RULE.keep(shuffled, 0.3) == kept[order]).all()
    halves = [RULE.keep([c[a:b] for c in columns], 0.3) for a, b in ((0, 1_234), (1_234, 5_000))]
    assert (np.concatenate(halves) == kept).all()


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=examples(50))
def test_what_passes_at_a_rate_passes_at_every_higher_one(one: float, other: float) -> None:
    columns = identities(500)
    low, high = sorted((one, other))
    assert not (RULE.keep(columns, low) & ~RULE.keep(columns, high)).any()


def test_everything_passes_at_rate_one_and_nothing_at_rate_zero() -> None:
    columns = identities(20_000)
    assert RULE.keep(columns, 1.0).all()
    assert not RULE.keep(columns, 0.0).any()


def test_the_share_that_passes_is_the_rate() -> None:
    columns, count = identities(200_000), 200_000
    for rate in (0.001, 0.05, 0.5, 0.93):
        kept = int(RULE.keep(columns, rate).sum())
        assert stats.binomtest(kept, count, rate).pvalue > 1e-4


def test_neighbouring_records_pass_independently() -> None:
    kept = RULE.keep(identities(200_000), 0.5)
    for lag in (1, 2, 8, 1024):
        both = int((kept[lag:] & kept[:-lag]).sum())
        assert stats.binomtest(both, len(kept) - lag, 0.25).pvalue > 1e-4


@pytest.mark.parametrize(
    "other",
    [SamplingRule("beacons", ("source", "row"), seed=8), SamplingRule("clicks", ("source", "row"), seed=7)],
)
def test_another_seed_or_stream_decides_independently(other: SamplingRule) -> None:
    columns = identities(100_000)
    both = int((RULE.keep(columns, 0.5) & other.keep(columns, 0.5)).sum())
    assert stats.binomtest(both, 100_000, 0.25).pvalue > 1e-4


def test_places_are_uniform() -> None:
    places = RULE.places(identities(50_000))
    assert places.max() < PLACES
    assert stats.kstest(places / PLACES, "uniform").pvalue > 1e-4


def test_each_record_may_have_its_own_rate() -> None:
    columns = identities(1_000)
    rates = np.where(np.arange(1_000) % 2, 1.0, 0.0)
    assert (RULE.keep(columns, rates) == (rates == 1.0)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SamplingRule("s", ()), "no identity"),
        (lambda: RULE.keep_sql(1.5), "between 0 and 1"),
        (lambda: RULE.places([pa.array([1])]), "2 columns and 1"),
        (lambda: stratum_rate_sql("k", {str(i): 0.5 for i in range(MAX_STRATA + 1)}), "more than a sampler"),
        (lambda: hash_rows([]), "without columns"),
        (lambda: hash_rows([pa.array([[1, 2]])]), "cannot be told apart"),
    ],
)
def test_a_rule_that_cannot_decide_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CatchmentError, match=message):
        make()


def all_types() -> pa.Table:
    """Values of every type that records may be told apart by, nulls among them."""
    r, n = np.random.default_rng(3), 300
    texts = ["".join(r.choice(list("abcé漢 /"), size=int(k))) for k in r.integers(0, 90, n)]
    doubles = np.r_[[0.0, -0.0, np.nan, np.inf, -np.inf, 1e-310], r.normal(0, 1e9, n - 6)]
    columns = {
        "b": pa.array(r.random(n) < 0.5),
        "i8": pa.array(r.integers(-128, 128, n), pa.int8()),
        "i16": pa.array(r.integers(-(2**15), 2**15, n), pa.int16()),
        "i32": pa.array(r.integers(-(2**31), 2**31, n), pa.int32()),
        "i64": pa.array(r.integers(-(2**63), 2**63 - 1, n, dtype=np.int64)),
        "f32": pa.array(doubles.astype(np.float32)),
        "f64": pa.array(doubles),
        "text": pa.array(texts),
        "bytes": pa.array([r.bytes(int(k)) for k in r.integers(0, 70, n)]),
        "day": pa.array(r.integers(-30_000, 30_000, n), pa.int32()).cast(pa.date32()),
        "ts": pa.array(r.integers(-(2**50), 2**50, n), pa.int64()).cast(pa.timestamp("us", "UTC")),
        "dec": pa.array([Decimal(int(x)).scaleb(-4) for x in r.integers(-(10**17), 10**17, n)]).cast(
            pa.decimal128(18, 4)
        ),
    }
    gaps = pa.array(r.random(n) < 0.1)
    return pa.table({name: _with_gaps(column, gaps) for name, column in columns.items()})


def _with_gaps(column: pa.Array, gaps: pa.Array) -> pa.Array:
    return pc.if_else(gaps, pa.scalar(None, column.type), column)


@pytest.mark.spark
def test_spark_hashes_every_type_as_numpy_does(spark: SparkSession) -> None:
    table = all_types()
    spark.createDataFrame(table).createOrReplaceTempView("all_types")
    names = table.column_names
    alone = ", ".join(f"xxhash64({name}) AS {name}" for name in names)
    found = spark.sql(f"SELECT {alone}, xxhash64({', '.join(names)}) AS together FROM all_types").toArrow()
    arrays = {name: table[name].combine_chunks() for name in names}
    for name in names:
        expected = hash_rows([arrays[name]]).view(np.int64)
        assert (np.asarray(found[name]) == expected).all(), name
    assert (np.asarray(found["together"]) == hash_rows(list(arrays.values())).view(np.int64)).all()


@pytest.mark.spark
def test_spark_sheds_the_records_that_numpy_sheds(spark: SparkSession) -> None:
    columns = [pa.array([f"log-{i % 7}" for i in range(20_000)]), pa.array(np.arange(20_000))]
    spark.createDataFrame(pa.table(columns, names=["source", "row"])).createOrReplaceTempView("records")
    rates = (0.0, 1e-4, 0.1, 1 / 3, 0.5, 0.999999, 1.0)
    wanted = ", ".join(f"{RULE.keep_sql(rate)} AS r{i}" for i, rate in enumerate(rates))
    found = spark.sql(f"SELECT source, row, {wanted} FROM records").toArrow()
    place = [found["source"].combine_chunks(), found["row"].combine_chunks()]
    for i, rate in enumerate(rates):
        assert (np.asarray(found[f"r{i}"]) == RULE.keep(place, rate)).all(), rate


@pytest.mark.spark
def test_spark_reads_strata_large_values_and_literals_as_they_are_meant(spark: SparkSession) -> None:
    keys = ["plain", "it's", "back\\slash", "unknown", None]
    table = pa.table({"k": pa.array(keys), "v": pa.array([1.0, -50.0, float("nan"), None, 9.0])})
    spark.createDataFrame(table).createOrReplaceTempView("grouped")
    by_group = stratum_rate_sql("k", {"plain": 0.25, "it's": 1 / 3, "back\\slash": 0.1}, default=0.75)
    spared = Sampler(0.5, (("v", 10.0),)).spared_sql
    found = spark.sql(
        f"SELECT k, {by_group} AS rate, {spared} AS spared, {text_sql(keys[2] or '')} AS t, "
        f"{number_sql(0.1)} AS tenth FROM grouped"
    ).toArrow()
    assert found["rate"].to_pylist() == [0.25, 1 / 3, 0.1, 0.75, 0.75]
    assert found["spared"].to_pylist() == [False, True, False, False, False]
    assert found["t"].to_pylist() == [keys[2]] * 5
    assert found["tenth"].to_pylist() == [0.1] * 5
    assert RULE.keep_sql(by_group).count("xxhash64") == 1


def test_dates_of_python_are_hashed_as_spark_days() -> None:
    day = pa.array([dt.date(1970, 1, 2)])
    assert hash_rows([day])[0] == hash_rows([pa.array([1], pa.int32())])[0]
