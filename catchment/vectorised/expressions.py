"""Vectorised expressions: small trees that are made where queries are planned and evaluated where records are read.

An expression knows its type, the columns it reads, and whether evaluating it on a record can fail. As in Spark, a
branch of CASE is evaluated only on the records that reach it, and the right side of AND and OR only where the left one
does not decide; where it cannot fail, it is evaluated on all records, which is faster and gives the same answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.functions.installed import scalar
from catchment.vectorised.kernels import CASTS, FALLIBLE, KERNELS, OVERFLOWING
from catchment.vectorised.records import RecordColumns
from catchment.vectorised.values import Value


@dataclass(frozen=True)
class VectorExpression(ABC):
    """An expression of a known type."""

    type: pa.DataType

    @abstractmethod
    def compute(self, records: RecordColumns) -> Value:
        """Return the value for each record, or one value for all."""

    @property
    def parts(self) -> tuple[VectorExpression, ...]:
        """The expressions that this one is made of."""
        return ()

    @cached_property
    def can_fail(self) -> bool:
        """Whether it may be an error for some record."""
        return any(part.can_fail for part in self.parts)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The columns it reads."""
        return frozenset(name for part in self.parts for name in part.reads)

    def evaluate(self, records: RecordColumns) -> pa.Array:
        """Return the value for each record."""
        return _to_column(self.compute(records), records.rows)


@dataclass(frozen=True)
class InputColumn(VectorExpression):
    """A column of the records."""

    name: str

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset([self.name])

    def compute(self, records: RecordColumns) -> Value:
        return records.columns[self.name]


@dataclass(frozen=True)
class Constant(VectorExpression):
    """One value for all records; None is null."""

    value: object

    def compute(self, records: RecordColumns) -> Value:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True)
class KernelCall(VectorExpression):
    """An operation (`catchment.vectorised.kernels`) on some operands."""

    kernel: str
    operands: tuple[VectorExpression, ...]

    @property
    def parts(self) -> tuple[VectorExpression, ...]:
        return self.operands

    @cached_property
    def can_fail(self) -> bool:
        fails = self.kernel in FALLIBLE or (self.kernel in OVERFLOWING and not pa.types.is_floating(self.type))
        return fails or any(part.can_fail for part in self.parts)

    def compute(self, records: RecordColumns) -> Value:
        values = [operand.compute(records) for operand in self.operands]
        if self.kernel in CASTS:
            return CASTS[self.kernel](*values, self.type)
        return KERNELS[self.kernel](*values)


@dataclass(frozen=True)
class OwnCall(VectorExpression):
    """A call of a function that the project has brought, by its installed name; it may raise on any record."""

    function: str
    operands: tuple[VectorExpression, ...]

    @property
    def parts(self) -> tuple[VectorExpression, ...]:
        return self.operands

    @cached_property
    def can_fail(self) -> bool:
        return True

    def compute(self, records: RecordColumns) -> Value:
        declared = scalar(self.function)
        assert declared is not None, self.function
        columns = [operand.evaluate(records) for operand in self.operands]
        return declared.evaluate(columns) if records.rows else pa.nulls(0, self.type)


@dataclass(frozen=True)
class StructOf(VectorExpression):
    """STRUCT of some values, which is the argument of aggregates of two; its fields are those of the type."""

    values: tuple[VectorExpression, ...]

    @property
    def parts(self) -> tuple[VectorExpression, ...]:
        return self.values

    def compute(self, records: RecordColumns) -> Value:
        columns = [value.evaluate(records) for value in self.values]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))


@dataclass(frozen=True)
class Connective(VectorExpression):
    """AND, or OR, of two conditions, with unknown (null) as a third truth value."""

    left: VectorExpression
    right: VectorExpression
    is_and: bool

    @property
    def parts(self) -> tuple[VectorExpression, ...]:
        return self.left, self.right

    def compute(self, records: RecordColumns) -> Value:
        combine = pc.and_kleene if self.is_and else pc.or_kleene
        if not self.right.can_fail:
            return combine(self.left.compute(records), self.right.compute(records))
        left = self.left.evaluate(records)
        undecided = pc.coalesce(left if self.is_and else pc.invert(left), pa.scalar(True))
        right = _scatter(self.right.evaluate(records.filter(undecided)), undecided)
        return pc.if_else(undecided, combine(left, right), pa.scalar(not self.is_and))


@dataclass(frozen=True)
class Choice(VectorExpression):
    """CASE: the value of the first branch whose condition holds, or else of `otherwise`."""

    branches: tuple[tuple[VectorExpression, VectorExpression], ...]
    otherwise: VectorExpression

    @property
    def parts(self) -> tuple[VectorExpression, ...]:
        return (*(either for branch in self.branches for either in branch), self.otherwise)

    def compute(self, records: RecordColumns) -> Value:
        return self._choose(records, 0)

    def _choose(self, records: RecordColumns, number: int) -> Value:
        if number == len(self.branches):
            return self.otherwise.compute(records)
        condition, value = self.branches[number]
        holds = pc.coalesce(condition.evaluate(records), pa.scalar(False))
        if not self.can_fail:
            return pc.if_else(holds, value.compute(records), self._choose(records, number + 1))
        chosen = _scatter(value.evaluate(records.filter(holds)), holds)
        fails = pc.invert(holds)
        remaining = records.filter(fails)
        others = _scatter(_to_column(self._choose(remaining, number + 1), remaining.rows), fails)
        return pc.if_else(holds, chosen, others)


def _scatter(values: pa.Array, chosen: pa.Array) -> pa.Array:
    """Return a column of all records, with the values in order where they are chosen and null elsewhere."""
    is_chosen = np.asarray(chosen)
    positions = np.cumsum(is_chosen) - 1
    return values.take(pa.array(positions, mask=~is_chosen))


def _to_column(value: Value, rows: int) -> pa.Array:
    if isinstance(value, pa.Array):
        return value
    return pa.repeat(value, rows)
