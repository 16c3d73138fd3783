"""Count, sum, avg, min and max."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.grouped import (
    DECIMAL_DIGITS,
    count_rows,
    extreme,
    floats_of,
    nullable,
    sum_integers,
)
from catchment.aggregates.totals import DecimalTotal, Total, check_number, total_of
from catchment.errors import AggregateError
from catchment.storage.codec import stored

# Spark gives an average of decimals four digits more after the point than the decimals have.
_AVERAGE_DIGITS = 4
# Added to a float, to make -0.0 the same as 0.0 in whatever order they come.
ZEROS = {pa.float32(): " + 0F", pa.float64(): " + 0D"}


@stored()
@dataclass(frozen=True)
class Count(Aggregate):
    """How many records, or how many non-null values; 0 for none."""

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column("count", pa.int64()),)

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def lift_sql(self) -> tuple[str, ...]:
        return (f"count({self.argument or '*'})",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"coalesce(sum({self.states[0].sql}), 0L)",)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        return [pa.array(count_rows(values, groups, size))]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return [sum_integers(states[0], groups, size).fill_null(0)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@stored()
@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of the values; null for none. See `catchment.aggregates.totals` for what is exact."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self)

    @cached_property
    def total(self) -> Total:
        return total_of(f"{self.name}__sum", self.argument_type)

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return self.total.states

    @property
    def result_type(self) -> pa.DataType:
        return self.total.result_type

    def lift_sql(self) -> tuple[str, ...]:
        return self.total.lift_sql(f"({self.argument})")

    def merge_sql(self) -> tuple[str, ...]:
        return self.total.merge_sql()

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        return self.total.lift(values, groups, size)

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return self.total.combine(states, groups, size)

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return self.total.lower(states)


@stored()
@dataclass(frozen=True)
class Average(Sum):
    """The sum over the count; null for none. It is a double for doubles and integers, a decimal for decimals."""

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (*self.total.states, self._count)

    @property
    def _count(self) -> StateColumn:
        return self.column("count", pa.int64())

    @property
    def result_type(self) -> pa.DataType:
        if isinstance(self.total, DecimalTotal):
            scale = min(self.total.scale + _AVERAGE_DIGITS, DECIMAL_DIGITS)
            return pa.decimal128(DECIMAL_DIGITS, scale)
        return pa.float64()

    def lift_sql(self) -> tuple[str, ...]:
        return (*super().lift_sql(), f"count({self.argument})")

    def merge_sql(self) -> tuple[str, ...]:
        return (*super().merge_sql(), f"coalesce(sum({self._count.sql}), 0L)")

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        return [*super().lift(values, groups, size), pa.array(count_rows(values, groups, size))]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        *totals, count = states
        return [*self.total.combine(totals, groups, size), sum_integers(count, groups, size).fill_null(0)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        *totals, count = states
        total = self.total.lower(totals)
        if isinstance(self.total, DecimalTotal):
            return self._divide_decimals(total, count)
        none = np.asarray(pc.equal(count, 0))
        return nullable(floats_of(total) / np.where(none, 1, np.asarray(count)), none)

    def _divide_decimals(self, total: pa.Array, count: pa.Array) -> pa.Array:
        """Divide with Python's decimals, rounding half up as Spark does: Arrow would cut the digits off."""
        context = Context(prec=2 * DECIMAL_DIGITS)
        step = Decimal(1).scaleb(-self.result_type.scale)
        quotients = [
            context.divide(t, Decimal(n)).quantize(step, ROUND_HALF_UP, context) if n else None
            for t, n in zip(total.to_pylist(), count.to_pylist(), strict=True)
        ]
        return pa.array(quotients, self.result_type)


@stored()
@dataclass(frozen=True)
class Extreme(Aggregate):
    """The least or the greatest value; null for none. Strings are ordered by their bytes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_ordered(self.argument_type):
            raise AggregateError(
                f"{self.function} needs numbers, strings, dates, timestamps or booleans, and was given "
                f"{self.argument_type}",
                where=self.name,
            )

    @property
    def which(self) -> str:
        """Which value is wanted: min or max."""
        return self.function

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column(self.which, self.argument_type),)

    @property
    def result_type(self) -> pa.DataType:
        return self.argument_type

    def lift_sql(self) -> tuple[str, ...]:
        zero = ZEROS.get(self.argument_type, "")
        return (f"{self.which}(({self.argument}){zero})",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"{self.which}({self.states[0].sql})",)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        return [extreme(values, groups, size, self.which)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return [extreme(states[0], groups, size, self.which)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]


@stored()
@dataclass(frozen=True)
class AllOrAny(Extreme):
    """Whether a condition holds for all values (bool_and), or for any (bool_or); null for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not pa.types.is_boolean(self.argument_type):
            raise AggregateError(
                f"{self.function} needs a condition, and was given {self.argument_type}",
                where=self.name,
                hint="a condition is true or false, such as x > 100",
            )

    @property
    def which(self) -> str:
        return "min" if self.function == "bool_and" else "max"


def is_ordered(type_: pa.DataType | None) -> bool:
    """Return whether min and max of a type mean the same in Spark and in Arrow."""
    tests = (
        pa.types.is_signed_integer,
        pa.types.is_float32,
        pa.types.is_float64,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_date32,
        pa.types.is_timestamp,
        pa.types.is_boolean,
    )
    return any(test(type_) for test in tests)
