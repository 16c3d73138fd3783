"""An index of records by the values of a column: many conditions `column = constant` cost one pass over the records.

A site may have a hundred views that differ in the key they choose. Each condition alone compares every record; with the
index, the records of a value are looked up. It costs about as much as a dozen comparisons, so it is made when a column
was compared `INDEX_AFTER` times, and only of columns with at most `MAX_VALUES` values, whose codes are sorted fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.grouping import CodedColumn
from catchment.arrays import Index, Ints
from catchment.vectorised.expressions import Connective, Constant, InputColumn, KernelCall, VectorExpression

INDEX_AFTER = 8  # comparisons of a column, after which the next one makes an index
MAX_VALUES = 1 << 16


@dataclass(frozen=True)
class RowIndex:
    """The rows of each value of a column, in their order."""

    values: pa.Array  # by code
    order: Index  # the rows, by the code of their value
    starts: Ints  # where the rows of each code begin in `order`, and where the last ones end

    @classmethod
    def of(cls, coded: CodedColumn) -> RowIndex | None:
        """Return the index of a coded column; None where it has too many values."""
        if coded.count > MAX_VALUES:
            return None
        order = np.argsort(coded.codes.astype(np.uint16), kind="stable")
        counts = np.bincount(coded.codes, minlength=coded.count)
        return cls(coded.decoder.decode(np.arange(coded.count)), order, np.concatenate([[0], np.cumsum(counts)]))

    def rows_of(self, value: pa.Scalar) -> Index:
        """Return the rows that have a value; no row has null."""
        code = pc.index(self.values, value).as_py() if value.is_valid else -1
        return self.order[self.starts[code] : self.starts[code + 1]] if code >= 0 else self.order[:0]


@dataclass(frozen=True)
class ValueTest:
    """A condition that a column has a value, and what else must hold of those records."""

    column: InputColumn
    value: pa.Scalar
    rest: VectorExpression | None

    @classmethod
    def of(cls, condition: VectorExpression) -> ValueTest | None:
        """Return a condition as one about a value; None if it is another.

        What may be an error is not left out for records whose column is null, for which Spark evaluates it.
        """
        if isinstance(condition, Connective) and condition.is_and and not condition.right.can_fail:
            first = cls.of(condition.left)
            if first is None or first.rest is not None:
                return None
            return cls(first.column, first.value, condition.right)
        if not isinstance(condition, KernelCall) or condition.kernel != "equal":
            return None
        column, constant = condition.operands
        if not isinstance(column, InputColumn) or not isinstance(constant, Constant):
            return None
        if not (pa.types.is_signed_integer(column.type) or column.type == pa.string()):
            return None
        return cls(column, pa.scalar(constant.value, column.type), None)
