"""count(DISTINCT ...) and collect_set: sets of bounded size, the least values of those that came.

The state is a sorted list of distinct values, at most so many; where more came, the least of them. That depends on the
set of values alone, so partials merge in any order and pieces. A distinct count keeps 64 bit hashes (Spark's xxhash64)
in place of values: up to `max_distinct` of them are counted exactly, but for hashes that collide, which two of 10,000
values do with a chance of 3e-12. Beyond, the k least of n hashes say how many there are: (k - 1) / u, with u the share
of all hashes that the greatest of them leaves below it (Beyer et al., "On Synopses for Distinct-Value Estimation Under
Multiset Operations", SIGMOD 2007), with a relative standard deviation of 1 / sqrt(k - 2).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate, AggregateCall, Groups, StateColumn, fields_of
from catchment.aggregates.grouped import sorted_codes, valid_rows
from catchment.aggregates.hashing import hash_rows
from catchment.aggregates.simple import ZEROS, is_ordered
from catchment.arrays import Mask
from catchment.errors import AggregateError, CatchmentError
from catchment.storage.codec import stored

DEFAULT_MAX_DISTINCT = 10_000
DEFAULT_MAX_ITEMS = 1_000
MAX_SET = 1_000_000
_HALF = 2.0**63


@dataclass(frozen=True)
class BoundedSet(Aggregate):
    """An aggregate whose state is a sorted list of at most `capacity` distinct values, the least that came."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The most values that a set keeps."""

    @property
    @abstractmethod
    def item_type(self) -> pa.DataType:
        """The type of the values."""

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column("set", pa.list_(self.item_type)),)

    def merge_sql(self) -> tuple[str, ...]:
        return (self._least_sql(f"array_distinct(flatten(collect_list({self.states[0].sql})))"),)

    def _least_sql(self, items: str) -> str:
        return f"slice(array_sort({items}), 1, {self.capacity})"

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        sets = states[0]
        owners = groups[np.asarray(pc.list_parent_indices(sets))]
        return [self._least(pc.list_flatten(sets), owners, size)]

    def _least(self, values: pa.Array, groups: Groups, size: int) -> pa.Array:
        """Return the least distinct values of each group, sorted."""
        codes, distinct = sorted_codes(values)
        pairs = np.unique(groups.astype(np.int64) * max(len(distinct), 1) + codes)
        owners, items = np.divmod(pairs, max(len(distinct), 1))
        starts = np.searchsorted(owners, np.arange(size))
        kept = np.arange(len(pairs)) - starts[owners] < self.capacity
        counts = np.bincount(owners[kept], minlength=size)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), distinct.take(pa.array(items[kept]))).cast(
            self.states[0].type
        )


