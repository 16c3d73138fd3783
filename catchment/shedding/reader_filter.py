"""Which records of a batch some fragment wants, as far as a reader can tell before it hands them on.

A fragment wants a record that meets its condition and passes at its rate. The reader of a typed log evaluates the
conditions that Arrow can (`catchment.shedding.conditions` says which), so that a fragment that few records concern may
have all of them, and only those are read for it. This does not change which records a fragment takes: that is decided
by the record's place and the fragment's rate alone.

In a burst every arriving record is examined here, and few are handed on. So all records are tested only against the
requests of rate 1; the other requests are tested against those records whose place is low enough for them.

Conditions are nested lists, not `pyarrow.compute` expressions: an expression filters rows and returns no mask, which is
needed to test fewer and fewer records; and it compares an integer column with a float by converting the column to as
few bits as hold the float, which fails on large integers. Here such a column is widened, once.

This module runs in Spark's workers, which start often: it imports little.
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

from catchment.arrays import Mask, Words

ROW = "_row"  # the column with the number of a record: in its source, or in its batch of history
PLACES = 2**53  # how many places there are; doubles count this far without gaps, so rates are compared exactly

# A condition as nested lists: ["and", a, b], ["or", a, b], ["not", a], ["=", column, value], ["in", column, values],
# ["is", column], ["null", column], ["constant", true].
Condition = list[Any]
_COMPARE: dict[str, Callable[[pa.Array, Any], pa.Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True)
class ReadRequest:
    """A request for the records that meet a condition (None: all of them), sampled at a rate."""

    rate: float
    condition: Condition | None = None


def is_large(column: str, limit: float) -> Condition:
    """Return the condition that the value in a column of numbers is beyond a limit."""
    return ["or", [">", column, limit], ["<", column, -limit]]


def both(one: Condition | None, other: Condition) -> Condition:
    """Return the condition that both conditions hold."""
    return other if one is None else ["and", one, other]


def takes_all(requests: Sequence[ReadRequest]) -> bool:
    """Return whether every record is wanted."""
    return any(request.rate >= 1.0 and request.condition is None for request in requests)


def is_wanted(requests: Sequence[ReadRequest], records: pa.RecordBatch, places: Words) -> Mask:
    """Return which records some request is for; `places` are those of the records.

    Rates nest, so from the highest rate on, fewer and fewer records are tested.
    """
    if takes_all(requests):
        return np.ones(records.num_rows, dtype=np.bool_)
    whole = [request.condition for request in requests if request.rate >= 1.0]
    any_whole: Condition = reduce(lambda one, other: ["or", one, other], whole, ["constant", False])
    wanted = _Evaluation(records).holds(any_whole).copy()
    sampled = sorted((request for request in requests if request.rate < 1.0), key=lambda request: -request.rate)
    rows = np.flatnonzero(~wanted)
    for request in sampled:
        rows = rows[places[rows] < _place_limit(request.rate)]
        if request.condition is None:
            wanted[rows] = True
            return wanted
        columns = sorted(_columns(request.condition))
        met = _Evaluation(records.select(columns).take(pa.array(rows))).holds(request.condition)
        wanted[rows[met]] = True
        rows = rows[~met]
    return wanted


def _place_limit(rate: float) -> np.uint64:
    """Return the lowest place that does not pass at a rate."""
    return np.uint64(math.ceil(rate * PLACES))


def _columns(condition: Condition) -> set[str]:
    match condition:
        case ["and" | "or", left, right]:
            return _columns(left) | _columns(right)
        case ["not", inner]:
            return _columns(inner)
        case ["constant", _]:
            return set()
    return {condition[1]}


@dataclass
class _Evaluation:
    """Evaluates conditions on some records; a column is widened once."""

    records: pa.RecordBatch
    _floats: dict[str, pa.Array] = field(default_factory=dict)

    def holds(self, condition: Condition) -> Mask:
        """Return for which records a condition is true; it is not where it is unknown."""
        found = self._evaluate(condition)
        return np.asarray(found.fill_null(False) if found.null_count else found)

    def _evaluate(self, condition: Condition) -> pa.Array:
        """Evaluate by three-valued logic."""
        match condition:
            case ["and", left, right]:
                return pc.and_kleene(self._evaluate(left), self._evaluate(right))
            case ["or", left, right]:
                return pc.or_kleene(self._evaluate(left), self._evaluate(right))
            case ["not", inner]:
                return pc.invert(self._evaluate(inner))
            case ["constant", value]:
                return pa.repeat(pa.scalar(value, pa.bool_()), self.records.num_rows)
            case ["is", column]:
                return self.records.column(column)
            case ["null", column]:
                return pc.is_null(self.records.column(column))
            case ["in", column, values]:
                return self._is_in(self.records.column(column), values)
            case [operator, column, float(value)]:  # Arrow would convert the column to as few bits as hold the value
                return _COMPARE[operator](self._as_floats(column), value)
            case [operator, column, value]:
                return _COMPARE[operator](self.records.column(column), value)
        raise AssertionError(f"no condition has the form {condition!r}")

    def _is_in(self, column: pa.Array, values: Sequence[Any]) -> pa.Array:
        if pa.types.is_integer(column.type):  # a value may be more than the column can hold
            column = column.cast(pa.int64())
        return pc.is_in(column, value_set=pa.array(values, column.type))

    def _as_floats(self, column: str) -> pa.Array:
        if column not in self._floats:
            self._floats[column] = self.records.column(column).cast(pa.float64(), safe=False)
        return self._floats[column]
