"""Every aggregate, over columns of every type it takes: shared by the tests of the aggregates.

`records` makes a table of raw rows whose columns these aggregates read; `same_state` and `same_value` say
when two states or values count as equal: bit by bit for what is exact, by content for sketches, which keep
the order of arrival.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
from datasketches import frequent_items_error_type, frequent_strings_sketch, kll_doubles_sketch

from catchment.aggregates import Aggregate, make_aggregate

TYPES: dict[str, pa.DataType] = {
    "i": pa.int32(),
    "l": pa.int64(),
    "d": pa.float64(),
    "f": pa.float32(),
    "far": pa.float64(),
    "e": pa.decimal128(10, 2),
    "s": pa.string(),
    "b": pa.bool_(),
    "day": pa.date32(),
    "ts": pa.timestamp("us", "UTC"),
}
# The columns that functions of two arguments are over, and top-k with FILTER.
STRUCTS: dict[str, pa.DataType] = {
    "xy": pa.struct([("x", pa.float64()), ("y", pa.int64())]),
    "far_xy": pa.struct([("x", pa.float64()), ("y", pa.float64())]),
    "text_by": pa.struct([("value", pa.string()), ("by", pa.int32())]),
    "number_by": pa.struct([("value", pa.float64()), ("by", pa.float64())]),
    "day_by": pa.struct([("value", pa.date32()), ("by", pa.timestamp("us", "UTC"))]),
    "wrapped": pa.struct([("item", pa.string())]),  # null where FILTER leaves a record out
}
ALL_TYPES = TYPES | STRUCTS
SHAPES = ("skewness", "kurtosis")
REGRESSIONS = tuple(f"regr_{n}" for n in ("count", "avgx", "avgy", "sxx", "syy", "sxy", "slope", "intercept", "r2"))
COVARIATIONS = ("covar_pop", "covar_samp", "corr", *REGRESSIONS)
SPREADS = ("var_samp", "var_pop", "stddev_samp", "stddev_pop", *SHAPES, *COVARIATIONS)
ALL_ITEMS = frequent_items_error_type.NO_FALSE_NEGATIVES
HLL_LIST, HLL_REGISTERS = 0, 2
# Relative error of a spread: that of one rounding, times mean / deviation (which is 1e9 in the column `far`).
SPREAD_TOLERANCE = 1e-12
HISTOGRAM = (-5, 15.5, 7)  # from, to, and in how many parts
FAR_TOLERANCE = 1e-6


def every_aggregate() -> list[Aggregate]:
    """One aggregate for each function and type of argument, named `function_column`."""
    calls: list[tuple[str, str, tuple[object, ...]]] = [("count", column, ()) for column in ("i", "s")]
    calls += [(function, column, ()) for function in ("sum", "avg") for column in ("i", "l", "d", "f", "e")]
    calls += [("min", column, ()) for column in TYPES] + [("max", column, ()) for column in ("l", "d", "s", "ts")]
    calls += [
        ("var_samp", "d", ()),
        ("var_pop", "far", ()),
        ("stddev_samp", "l", ()),
        ("stddev_pop", "d", ()),
    ]
    calls += [("moments", column, ()) for column in ("d", "i")]
    calls += [("histogram", column, HISTOGRAM) for column in ("d", "i", "e")]
    calls += [("approx_count_distinct", column, ()) for column in TYPES]
    calls += [("percentile_approx", column, ([0.0, 0.25, 0.5, 1.0],)) for column in ("d", "i", "e")]
    calls += [("percentile", column, ([0.0, 0.3, 0.5, 1.0],)) for column in ("d", "i", "e", "f")]
    calls += [("median", "l", ())]
    calls += [("approx_top_k", column, (3, 100)) for column in ("s", "i", "b", "day")]
    calls += [("approx_top_k", "wrapped", (3, 100))]
    calls += [("count_distinct", column, ()) for column in (*TYPES, "text_by")]
    calls += [("collect_set", column, (5,)) for column in TYPES]
    calls += [(function, column, ()) for function in SHAPES for column in ("d", "far", "i")]
    calls += [(function, "b", ()) for function in ("bool_and", "bool_or")]
    calls += [(f"bit_{name}", column, ()) for name in ("and", "or", "xor") for column in ("i", "l")]
    calls += [(function, "xy", ()) for function in COVARIATIONS] + [("corr", "far_xy", ())]
    calls += [(f, "number_by", ()) for f in ("min_by", "max_by")] + [("first", "day_by", ()), ("last", "text_by", ())]
    made = [make_aggregate(f, c, ALL_TYPES[c], p, name=f"{f}_{c}") for f, c, p in calls]
    return [make_aggregate("count", None, None, name="count_all"), *made]


def records(rows: int, seed: int, null_share: float = 0.1) -> pa.Table:
    """Raw rows with a group `g` (null is one, and one group has nulls only) and a part `p`."""
    random = np.random.default_rng(seed)
    ints = random.integers(-50, 50, rows)
    start = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    columns: dict[str, list[object]] = {
        "i": ints.tolist(),
        "l": (ints * 10**12 + random.integers(0, 9, rows)).tolist(),
        "d": random.normal(10, 3, rows).tolist(),
        "f": random.random(rows).astype(np.float32).tolist(),
        "far": (1e9 + random.normal(0, 1, rows)).tolist(),
        "e": [Decimal(int(x)).scaleb(-2) for x in random.integers(-10_000, 10_000, rows)],
        "s": random.choice(["", "a", "b", "ä", "ß€", "zz"], rows).tolist(),
        "b": (ints > 0).tolist(),
        "day": [start.date() + dt.timedelta(days=int(x)) for x in ints],
        "ts": [start + dt.timedelta(microseconds=int(x)) for x in random.integers(0, 10**6, rows)],
    }
    groups = random.choice(["x", "y", "z", "void", ""], rows)
    missing = (random.random((len(columns), rows)) < null_share) | (groups == "void")
    made = {
        name: pa.array([None if gone else v for v, gone in zip(values, mask, strict=True)], TYPES[name])
        for (name, values), mask in zip(columns.items(), missing, strict=True)
    }
    keys = pa.array([g or None for g in groups.tolist()], pa.string())
    return pa.table({"g": keys, "p": pa.array(random.integers(0, 4, rows)), **made, **_structs_of(made)})


def _structs_of(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """The columns of two arguments, made of those of one; every seventh is null as a whole."""
    parts = {
        "xy": ("d", "i"),
        "far_xy": ("far", "d"),
        "text_by": ("s", "i"),
        "number_by": ("d", "f"),
        "day_by": ("day", "ts"),
        "wrapped": ("s",),
    }
    found = {}
    for name, of in parts.items():
        type_ = STRUCTS[name]
        arrays = [columns[c].cast(field.type) for c, field in zip(of, type_, strict=True)]
        missing = pa.array([row % 7 == 0 for row in range(len(arrays[0]))])
        found[name] = pa.StructArray.from_arrays(arrays, fields=list(type_), mask=missing)
    return found


def same_state(aggregate: Aggregate, left: Sequence[object], right: Sequence[object]) -> bool:
    """Whether two states of an aggregate, one value a column, are the same."""
    if aggregate.function in (*SHAPES, *COVARIATIONS):
        return _same_central_sums(aggregate, left, right)
    if aggregate.function in SPREADS:
        return all(close(a, b, tolerance(aggregate)) for a, b in zip(left, right, strict=True))
    if aggregate.exact or aggregate.function in ("count_distinct", "collect_set", "percentile", "median"):
        return all(identical(a, b) for a, b in zip(left, right, strict=True))
    return content(aggregate, left[0]) == content(aggregate, right[0])


def _same_central_sums(aggregate: Aggregate, left: Sequence[object], right: Sequence[object]) -> bool:
    """Whether sums of powers of distances agree: they may cancel, so the largest sum says what is close to nothing."""
    names = [s.name.rpartition("__")[2] for s in aggregate.states]
    a, b = ({name: float(str(v)) for name, v in zip(names, values, strict=True)} for values in (left, right))
    scale = max(1.0, *(abs(v) for name, v in a.items() if name.startswith(("m2", "m4", "c"))))
    within = tolerance(aggregate)
    return all(math.isclose(a[n], b[n], rel_tol=within, abs_tol=0.0 if n == "n" else scale * within) for n in names)


def same_value(aggregate: Aggregate, left: object, right: object) -> bool:
    """Whether two values of an aggregate are the same."""
    if aggregate.function in (*SHAPES, *COVARIATIONS) and isinstance(left, float) and isinstance(right, float):
        return identical(left, right) or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e3 * tolerance(aggregate))
    if aggregate.function in SPREADS:
        return close(left, right, tolerance(aggregate))
    return identical(left, right)


def tolerance(aggregate: Aggregate) -> float:
    return FAR_TOLERANCE if str(aggregate.argument).startswith("far") else SPREAD_TOLERANCE


def identical(left: object, right: object) -> bool:
    """Equality under which NaN is equal to itself."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return all(identical(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return identical([*left, *left.values()], [*right, *right.values()])
    both_nan = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    return both_nan or left == right


def close(left: object, right: object, within: float) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return identical(left, right) or math.isclose(left, right, rel_tol=within)
    return identical(left, right)


def content(aggregate: Aggregate, state: object) -> object:
    """What a sketch holds, whatever the order in which it came to hold it (while it is not compacted)."""
    assert isinstance(state, bytes)
    if aggregate.function == "approx_count_distinct":
        return hll_content(state)
    if aggregate.function == "percentile_approx":
        sketch = kll_doubles_sketch.deserialize(state)
        n = sketch.n
        return n, sketch.get_quantiles([(r + 1) / n for r in range(n)], True) if n else []
    return sorted(frequent_strings_sketch.deserialize(state[:-8]).get_frequent_items(ALL_ITEMS)), state[-8:]


def hll_content(state: bytes) -> tuple[int, object]:
    """The coupons of a small HLL (in a list or a hash set), or the registers of a large one."""
    mode = state[7] & 3
    if mode == HLL_REGISTERS:
        return mode, state[40:]
    coupons = np.frombuffer(state[8 if mode == HLL_LIST else 12 :], np.uint32)
    return mode, sorted(coupons[coupons != 0].tolist())