@stored()
@dataclass(frozen=True)
class CountDistinct(BoundedSet):
    """How many distinct values or combinations of values, none of them null; 0 for none.

    The argument of several values is a struct of them. Exact up to `max_distinct`, an estimate beyond. A count that was
    made exact later (`counted`) is a state of null and the count: it has no values any more, and cannot be merged.
    """

    max_distinct: int = DEFAULT_MAX_DISTINCT

    def __post_init__(self) -> None:
        super().__post_init__()
        check_set_size(self.max_distinct, 2, self)
        try:
            hash_rows([pa.nulls(1, type_) for type_ in self._types.values()])
        except CatchmentError as cause:
            raise AggregateError(
                f"count(DISTINCT ...) cannot take {self.argument_type}", where=self.name, hint=cause.hint
            ) from cause

    @classmethod
    def from_call(cls, call: AggregateCall) -> CountDistinct:
        """Make the aggregate of a call; a parameter is the greatest number that is counted exactly."""
        return cls(*call.head, *(_whole(p, call.name) for p in call.parameters))

    @property
    def _types(self) -> dict[str, pa.DataType | None]:
        return fields_of(self.argument_type) or {"": self.argument_type}

    @property
    def capacity(self) -> int:
        return self.max_distinct + 1

    @property
    def item_type(self) -> pa.DataType:
        return pa.int64()

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    @property
    def exact(self) -> bool:
        return False

    @property
    def sketch_error(self) -> float:
        """The relative standard deviation beyond the bound."""
        return 1.0 / math.sqrt(self.max_distinct - 1)

    def are_estimates(self, states: Sequence[pa.Array]) -> Mask:
        return np.asarray(_sizes(states[0]) > self.max_distinct)

    def lift_sql(self) -> tuple[str, ...]:
        parts = [f"({self.argument}).{name}" if name else f"({self.argument})" for name in self._types]
        missing = " OR ".join(f"isnull({part})" for part in parts)
        return (self._least_sql(f"collect_set(IF({missing}, NULL, xxhash64({', '.join(parts)})))"),)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        columns = [pc.struct_field(values, name) if name else values for name in self._types]
        known = np.logical_and.reduce([valid_rows(column) for column in columns])
        hashes = hash_rows([column.filter(pa.array(known)) for column in columns]).view(np.int64)
        return [self._least(pa.array(hashes), groups[known], size)]

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        if pc.list_flatten(states[0]).null_count:
            raise AggregateError("a count that was made exact by a second round cannot be merged", where=self.name)
        return super().combine(states, groups, size)

    def counted(self, values: int) -> list[int | None]:
        """Return the state of so many distinct values that are not kept."""
        return [None, values]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        sizes = _sizes(states[0])
        counts = sizes.copy()
        if pc.list_flatten(states[0]).null_count:
            for row, items in enumerate(states[0].to_pylist()):
                if items and items[0] is None:
                    counts[row] = items[1]
        for row in np.flatnonzero(sizes > self.max_distinct).tolist():
            greatest = states[0][row].values[-1].as_py()
            counts[row] = round((self.capacity - 1) / ((greatest + _HALF + 1) / (2 * _HALF)))
        return pa.array(counts, pa.int64())


@stored()
@dataclass(frozen=True)
class CollectSet(BoundedSet):
    """The distinct values, sorted; of more than `max_items` the least; empty for none."""

    max_items: int = DEFAULT_MAX_ITEMS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_set_size(self.max_items, 1, self)
        if not is_ordered(self.argument_type):
            raise AggregateError(
                f"collect_set needs numbers, strings, dates, timestamps or booleans, and was given "
                f"{self.argument_type}",
                where=self.name,
                hint="CAST it to one of these",
            )

    @classmethod
    def from_call(cls, call: AggregateCall) -> CollectSet:
        """Make the aggregate of a call; a parameter is the greatest number of values that are kept."""
        return cls(*call.head, *(_whole(p, call.name) for p in call.parameters))

    @property
    def capacity(self) -> int:
        return self.max_items

    @property
    def item_type(self) -> pa.DataType:
        return self.argument_type

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.argument_type)

    def lift_sql(self) -> tuple[str, ...]:
        zero = ZEROS.get(self.argument_type, "")
        return (self._least_sql(f"collect_set(({self.argument}){zero})"),)

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        known = valid_rows(values)
        return [self._least(values.filter(pa.array(known)), groups[known], size)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        empty = pa.array([[]], states[0].type)[0]
        return pc.fill_null(states[0], empty) if states[0].null_count else states[0]


def _sizes(sets: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(pc.list_value_length(sets).fill_null(0)).astype(np.int64)


def check_set_size(size: int, least: int, aggregate: Aggregate) -> None:
    """Refuse a bound on the number of distinct values that is too small or too large."""
    if not least <= size <= MAX_SET:
        raise AggregateError(
            f"{aggregate.function} keeps from {least} to {MAX_SET} values, and was asked for {size}",
            where=aggregate.name,
        )


def _whole(value: object, name: str) -> int:
    if not str(value).isdigit():
        raise AggregateError(f"the number of distinct values that are kept is whole, not {value!r}", where=name)
    return int(str(value))
