"""Totals: how sum, avg and moments add, one way for each kind of number.

An integer total is one 64 bit integer, a decimal total one decimal of 38 digits: both exact, and an overflow is an
error as in Spark's ANSI mode. A total of doubles is a pair: each number is split into its upper 24 bits (the number in
single precision) and the rest, at most 29 bits, and the two are added separately, so that sixteen million numbers of
similar size are added without any rounding. The core also adds numbers of very different sizes apart, and carries the
rounding errors of upper sums into the lower one (TwoSum). The error is far below 1e-12 of the sum of the absolute
values, which matters where large numbers of both signs cancel and a small sum remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.grouped import (
    DECIMAL_DIGITS,
    SINGLE_LIMIT,
    count_rows,
    floats_of,
    nullable,
    sum_decimals,
    sum_integers,
    sum_pairs,
    sum_split,
)
from catchment.arrays import Floats
from catchment.errors import AggregateError


class Total(Protocol):
    """A sum of numbers of one kind; null where there were none."""

    @property
    def states(self) -> tuple[StateColumn, ...]: ...
    @property
    def result_type(self) -> pa.DataType: ...
    def lift_sql(self, number: str) -> tuple[str, ...]: ...
    def merge_sql(self) -> tuple[str, ...]: ...
    def lift(self, values: pa.Array, groups: Groups, size: int) -> list[pa.Array]: ...
    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]: ...
    def lower(self, states: Sequence[pa.Array]) -> pa.Array: ...


@dataclass(frozen=True)
class IntegerTotal:
    """A 64 bit sum of integers."""

    prefix: str

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (StateColumn(self.prefix, pa.int64()),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def lift_sql(self, number: str) -> tuple[str, ...]:
        return (f"sum(CAST({number} AS BIGINT))",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"sum({self.states[0].sql})",)

    def lift(self, values: pa.Array, groups: Groups, size: int) -> list[pa.Array]:
        return [sum_integers(values, groups, size)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return [sum_integers(states[0], groups, size)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True)
class DecimalTotal:
    """A sum of decimals of one scale, with 38 digits."""

    prefix: str
    scale: int

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (StateColumn(self.prefix, self.result_type),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.decimal128(DECIMAL_DIGITS, self.scale)

    def lift_sql(self, number: str) -> tuple[str, ...]:
        return (f"sum(CAST({number} AS DECIMAL({DECIMAL_DIGITS}, {self.scale})))",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"sum({self.states[0].sql})",)

    def lift(self, values: pa.Array, groups: Groups, size: int) -> list[pa.Array]:
        return [sum_decimals(values, groups, size)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return [sum_decimals(states[0], groups, size)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@dataclass(frozen=True)
class DoubleTotal:
    """A sum of doubles as a pair whose value is high + low."""

    prefix: str

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (
            StateColumn(f"{self.prefix}_hi", pa.float64()),
            StateColumn(f"{self.prefix}_lo", pa.float64()),
        )

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def lift_sql(self, number: str) -> tuple[str, ...]:
        x = f"CAST({number} AS DOUBLE)"
        upper = f"IF(abs({x}) <= {SINGLE_LIMIT}D, CAST(CAST({x} AS FLOAT) AS DOUBLE), {x})"
        return (f"sum({upper})", f"sum(nanvl({x} - {upper}, 0D))")

    def merge_sql(self) -> tuple[str, ...]:
        return tuple(f"sum({state.sql})" for state in self.states)

    def lift(self, values: pa.Array, groups: Groups, size: int) -> list[pa.Array]:
        counts = count_rows(values, groups, size)
        high, low = split_doubles(floats_of(values))
        sums = sum_split(high, low, groups, size, int(counts.max(initial=0)))
        return [nullable(part, counts == 0) for part in sums]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        high, low = states
        missing = count_rows(high, groups, size) == 0
        return [nullable(part, missing) for part in sum_pairs(floats_of(high), floats_of(low), groups, size)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        high, low = states
        return nullable(floats_of(high) + floats_of(low), np.asarray(high.is_null()))


def split_doubles(numbers: Floats) -> tuple[Floats, Floats]:
    """Return the upper 24 bits of each number, and the rest; their sum is the number.

    All of a number beyond single precision is in the upper part, as for NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if numbers.size and max(float(numbers.max()), -float(numbers.min())) <= SINGLE_LIMIT:  # neither for NaN
            upper = numbers.astype(np.float32).astype(np.float64)
            return upper, numbers - upper
        splits = np.abs(numbers) <= SINGLE_LIMIT
        upper = np.where(splits, numbers.astype(np.float32).astype(np.float64), numbers)
        return upper, np.where(splits, numbers - upper, 0.0)


def check_number(aggregate: Aggregate) -> None:
    """Refuse an argument that is no number."""
    type_ = aggregate.argument_type
    if is_number(type_):
        return
    raise AggregateError(
        f"{aggregate.function} needs numbers, and was given {aggregate.argument}, which is {type_}",
        where=aggregate.name,
        hint=f"convert it: {aggregate.function}(CAST({aggregate.argument} AS DOUBLE))",
    )


def is_number(type_: pa.DataType | None) -> bool:
    """Return whether values of a type can be added."""
    return bool(pa.types.is_signed_integer(type_) or isinstance(type_, pa.Decimal128Type) or is_double(type_))


def total_of(prefix: str, type_: pa.DataType) -> Total:
    """Return the total that fits a type of number."""
    if isinstance(type_, pa.Decimal128Type):
        return DecimalTotal(prefix, type_.scale)
    return DoubleTotal(prefix) if is_double(type_) else IntegerTotal(prefix)


def is_double(type_: pa.DataType | None) -> bool:
    """Return whether numbers of a type are summed as doubles."""
    return bool(pa.types.is_float32(type_) or pa.types.is_float64(type_))
