"""bit_and, bit_or and bit_xor: integers combined bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.grouped import count_rows, integers_of, nullable, valid_rows
from catchment.errors import AggregateError
from catchment.storage.codec import stored

_COMBINE = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}
_START = {"bit_and": -1, "bit_or": 0, "bit_xor": 0}  # what changes nothing


@stored()
@dataclass(frozen=True)
class Bits(Aggregate):
    """The bits of all integers, combined; null for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not pa.types.is_signed_integer(self.argument_type):
            raise AggregateError(
                f"{self.function} needs integers, and was given {self.argument_type}",
                where=self.name,
                hint=f"convert it: {self.function}(CAST({self.argument} AS BIGINT))",
            )

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column("bits", self.argument_type),)

    @property
    def result_type(self) -> pa.DataType:
        return self.argument_type

    def lift_sql(self) -> tuple[str, ...]:
        return (f"{self.function}({self.argument})",)

    def merge_sql(self) -> tuple[str, ...]:
        return (f"{self.function}({self.states[0].sql})",)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        valid = valid_rows(values)
        combined = np.full(size, _START[self.function], dtype=np.int64)
        _COMBINE[self.function].at(combined, groups[valid], integers_of(values)[valid])
        return [nullable(combined, count_rows(values, groups, size) == 0).cast(self.argument_type)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return self.lift(states[0], groups, size)

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return states[0]
