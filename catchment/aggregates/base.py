"""What an aggregate is: three functions with their laws, and the flat columns that carry its state.

`lift` turns records into states, `combine` merges states (associative, commutative, with the state of no
records as identity), `lower` turns a state into its value. So for any way of splitting the records of a
group,

    lower(combine(lift(part 1), lift(part 2), ...)) = lower(lift(all of them))

bit by bit for counts, integers, decimals, minima, maxima and HLL sketches; within 1e-12 for sums of doubles;
within the published error for the other sketches. Lift and combine exist twice, as Spark SQL and as
numpy/Arrow, and the states of both may be mixed freely.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from catchment.arrays import Index, Mask
from catchment.errors import AggregateError

Groups = Index  # the group of each row


@dataclass(frozen=True)
class StateColumn:
    """A column of an aggregate's state: its full name, such as `bytes__sum`, and its Arrow type."""

    name: str
    type: pa.DataType

    @property
    def sql(self) -> str:
        """The name, quoted for Spark SQL."""
        return quote(self.name)


@dataclass(frozen=True)
class AggregateCall:
    """The call of an aggregate function: `function(argument, *parameters) AS name`."""

    name: str
    function: str
    argument: str | None
    argument_type: pa.DataType | None
    parameters: tuple[object, ...] = ()

    @property
    def head(self) -> tuple[str, str, str | None, pa.DataType | None]:
        """The fields that aggregates of every kind have."""
        return self.name, self.function, self.argument, self.argument_type


@dataclass(frozen=True)
class Aggregate(ABC):
    """An aggregate function over one argument, named as its column in the results.

    `function` is the canonical name, `argument` the Spark SQL text of what is aggregated (None: every row
    counts), `argument_type` its Arrow type. Functions of two arguments are over one struct of both. Nulls are
    skipped as in SQL.
    """

    name: str
    function: str
    argument: str | None
    argument_type: pa.DataType | None

    def __post_init__(self) -> None:
        if not self.name:
            raise AggregateError(f"the aggregate {self.function}({self.argument}) has no name")

    @property
    @abstractmethod
    def states(self) -> tuple[StateColumn, ...]:
        """The columns of its state, in order."""

    @property
    @abstractmethod
    def result_type(self) -> pa.DataType:
        """The Arrow type of its value."""

    @property
    def exact(self) -> bool:
        """Whether the value is that of the records themselves; False for sketches."""
        return True

    @property
    def sketch_error(self) -> float:
        """The error of a sketch, as its library states it (`catchment.quality.laws`); 0.0 where exact."""
        return 0.0

    @property
    def lifts_in_spark(self) -> bool:
        """Whether `lift_sql` can say how records are lifted; else Python does, in Spark's tasks."""
        return True

    @property
    def merges_in_spark(self) -> bool:
        """Whether `merge_sql` can say how states are merged; else they are merged in the driver."""
        return True

    def are_estimates(self, states: Sequence[pa.Array]) -> Mask:
        """Return which of these states give an estimate and not the value of the records themselves."""
        return np.full(len(states[0]), not self.exact)

    @abstractmethod
    def lift_sql(self) -> tuple[str, ...]:
        """Return one Spark SQL aggregate expression per state column, over raw records."""

    @abstractmethod
    def merge_sql(self) -> tuple[str, ...]:
        """Return one Spark SQL aggregate expression per state column, over rows of partials."""

    @abstractmethod
    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        """Return the states of `size` groups of records; record i belongs to group `groups[i]`."""

    @abstractmethod
    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        """Return the states of `size` groups of partials; partial i belongs to group `groups[i]`."""

    @abstractmethod
    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        """Return the values of the states, one per row."""

    def column(self, suffix: str, type_: pa.DataType) -> StateColumn:
        """Return a state column of this aggregate."""
        return StateColumn(f"{self.name}__{suffix}", type_)


def quote(name: str) -> str:
    """Return an identifier, quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def fields_of(type_: pa.DataType | None) -> dict[str, pa.DataType]:
    """Return the fields of a struct; none where a type is no struct."""
    return {field.name: field.type for field in type_} if isinstance(type_, pa.StructType) else {}
