"""Which records of a batch anybody wants: what a reader can tell before it hands them on.

A fragment wants a record that meets its condition and passes at its rate. The reader of a typed log evaluates the
conditions that Arrow can (`catchment.shedding.conditions` says which), so that a fragment that few records concern may
have all of them, and only those are read for it. The fate of a record within a fragment is the same with and without
this: it is decided by its place and the fragment's rate alone.

Under a spike every arriving record is looked at here, and few are handed on: what is asked of all of them is only what
some fragment wants whatever the place, and all else of those records alone whose place is low enough for anybody.

It runs in Spark's workers, which start often: it imports little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# A condition as nested lists: ["and", a, b], ["not", a], ["=", column, value], ["in", column, values], ["is", column],
# ["null", column], ["constant", true].
Test = list[Any]
_COMPARE: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_PLACES = 2**53  # as many as a record can have (`catchment.shedding.places`)

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Wanted:
    """The records that meet a test (None: all of them), at a rate."""

    rate: float
    test: Test | None = None


def large(column: str, limit: float) -> Test:
    """The records whose value in a column of numbers is beyond a limit."""
    return ["or", [">", column, limit], ["<", column, -limit]]


def both(one: Test | None, other: Test) -> Test:
    """The records that meet both tests."""
    return other if one is None else ["and", one, other]


def takes_all(wanted: Sequence[Wanted]) -> bool:
    """Whether every record is wanted."""
    return any(w.rate >= 1.0 and w.test is None for w in wanted)


def is_wanted(wanted: Sequence[Wanted], records: pa.RecordBatch, places: NDArray[np.uint64]) -> Mask:
    """Which records some fragment wants; `places` are theirs. Rates nest: from the highest rate on, fewer and fewer
    records are asked about."""
    whatever = [w.test for w in wanted if w.rate >= 1.0]
    if None in whatever:
        return np.ones(records.num_rows, dtype=np.bool_)
    found = _Tests(records).met(reduce(lambda one, other: ["or", one, other], whatever, ["constant", False])).copy()
    sampled = sorted((w for w in wanted if w.rate < 1.0), key=lambda w: -w.rate)
    rows = np.flatnonzero((places < _first_beyond(sampled[0].rate if sampled else 0.0)) & ~found)
    for one in sampled:
        rows = rows[places[rows] < _first_beyond(one.rate)]
        if one.test is None:
            found[rows] = True
            return found
        met = _Tests(records.select(sorted(_columns(one.test))).take(pa.array(rows))).met(one.test)
        found[rows[met]] = True
        rows = rows[~met]
    return found


def _first_beyond(rate: float) -> np.uint64:
    """The lowest place that does not pass at a rate."""
    return np.uint64(math.ceil(rate * _PLACES))


def _columns(test: Test) -> set[str]:
    match test:
        case ["and" | "or", left, right]:
            return _columns(left) | _columns(right)
        case ["not", inner]:
            return _columns(inner)
        case ["constant", _]:
            return set()
    return {test[1]}


@dataclass
class _Tests:
    """Tests of some records; a column is converted once."""

    records: pa.RecordBatch
    _floats: dict[str, pa.Array] = field(default_factory=dict)

    def met(self, test: Test) -> Mask:
        """Which records meet a test; those of which it is not known do not."""
        found = self._holds(test)
        return np.asarray(found.fill_null(False) if found.null_count else found)

    def _holds(self, test: Test) -> pa.Array:
        """By three-valued logic."""
        match test:
            case ["and", left, right]:
                return pc.and_kleene(self._holds(left), self._holds(right))
            case ["or", left, right]:
                return pc.or_kleene(self._holds(left), self._holds(right))
            case ["not", inner]:
                return pc.invert(self._holds(inner))
            case ["constant", value]:
                return pa.repeat(pa.scalar(value, pa.bool_()), self.records.num_rows)
            case ["is", column]:
                return self.records.column(column)
            case ["null", column]:
                return pc.is_null(self.records.column(column))
            case ["in", column, values]:
                return self._in(self.records.column(column), values)
            case [operator, column, float(value)]:  # Arrow would convert the column to as few bits as hold the value
                return _COMPARE[operator](self._as_floats(column), value)
            case [operator, column, value]:
                return _COMPARE[operator](self.records.column(column), value)
        raise ValueError(f"no test has the form {test!r}")

    def _in(self, column: pa.Array, values: Sequence[Any]) -> pa.Array:
        if pa.types.is_integer(column.type):  # a value may be more than the column can hold
            column = column.cast(pa.int64())
        return pc.is_in(column, value_set=pa.array(values, column.type))

    def _as_floats(self, column: str) -> pa.Array:
        if column not in self._floats:
            self._floats[column] = self.records.column(column).cast(pa.float64(), safe=False)
        return self._floats[column]
