"""One pass over the records: whatever the batches and the sampler, the partials are those of the records themselves.

Catches: a record that is lifted twice or by nobody, a reader that withholds what a fragment takes, large values that
are not spared. Cannot catch: what Spark makes of the expressions; `test_one_pass.py` compares that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import make_aggregate, partials
from catchment.aggregates.shed_terms import terms_in, with_terms
from catchment.query.fragment import Fragment
from catchment.shedding.conditions import column_of, condition_of
from catchment.shedding.places import PLACES, SamplingRule
from catchment.shedding.reader_filter import ReadRequest, both, is_large, is_wanted, takes_all
from catchment.shedding.sampler import Sampler, Selection, Side, SparedPart
from catchment.shedding.terms import add_terms, scale_answers
from catchment.site.lifting import Lift, Lifter
from catchment.timeline import WindowSpec
from tests.worlds.tiers import examples

RULE = SamplingRule("s", ("row",))
COUNT, SUM = make_aggregate("count", None, None, name="n"), make_aggregate("sum", "v", pa.int64(), name="total")
SCHEMA = pa.schema([("code", pa.int32()), ("v", pa.int64()), ("page", pa.string()), ("new", pa.bool_())])


def records_of(rows: int, seed: int) -> pa.RecordBatch:
    chance = np.random.default_rng(seed)
    values = pa.array(chance.integers(-100, 100, rows), mask=chance.random(rows) < 0.1)
    return pa.record_batch(
        {
            "k": pa.array(chance.integers(0, 4, rows)),
            "v": values,
            "counts": pa.array(chance.random(rows) < 0.7, mask=chance.random(rows) < 0.1),
            "place": pa.array(RULE.places([pa.array(np.arange(rows))]).astype(np.int64)),
        }
    )


def lifted(records: pa.RecordBatch, lifts: list[Lift], step: int) -> list[dict[int, tuple[int, int | None]]]:
    lifter = Lifter(lifts, "place")
    for at in range(0, records.num_rows, step):
        lifter.add(records.slice(at, step))
    found = {place: table.to_pylist() for place, table, _ in lifter.results()}
    return [{r["key"]: (r["n__count"], r["total__sum"]) for r in found.get(i, [])} for i in range(len(lifts))]


def naive(records: pa.RecordBatch, chosen: np.ndarray) -> dict[int, tuple[int, int | None]]:
    answer: dict[int, tuple[int, int | None]] = {}
    for row, take in zip(records.to_pylist(), chosen, strict=True):
        if take and row["counts"]:
            n, total = answer.get(row["k"], (0, None))
            answer[row["k"]] = (n + 1, total if row["v"] is None else (total or 0) + row["v"])
    return answer


@settings(max_examples=examples(40))
@given(
    rows=st.integers(0, 300),
    step=st.integers(1, 120),
    rate=st.floats(0.05, 0.95),
    limit=st.integers(0, 90),
    seed=st.integers(0, 99),
)
def test_every_record_is_lifted_by_exactly_one_of_the_parts(
    rows: int, step: int, rate: float, limit: int, seed: int
) -> None:
    records = records_of(rows, seed)
    given = ((("key", "k"),), (COUNT, SUM), (None, "v"), "counts")
    spares = Sampler(rate, (("v", float(limit)),))
    lifts = [
        Lift(*given),
        Lift(*given, Selection(Sampler(rate))),
        Lift(*given, Selection(Sampler(rate), Side.LEFT)),
        Lift(*given, Selection(spares, Side.KEPT, SparedPart.SPARED)),
        Lift(*given, Selection(spares, Side.KEPT, SparedPart.REST)),
        Lift(*given, Selection(spares, Side.LEFT, SparedPart.REST)),
    ]
    kept = RULE.keep([pa.array(np.arange(rows))], rate) if rows else np.zeros(0, bool)
    big = np.array([v is not None and abs(v) > limit for v in records["v"].to_pylist()], dtype=bool)
    everyone = np.ones(rows, dtype=bool)
    chosen = [everyone, kept, ~kept, big, ~big & kept, ~big & ~kept]
    assert lifted(records, lifts, step) == [naive(records, c) for c in chosen]
    assert (big.astype(int) + (~big & kept) + (~big & ~kept) == 1).all()


def fragment(where: str | None, stream: str = "s") -> Fragment:
    return Fragment("f", stream, "ts", (), (COUNT,), (WindowSpec(10, 10),), where)


@pytest.mark.parametrize(
    ("where", "test"),
    [
        ("`s`.`code` = 404", ["=", "code", 404]),
        ("`s`.`code` IN (1, 2) OR NOT `s`.`new`", ["or", ["in", "code", [1, 2]], ["not", ["is", "new"]]]),
        ("`s`.`page` IS NULL", ["null", "page"]),
        ("`s`.`page` RLIKE 'x' AND `s`.`code` < 5", ["<", "code", 5]),
        ("`s`.`page` RLIKE 'x'", None),
        ("`s`.`page` RLIKE 'x' OR `s`.`code` < 5", None),
        (None, None),
    ],
)
def test_a_reader_is_told_what_it_can_decide_and_nothing_else(where: str | None, test: object) -> None:
    assert condition_of(fragment(where), SCHEMA) == test


def test_the_columns_of_a_condition_are_known_by_the_name_of_the_stream() -> None:
    assert condition_of(fragment("`h`.`code` = 1", "h"), SCHEMA) == ["=", "code", 1]
    assert condition_of(fragment("`s`.`code` = 1", "h"), SCHEMA) is None
    assert column_of("`h`.`v`") == "v"
    assert column_of("`h`.`v` + 1") is None


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 999), rates=st.tuples(*[st.floats(0.01, 1.0)] * 3), limit=st.floats(0, 1e17))
def test_a_reader_hands_on_exactly_what_some_fragment_wants(
    seed: int, rates: tuple[float, float, float], limit: float
) -> None:
    chance = np.random.default_rng(seed)
    codes = pa.array(chance.integers(0, 6, 200).astype(np.int32), mask=chance.random(200) < 0.1)
    sizes = pa.array(chance.integers(-(10**17), 10**17, 200), mask=chance.random(200) < 0.1)
    places = RULE.places([pa.array(np.arange(200))])
    batch = pa.record_batch({"code": codes, "v": sizes})
    wanted = (
        ReadRequest(rates[0], ["=", "code", 3]),
        ReadRequest(rates[1], ["not", ["<", "code", 4]]),
        ReadRequest(rates[2] / 10),
        ReadRequest(1.0, both(["<>", "code", 0], is_large("v", limit))),
    )
    found = np.flatnonzero(is_wanted(wanted, batch, places)).tolist()
    share = places.astype(np.float64) / PLACES

    def wants(row: int, code: int | None, size: int | None) -> bool:
        big = code is not None and code != 0 and size is not None and abs(float(size)) > limit
        return bool(
            big
            or (code == 3 and share[row] < rates[0])
            or (code is not None and code >= 4 and share[row] < rates[1])
            or share[row] < rates[2] / 10
        )

    rows = zip(range(200), codes.to_pylist(), sizes.to_pylist(), strict=True)
    assert found == [row for row, code, size in rows if wants(row, code, size)]


TESTS: dict[str, tuple[list[Any], Callable[[Any, Any, Any], bool | None]]] = {
    "a value that the column cannot hold": (["in", "small", [1, 300]], lambda s, t, b: s == 1),
    "none that it can": (["not", ["in", "small", [300, -300]]], lambda s, t, b: True),
    "texts": (["in", "text", ["a", "c"]], lambda s, t, b: t in ("a", "c")),
    "nulls": (["null", "text"], lambda s, t, b: t is None),
    "a boolean": (["is", "flag"], lambda s, t, b: b),
    "or, of what is not known": (["or", ["is", "flag"], ["=", "text", "a"]], lambda s, t, b: b or t == "a"),
    "not, of what is not known": (["not", ["is", "flag"]], lambda s, t, b: None if b is None else not b),
    "beyond the column": (["<", "small", 3_000_000_000], lambda s, t, b: s is not None),
    "a constant": (["and", ["constant", True], ["=", "text", "b"]], lambda s, t, b: t == "b"),
}


@pytest.mark.parametrize("name", TESTS)
def test_a_reader_decides_as_three_valued_logic_does(name: str) -> None:
    test, decides = TESTS[name]
    rows = list(product((None, 0, 1, -128, 127), (None, "a", "b", "c"), (None, False, True)))
    small, text, flag = zip(*rows, strict=True)
    columns = {"small": pa.array(small, pa.int8()), "text": pa.array(text), "flag": pa.array(flag)}
    places = np.arange(len(rows), dtype=np.uint64) * np.uint64(PLACES // len(rows))
    for rate in (1.0, 0.5):
        found = is_wanted((ReadRequest(rate, test),), pa.record_batch(columns), places)
        low = places < rate * PLACES
        assert found.tolist() == [bool(decides(*row)) and bool(passes) for row, passes in zip(rows, low, strict=True)]


def test_a_batch_is_taken_whole_only_if_somebody_wants_all_of_it() -> None:
    assert takes_all([ReadRequest(0.1), ReadRequest(1.0)])
    assert not takes_all([ReadRequest(1.0, ["=", "code", 1]), ReadRequest(0.9)])


def sampled_sum(values: np.ndarray, rate: float, limit: float | None, seed: int) -> tuple[float, float]:
    """The scaled sum and its relative bound of one sample, values beyond the limit spared."""
    rule = SamplingRule("s", ("row",), seed)
    places = rule.places([pa.array(np.arange(len(values)))]).astype(np.int64)
    aggregates = with_terms((make_aggregate("sum", "v", pa.float64(), name="total"),))
    moments = tuple(m for t in terms_in(aggregates) if (m := t.moments) is not None)
    measures = (COUNT, aggregates[0], *moments)
    given = ((("key", "k"),), measures, (None, "v", "v"), None)
    sampler = Sampler(rate, () if limit is None else (("v", limit),))
    parts = [SparedPart.ALL] if limit is None else [SparedPart.REST, SparedPart.SPARED]
    lifts = [Lift(*given, Selection(sampler, Side.KEPT, part)) for part in parts]
    lifter = Lifter(lifts, "place")
    lifter.add(pa.record_batch({"k": pa.array(np.zeros(len(values), int)), "v": pa.array(values), "place": places}))
    names = ["key", *(s.name for a in aggregates for s in a.states)]
    tables = [
        add_terms(table, aggregates, table["n__count"], rate if place == 0 else 1.0).select(names)
        for place, table, _ in lifter.results()
    ]
    merged = partials.combine(pa.concat_tables(tables), ["key"], aggregates)
    answers, errors = scale_answers(merged, aggregates[0], 0.05, rate)
    return float(answers[0].as_py()), float(errors[0])


def test_sparing_large_values_makes_the_bound_of_a_heavy_tailed_sum_tighter_and_it_holds() -> None:
    values = np.random.default_rng(3).pareto(1.5, 5_000) + 1.0
    limit = float(values.mean() + 2 * values.std())
    truth, trials = float(values.sum()), 200
    found = {
        name: [sampled_sum(values, 0.1, at, seed) for seed in range(trials)]
        for name, at in {"plain": None, "spared": limit}.items()
    }
    missed = {n: sum(abs(a - truth) > e * truth for a, e in one) for n, one in found.items()}
    widths = {n: float(np.median([e for _, e in one])) for n, one in found.items()}
    assert missed["spared"] <= 0.05 * trials
    assert widths["spared"] < 0.6 * widths["plain"]
    assert float(pc.sum(pa.array(values > limit)).as_py()) < 0.05 * len(values)
