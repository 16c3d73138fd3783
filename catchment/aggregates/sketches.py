"""What sketch aggregates have in common: a state of one binary column, in the format of Apache DataSketches.

Spark and the core read and write the same bytes. A state that is alone in its group passes through untouched: only real
merges deserialize. A null state is that of no records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate, Groups, StateColumn
from catchment.aggregates.grouped import nullable, stable_order, valid_rows
from catchment.arrays import Ints
from catchment.errors import AggregateError

Sketch = TypeVar("Sketch")

EMPTY_BYTES = 16  # about what a sketch takes before its first value
VALUE_BYTES = 8  # about what each further value adds to it
FULL_BYTES = 4_096  # about what it grows to


@dataclass(frozen=True)
class SketchAggregate(Aggregate):
    """An aggregate whose state is one sketch."""

    suffix = "sketch"

    @property
    def takes_counts(self) -> bool:
        """Whether its states follow from each distinct value and how many records have it (`lift_counted`)."""
        return False

    def size_bytes(self, values: float) -> float:
        """Return about how many bytes the sketch of so many values takes."""
        return min(float(FULL_BYTES), EMPTY_BYTES + VALUE_BYTES * values)

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return (self.column(self.suffix, pa.binary()),)

    @property
    def exact(self) -> bool:
        return False

    @abstractmethod
    def prepare(self, values: pa.Array) -> pa.Array:
        """Return the values to put into sketches, from values without nulls."""

    @abstractmethod
    def sketch(self, values: pa.Array) -> bytes:
        """Return the sketch of one group's prepared values."""

    @abstractmethod
    def merge(self, sketches: Sequence[bytes]) -> bytes:
        """Return the one sketch of two or more."""

    @abstractmethod
    def estimate(self, sketch: bytes | None) -> object:
        """Return the value of one sketch."""

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        present = groups[valid_rows(values)]
        parts = split_by_group(self.prepare(values.drop_null()), present, size)
        return [pa.array([self.sketch(part) for part in parts], pa.binary())]

    def lift_counted(self, values: pa.Array, counts: Ints, groups: Groups, size: int) -> list[pa.Array]:
        """Return what `lift` would of as many records of each value as are counted."""
        raise AggregateError(f"{self.function} needs every record, not values with their counts", where=self.name)

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> list[pa.Array]:
        return [merge_by_group(states[0], groups, size, self.merge)]

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return pa.array([self.estimate(sketch) for sketch in states[0].to_pylist()], self.result_type)


def split_by_group(values: pa.Array, groups: Groups, size: int) -> Iterator[pa.Array]:
    """Yield the values of each group, in their order."""
    ordered = values.take(pa.array(stable_order(groups)))
    ends = np.cumsum(np.bincount(groups, minlength=size)).tolist()
    for start, end in pairwise([0, *ends]):
        yield ordered.slice(start, end - start)


def merge_by_group(states: pa.Array, groups: Groups, size: int, merge: Callable[[Sequence[bytes]], bytes]) -> pa.Array:
    """Return one state per group: the only one there is, or the merge of all; null where there is none."""
    rows = np.flatnonzero(valid_rows(states))
    counts = np.bincount(groups[rows], minlength=size)
    source = np.full(size, -1, dtype=np.int64)
    source[groups[rows]] = rows
    crowded = np.flatnonzero(counts > 1)
    source[crowded] = len(states) + np.arange(crowded.size)
    merged = _merge_each(states, groups, rows[counts[groups[rows]] > 1], merge)
    pool = pa.concat_arrays([states, pa.array(merged, states.type)])
    return pc.take(pool, nullable(source, source < 0))


def _merge_each(
    states: pa.Array, groups: Groups, rows: Groups, merge: Callable[[Sequence[bytes]], bytes]
) -> list[bytes]:
    """Return the merges of the groups that these rows belong to, in order of group."""
    rows = rows[stable_order(groups[rows])]
    sketches = states.take(pa.array(rows)).to_pylist()
    starts = np.flatnonzero(np.r_[True, np.diff(groups[rows]) != 0]) if rows.size else np.empty(0, np.intp)
    bounds = [*starts.tolist(), rows.size]
    return [merge(sketches[a:b]) for a, b in pairwise(bounds)]


def read_sketch(read: Callable[[bytes], Sketch], state: bytes, aggregate: Aggregate) -> Sketch:
    """Deserialize a state; bytes that are no such sketch are refused."""
    try:
        return read(state)
    except (IndexError, ValueError, RuntimeError, MemoryError, TypeError) as error:
        raise AggregateError(
            f"a state of {aggregate.name!r} is no {aggregate.function} sketch ({len(state)} bytes): {error}"
        ) from error
