"""The value of every aggregate equals a naive computation with exact arithmetic, and floats are special."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import reduce
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.aggregates import Aggregate, make_aggregate, partials
from catchment.aggregates.grouped import sum_split
from catchment.errors import AggregateError
from tests.worlds.aggregate_cases import (
    COVARIATIONS,
    HISTOGRAM,
    SHAPES,
    TYPES,
    close,
    every_aggregate,
    identical,
    records,
    same_value,
)
from tests.worlds.tiers import examples

AGGREGATES = every_aggregate()
DOUBLE_SUM_ERROR = 1e-12


def naive_spread(function: str, values: list[Fraction]) -> float | None:
    freedom = len(values) - (1 if function.endswith("_samp") else 0)
    if freedom <= 0:
        return None
    mean = sum(values) / len(values)
    variance = float(sum((v - mean) ** 2 for v in values) / freedom)
    return math.sqrt(variance) if function.startswith("stddev") else variance


def naive_average(values: list[Fraction], decimals: bool) -> object:
    mean = sum(values) / len(values)
    if not decimals:
        return float(mean)
    scaled = Decimal(mean.numerator) / Decimal(mean.denominator)
    return scaled.quantize(Decimal("0.000001"), ROUND_HALF_UP)


def naive_top(values: list[object]) -> list[dict[str, object]]:
    """Most frequent first; equal counts by item, null before all."""
    counted = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0] is not None, pair[0]))
    return [{"item": item, "count": count} for item, count in counted[:3]]


def naive_shape(function: str, values: list[Fraction]) -> float | None:
    mean = sum(values) / len(values)
    m2, m3, m4 = (sum((v - mean) ** power for v in values) for power in (2, 3, 4))
    if not m2:
        return None
    if function == "skewness":
        return math.sqrt(len(values)) * float(m3) / float(m2) ** 1.5
    return float(len(values) * m4 / (m2 * m2)) - 3.0


def naive_pairs(function: str, values: list[dict[str, object] | None]) -> object:
    """The measures of pairs by their textbook definitions, in fractions."""
    known = [v for v in values if v is not None and v["x"] is not None and v["y"] is not None]
    x, y = ([Fraction(v[field]) for v in known] for field in ("x", "y"))  # type: ignore[arg-type]
    n = len(known)
    if function == "regr_count":
        return n
    if not n or (function == "covar_samp" and n == 1):
        return None
    mean_x, mean_y = sum(x) / n, sum(y) / n
    sxx, syy = sum((v - mean_x) ** 2 for v in x), sum((v - mean_y) ** 2 for v in y)
    sxy = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    plain = {"regr_avgx": mean_x, "regr_avgy": mean_y, "regr_sxx": sxx, "regr_syy": syy, "regr_sxy": sxy}
    plain |= {"covar_pop": sxy / n, "covar_samp": sxy / max(n - 1, 1)}
    if function in plain:
        return float(plain[function])
    if not sxx or (function == "corr" and not syy):
        return None
    if function == "corr":
        return float(sxy) / math.sqrt(sxx * syy)
    lines = {"regr_slope": sxy / sxx, "regr_intercept": mean_y - sxy / sxx * mean_x}
    return float(lines[function]) if function in lines else float(sxy**2 / (sxx * syy)) if syy else 1.0


def naive_value_by(function: str, values: list[dict[str, object] | None]) -> object:
    """Sorted by `by`, then by value, any value before null: the first, or the last from the other end."""
    known = [v for v in values if v is not None and v["by"] is not None]
    pick = min if function in ("first", "min_by") else max
    if not known:
        return None
    best = pick(v["by"] for v in known)  # type: ignore[type-var]
    tied = [v["value"] for v in known if v["by"] == best and v["value"] is not None]
    return pick(tied) if tied else None  # type: ignore[type-var]


def naive_bits(function: str, values: list[int]) -> int:
    combine = {"bit_and": operator.and_, "bit_or": operator.or_, "bit_xor": operator.xor}[function]
    return reduce(combine, values)


def naive(aggregate: Aggregate, values: list[object]) -> object:
    """The value of an aggregate over the raw values of one group, nulls included."""
    function, present = aggregate.function, [v for v in values if v is not None]
    if function == "count":
        return len(values) if aggregate.argument is None else len(present)
    if function == "approx_count_distinct":
        return len(set(present))
    if function == "count_distinct":
        rows = [tuple(v.values()) if isinstance(v, dict) else (v,) for v in present]
        return len({row for row in rows if None not in row})
    if function == "collect_set":
        return sorted(set(present))[:5]  # type: ignore[type-var]
    if function == "histogram":
        return naive_histogram([Fraction(v) for v in present])  # type: ignore[arg-type]
    if function == "approx_top_k":
        counted = [v["item"] for v in present] if aggregate.argument == "wrapped" else values  # type: ignore[index]
        return naive_top(counted)
    if function in COVARIATIONS:
        return naive_pairs(function, values)  # type: ignore[arg-type]
    if function in ("first", "last", "min_by", "max_by"):
        return naive_value_by(function, values)  # type: ignore[arg-type]
    if not present:
        return None
    if function in ("min", "max"):
        return min(present) if function == "min" else max(present)  # type: ignore[type-var]
    if function in ("bool_and", "bool_or"):
        return all(present) if function == "bool_and" else any(present)
    if function.startswith("bit_"):
        return naive_bits(function, present)  # type: ignore[arg-type]
    if function == "percentile_approx":
        ranked = sorted(float(str(v)) for v in present)
        return [ranked[max(math.ceil(p * len(ranked)) - 1, 0)] for p in (0.0, 0.25, 0.5, 1.0)]
    if function in ("percentile", "median"):
        ranks = [Fraction(p) for p in ((0.5,) if function == "median" else (0.0, 0.3, 0.5, 1.0))]
        found = [naive_percentile(sorted(Fraction(v) for v in present), p) for p in ranks]  # type: ignore[arg-type]
        return found[0] if function == "median" else found
    return naive_arithmetic(aggregate, [Fraction(v) for v in present])  # type: ignore[arg-type]


def naive_histogram(values: list[Fraction]) -> list[int]:
    """Below, in each part, and above; the bounds are the doubles that lie evenly in the range."""
    low, high, parts = HISTOGRAM
    edges = [Fraction(float(edge)) for edge in np.linspace(low, high, parts + 1)]
    inside = [sum(a <= v < b for v in values) for a, b in pairwise(edges)]
    return [sum(v < edges[0] for v in values), *inside, sum(v >= edges[-1] for v in values)]


def naive_percentile(ordered: list[Fraction], rank: Fraction) -> float:
    """The value at a rank, on the line between its neighbours."""
    place = (len(ordered) - 1) * rank
    lower, upper = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(lower + (place - math.floor(place)) * (upper - lower))


def naive_arithmetic(aggregate: Aggregate, exact: list[Fraction]) -> object:
    if aggregate.function == "sum":
        total = sum(exact)
        kind = {pa.int64(): int, pa.float64(): float}.get(aggregate.result_type)
        return kind(total) if kind else Decimal(total.numerator) / Decimal(total.denominator)
    if aggregate.function == "avg":
        return naive_average(exact, pa.types.is_decimal(aggregate.result_type))
    if aggregate.function == "moments":
        return [float(sum(v**k for v in exact) / len(exact)) for k in range(1, 6)]
    if aggregate.function in SHAPES:
        return naive_shape(aggregate.function, exact)
    return naive_spread(aggregate.function, exact)


def agrees(aggregate: Aggregate, found: object, expected: object) -> bool:
    if aggregate.function in ("avg", "moments", "percentile") or (
        aggregate.function == "sum" and isinstance(found, float)
    ):
        pairs = zip(found, expected, strict=True) if isinstance(found, list) else [(found, expected)]  # type: ignore[call-overload]
        return all(close(a, b, DOUBLE_SUM_ERROR) for a, b in pairs)
    if aggregate.function in ("collect_set", "histogram"):
        return found == expected
    if aggregate.function in (*SHAPES, *COVARIATIONS):
        return same_value(aggregate, found, expected)
    if aggregate.argument == "far":
        return close(found, expected, 1e-6)
    return close(found, expected, 1e-12)


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=[a.name for a in AGGREGATES])
@pytest.mark.parametrize("null_share", [0.0, 0.3])
def test_a_lifted_and_merged_group_has_the_naive_value(aggregate: Aggregate, null_share: float) -> None:
    raw = records(400, seed=11, null_share=null_share)
    parts = partials.lift(raw, ["g", "p"], [aggregate]).drop(["p"])
    values = partials.lower(partials.combine(parts, ["g"], [aggregate]), ["g"], [aggregate])
    for row in values.to_pylist():
        mine = [r for r in raw.to_pylist() if r["g"] == row["g"]]
        expected = naive(aggregate, [r[aggregate.argument] if aggregate.argument else 1 for r in mine])
        assert agrees(aggregate, row[aggregate.name], expected), (row, expected)


def total(values: list[float], parts: list[int] | None = None) -> float:
    """The sum of doubles by the core: lifted in parts, and merged."""
    aggregate = make_aggregate("sum", "d", TYPES["d"], name="total")
    groups = np.array(parts if parts is not None else [0] * len(values), np.intp)
    states = aggregate.lift(pa.array(values, pa.float64()), groups, int(groups.max()) + 1)
    merged = aggregate.combine(states, np.zeros(len(states[0]), np.intp), 1)
    found: float = aggregate.lower(merged)[0].as_py()
    return found


@settings(max_examples=examples(100))
@given(data=st.data(), values=st.lists(st.floats(-1e290, 1e290), min_size=1, max_size=40))
def test_a_sum_of_any_doubles_is_close_to_the_exact_sum(data: st.DataObject, values: list[float]) -> None:
    parts = data.draw(st.lists(st.integers(0, 5), min_size=len(values), max_size=len(values)))
    error = abs(Fraction(total(values, parts)) - sum(map(Fraction, values)))
    assert error <= Fraction(DOUBLE_SUM_ERROR) * sum(abs(Fraction(v)) for v in values)


@pytest.mark.parametrize(
    "values",
    [
        [0.1] * 300_000,
        np.random.default_rng(3).lognormal(0, 4, 200_000).tolist(),
        [1e16, 1.0, -1e16] * 1000,
        np.random.default_rng(4).normal(1e9, 1, 100_000).tolist(),
    ],
    ids=["a tenth", "lognormal", "cancelling", "far from zero"],
)
def test_a_long_sum_of_doubles_is_the_correctly_rounded_one(values: list[float]) -> None:
    parts = np.random.default_rng(5).integers(0, 100, len(values)).tolist()
    assert total(values, parts) == pytest.approx(math.fsum(values), rel=DOUBLE_SUM_ERROR, abs=0.0)


@settings(max_examples=examples(50))
@given(data=st.data(), values=st.lists(st.floats(-(2.0**126), 2.0**126, width=32), max_size=30))
def test_split_numbers_are_summed_as_exactly_as_pairs_are(data: st.DataObject, values: list[float]) -> None:
    groups = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values))), np.intp)
    highs, lows = sum_split(np.array(values, np.float64), np.zeros(len(values)), groups, 3, len(values))
    for group in range(3):
        mine = [Fraction(v) for v, g in zip(values, groups, strict=True) if g == group]
        error = abs(Fraction(highs[group]) + Fraction(lows[group]) - sum(mine))
        assert error <= Fraction(1e-15) * sum(abs(v) for v in mine)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 1e308], -math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([1e308, -1e308], 0.0),
        ([1e308, 1e308], math.inf),
        ([5e-324, 5e-324], 1e-323),
    ],
)
def test_sums_of_special_doubles_are_those_of_ieee(values: list[float], expected: float) -> None:
    assert identical(total(values), expected)
    assert identical(total(values, [0, 1]), expected)


def extreme(function: str, values: list[float | None]) -> float | None:
    aggregate = make_aggregate(function, "d", TYPES["d"], name="x")
    states = aggregate.lift(pa.array(values, pa.float64()), np.zeros(len(values), np.intp), 1)
    found: float | None = aggregate.lower(states)[0].as_py()
    return found


def test_nan_is_greater_than_every_other_number() -> None:
    assert extreme("min", [math.nan, math.inf, None]) == math.inf
    assert identical(extreme("max", [math.nan, math.inf]), math.nan)
    assert identical(extreme("min", [math.nan]), math.nan)


def test_negative_zero_is_zero() -> None:
    assert math.copysign(1, extreme("min", [0.0, -0.0]) or 0.0) == 1.0
    assert math.copysign(1, extreme("max", [-0.0]) or 0.0) == 1.0


@pytest.mark.parametrize("values", [[2**63 - 1, 1], [-(2**63), -1], [2**62] * 4])
def test_a_sum_of_integers_that_overflows_is_refused(values: list[int]) -> None:
    aggregate = make_aggregate("sum", "l", pa.int64(), name="x")
    with pytest.raises(AggregateError, match="64 bits"):
        aggregate.lift(pa.array(values), np.zeros(len(values), np.intp), 1)


def test_a_sum_of_integers_up_to_the_limit_is_exact() -> None:
    aggregate = make_aggregate("sum", "l", pa.int64(), name="x")
    values = pa.array([2**63 - 1, 2**63 - 1, -(2**63) + 1, -(2**63)])
    states = aggregate.lift(values, np.array([0, 1, 1, 2], np.intp), 3)
    assert states[0].to_pylist() == [2**63 - 1, 0, -(2**63)]


def test_a_sum_of_decimals_that_overflows_is_refused() -> None:
    aggregate = make_aggregate("sum", "e", pa.decimal128(38, 2), name="x")
    large = pa.array([Decimal("9" * 36)] * 3, pa.decimal128(38, 2))
    with pytest.raises(AggregateError, match="38 digits"):
        aggregate.lift(large, np.zeros(3, np.intp), 1)


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e9])
def test_a_spread_far_from_zero_keeps_its_digits(mean: float) -> None:
    values = np.random.default_rng(1).normal(mean, 1, 20_000)
    aggregate = make_aggregate("var_pop", "d", TYPES["d"], name="v")
    parts = np.random.default_rng(2).integers(0, 50, len(values))
    states = aggregate.lift(pa.array(values), parts, 50)
    merged = aggregate.lower(aggregate.combine(states, np.zeros(50, np.intp), 1))[0].as_py()
    exact = naive_spread("var_pop", [Fraction(v) for v in values.tolist()])
    assert merged == pytest.approx(exact, rel=1e-15 * max(mean, 1e3), abs=0.0)


def test_instants_and_days_keep_their_type() -> None:
    day = make_aggregate("max", "day", pa.date32(), name="x")
    states = day.lift(pa.array([dt.date(2024, 1, 2), None, dt.date(1969, 1, 1)]), np.zeros(3, np.intp), 1)
    assert day.lower(states).to_pylist() == [dt.date(2024, 1, 2)]
