"""Samples of records that become several rows: bounds over record totals, and exact answers after the repair.

Catches: a bound that takes the rows of a record for independent ones, terms that do not return to nothing. The oracle
is the sum over all rows. Cannot catch: which records Spark samples; `tests/spark/test_explode.py` compares that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate, partials
from catchment.aggregates.shed_terms import find_terms, shed_terms, terms_in, with_terms
from catchment.arrays import Mask
from catchment.query.fragment import SLICE_COLUMN, Fragment, Key
from catchment.shedding.terms import add_terms, negate_terms, record_moments, scale_answers
from catchment.testing.simulated.evaluate import FragmentRows
from catchment.timeline import SECOND_US, WindowSpec
from tests.worlds.tiers import examples

DELTA = 0.1
MEASURED = (
    make_aggregate("count", None, None, name="n"),
    make_aggregate("sum", "v", pa.int64(), name="total"),
    make_aggregate("avg", "v", pa.int64(), name="mean"),
)
RECORDS = 400


def make_rows(rng: np.random.Generator, clustered: bool = True) -> FragmentRows:
    """Records with up to 30 rows each, most of which are in one group and have alike values."""
    aggregates = with_terms(MEASURED, clustered)
    fragment = Fragment("f", "s", "ts", (Key("k", "k", pa.string()),), aggregates, (WindowSpec(SECOND_US, SECOND_US),))
    rows_of_record = 1 + rng.geometric(0.15, RECORDS).clip(max=30)
    numbers = np.repeat(np.arange(RECORDS), rows_of_record)
    home = np.repeat(rng.integers(0, 2, RECORDS), rows_of_record)
    groups = np.where(rng.random(len(numbers)) < 0.9, home, 1 - home)
    values = np.repeat(rng.integers(1, 50, RECORDS), rows_of_record) + rng.integers(0, 5, len(numbers))
    table = pa.table({"k": pa.array(np.array(["a", "b"])[groups]), "v": pa.array(values)})
    arguments = {a.name: None if a.argument is None else "v" for a in aggregates}
    arguments |= {t.moments.name: arguments[t.name] for t in terms_in(aggregates) if t.moments is not None}
    return FragmentRows(fragment, numbers, np.zeros(len(numbers), np.int64), table, {**arguments, "_records": None})


def truth_of(rows: FragmentRows) -> dict[str, tuple[float, float, float]]:
    found = rows.table.group_by("k").aggregate([("v", "count"), ("v", "sum"), ("v", "mean")]).to_pylist()
    return {row["k"]: (row["v_count"], row["v_sum"], row["v_mean"]) for row in found}


def combine(fragment: Fragment, tables: list[pa.Table]) -> pa.Table:
    return partials.combine(pa.concat_tables(tables), [SLICE_COLUMN, *fragment.key_names], fragment.aggregates)


def missed_bounds(rows: FragmentRows, merged: pa.Table, rate: float) -> list[bool]:
    """Return which bounds of all groups and aggregates are missed."""
    truth = truth_of(rows)
    missed = []
    for place, aggregate in enumerate(MEASURED):
        terms = find_terms(aggregate, rows.fragment.aggregates)
        values, errors = scale_answers(merged, aggregate, DELTA, rate, terms)
        for key, value, error in zip(merged["k"].to_pylist(), values.to_pylist(), errors, strict=True):
            right = truth[key][place]
            missed.append(bool(abs(value - right) > error * abs(right) * (1 + 1e-9)))
    return missed


def sample(rng: np.random.Generator, rate: float) -> Mask:
    return np.asarray(rng.random(RECORDS) < rate)


@settings(max_examples=examples(5))
@given(seed=st.integers(0, 10**6))
def test_bounds_over_record_totals_are_missed_no_more_often_than_they_say(seed: int) -> None:
    """Two sites sample at rates of their own, and a third takes everything: one answer, one bound."""
    rng = np.random.default_rng(seed)
    missed: list[bool] = []
    naive: list[bool] = []
    for _ in range(60):
        whole = make_rows(rng)
        rates = (0.25, 0.5, 1.0)
        at = rng.integers(0, 3, RECORDS)
        chosen = [sample(rng, rate) & (at == site) for site, rate in enumerate(rates)]
        tables = [whole.of_records(mine).lift(rate)[0] for mine, rate in zip(chosen, rates, strict=True)]
        missed += missed_bounds(whole, combine(whole.fragment, tables), min(rates))
        plain = with_terms(MEASURED)
        arguments = {
            **whole.arguments,
            **{t.moments.name: None if t.argument is None else "v" for t in terms_in(plain) if t.moments},
        }
        apart = replace(whole, fragment=replace(whole.fragment, aggregates=plain), arguments=arguments)
        tables = [apart.of_records(mine).lift(rate)[0] for mine, rate in zip(chosen, rates, strict=True)]
        naive += missed_bounds(apart, combine(apart.fragment, tables), min(rates))
    assert np.mean(missed) <= DELTA
    assert np.mean(naive) > DELTA, "rows that are taken for independent ones show what record totals are for"


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10**6), rate=st.floats(0.05, 0.95))
def test_the_repair_of_a_sample_leaves_the_answer_over_all_rows_and_no_terms(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    whole = make_rows(rng)
    kept = sample(rng, rate)
    sampled = whole.of_records(kept).lift(rate)[0]
    left = whole.of_records(~kept).lift()[0]
    both = combine(whole.fragment, [sampled, left, negate_terms(sampled, whole.fragment.aggregates)])
    for place, aggregate in enumerate(MEASURED):
        values, errors = scale_answers(both, aggregate, DELTA, 1.0, find_terms(aggregate, whole.fragment.aggregates))
        assert not errors.any()
        right = truth_of(whole)
        assert values.to_pylist() == pytest.approx([right[key][place] for key in both["k"].to_pylist()])


def test_a_row_that_lost_all_its_records_has_no_bound() -> None:
    whole = make_rows(np.random.default_rng(1))
    table = whole.lift()[0]
    for aggregate in MEASURED:
        _, errors = scale_answers(table, aggregate, DELTA, 0.5, find_terms(aggregate, whole.fragment.aggregates))
        assert np.isinf(errors).all(), "how many rows a lost record had is not known"


@given(seed=st.integers(0, 10**6))
def test_moments_of_record_totals_are_those_of_the_records_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = make_rows(rng)
    rows = whole.table.append_column(SLICE_COLUMN, pa.array(np.zeros(len(whole.numbers), np.int64)))
    found = partials.lift(rows, [SLICE_COLUMN, "k"], [MEASURED[0]], {"n": None})
    found, counts = whole._total_records(rows, found)
    for row, key in enumerate(found["k"].to_pylist()):
        mine = np.asarray(whole.table["k"]) == key
        values = np.asarray(whole.table["v"])
        records = np.unique(whole.numbers[mine])
        c = np.array([(mine & (whole.numbers == r)).sum() for r in records])
        x = np.array([values[mine & (whole.numbers == r)].sum() for r in records])
        around = {"count": c, "sum": x, "avg": x - x.sum() / c.sum() * c}
        assert counts[row].as_py() == len(records)
        for terms in terms_in(whole.fragment.aggregates):
            n, mean, m2 = (column[row] for column in record_moments(found, terms))
            y = around[terms.of]
            of_mean = c if terms.of == "count" else x
            assert (n, mean) == pytest.approx((len(records), of_mean.mean()))
            assert m2 == pytest.approx(((y - y.mean()) ** 2).sum(), rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_a_sample_whose_squares_do_not_fit_has_no_bound(function: str) -> None:
    aggregate = make_aggregate(function, "x", pa.float64(), name="x")
    values = pa.table({"x": pa.array([1e200, -1e200, 2e200])})
    terms = shed_terms(aggregate)
    assert terms.moments is not None
    lifted = partials.lift(values, [], [aggregate, terms.moments], {"x": "x", terms.moments.name: "x"})
    with np.errstate(over="ignore", invalid="ignore"):
        found = add_terms(lifted, [aggregate, terms], pa.array([3]), 0.5)
        _, errors = scale_answers(found, aggregate, 0.05, 0.5)
    assert np.isinf(errors).all()
