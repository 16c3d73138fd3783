"""first, last, min_by and max_by: the value of the record whose `by` is least or greatest.

The argument is one struct of both, STRUCT(value, by); the state has both. `first` and `last` are by event time. Of
records with an equal `by`, min_by and first take the least value, max_by and last the greatest, and any value rather
than null: so the answer depends on the records alone, not on the order in which they came. A record whose `by` is null
does not count; a null value does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate, Groups, StateColumn, fields_of
from catchment.aggregates.grouped import extreme
from catchment.aggregates.simple import ZEROS, is_ordered
from catchment.errors import AggregateError
from catchment.storage.codec import stored

VALUE, BY = "value", "by"
_LEAST = ("min_by", "first")


@stored()
@dataclass(frozen=True)
class ValueBy(Aggregate):
    """The value at the least or the greatest `by`; null for no records."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in (VALUE, BY):
            if not is_ordered(self._type(field)):
                raise AggregateError(
                    f"{self.function} needs numbers, strings, dates, timestamps or booleans, and was given "
                    f"{self._type(field)}",
                    where=self.name,
                    hint="CAST it to one of these",
                )

    @property
    def which(self) -> str:
        """Which `by` is wanted: min or max."""
        return "min" if self.function in _LEAST else "max"

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column(VALUE, self._type(VALUE)), self.column(BY, self._type(BY)))

    @property
    def result_type(self) -> pa.DataType:
        return self._type(VALUE)

    def lift_sql(self) -> tuple[str, ...]:
        fields = (f"({self.argument}).{f}{ZEROS.get(self._type(f), '')}" for f in (VALUE, BY))
        return self._pick_sql(*fields)

    def merge_sql(self) -> tuple[str, ...]:
        return self._pick_sql(*(state.sql for state in self.states))

    def _pick_sql(self, value: str, by: str) -> tuple[str, ...]:
        """Return the best (by, value): in Spark a struct is compared field by field, and null is below all else."""
        nulls_last = f"'none', isnull({value}), " if self.which == "min" else ""
        whole = f"named_struct('{BY}', {by}, {nulls_last}'{VALUE}', {value})"
        best = f"({self.which}({whole}) FILTER (WHERE {by} IS NOT NULL))"
        return (f"{best}.{VALUE}", f"{best}.{BY}")

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        return self._pick(pc.struct_field(values, VALUE), pc.struct_field(values, BY), groups, size)

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        value, by = states
        return self._pick(value, by, groups, size)

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]

    def _pick(self, value: pa.Array, by: pa.Array, groups: Groups, size: int) -> list[pa.Array]:
        best = extreme(by, groups, size, self.which)
        wanted = np.asarray(_same(by, best.take(pa.array(groups))))
        tied = value.filter(pa.array(wanted))
        return [extreme(tied, groups[wanted], size, self.which), best]

    def _type(self, field: str) -> pa.DataType:
        return fields_of(self.argument_type).get(field, pa.null())


def _same(left: pa.Array, right: pa.Array) -> pa.Array:
    """Return where two columns are equal; NaN equals NaN, and null equals nothing."""
    equal = pc.equal(left, right).fill_null(False)
    if not pa.types.is_floating(left.type):
        return equal
    both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right)).fill_null(False)
    return pc.or_(equal, both_nan)
