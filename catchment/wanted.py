"""Which records of a batch anybody wants: what a reader can tell before it hands them on.

A fragment wants a record that meets its condition and passes at its rate. The reader of a typed log evaluates the
conditions that Arrow can (`catchment.optimizer.pushdown` says which), so that a fragment that few records concern may
have all of them, and only those are read for it. The fate of a record within a fragment is the same with and without
this: it is decided by its place and the fragment's rate alone.

It runs in Spark's workers, which start often: it imports little.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# A condition as nested lists: ["and", a, b], ["not", a], ["=", column, value], ["in", column, values], ["is", column],
# ["null", column], ["constant", true]. Lists, because it travels as JSON to the workers.
Test = list[Any]
_COMPARE = {
    "=": lambda field, value: field == value,
    "<>": lambda field, value: field != value,
    "<": lambda field, value: field < value,
    "<=": lambda field, value: field <= value,
    ">": lambda field, value: field > value,
    ">=": lambda field, value: field >= value,
}


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


def to_json(wanted: Sequence[Wanted]) -> str:
    return json.dumps([[w.rate, w.test] for w in wanted])


def from_json(text: str) -> tuple[Wanted, ...]:
    return tuple(Wanted(rate, test) for rate, test in json.loads(text))


def takes_all(wanted: Sequence[Wanted]) -> bool:
    """Whether every record is wanted."""
    return any(w.rate >= 1.0 and w.test is None for w in wanted)


def is_wanted(wanted: Sequence[Wanted], place: str, places: float) -> pc.Expression:
    """The condition under which some fragment wants a record; `place` names the column of its place among `places`."""
    found = pc.scalar(False)
    for one in wanted:
        passes = pc.field(place) < one.rate * places
        found = found | (passes if one.test is None else passes & condition(one.test))
    return found


def condition(test: Test) -> pc.Expression:
    """A test as Arrow evaluates it, by three-valued logic."""
    match test:
        case ["and", left, right]:
            return condition(left) & condition(right)
        case ["or", left, right]:
            return condition(left) | condition(right)
        case ["not", inner]:
            return ~condition(inner)
        case ["constant", value]:
            return pc.scalar(value)
        case ["is", column]:
            return pc.field(column)
        case ["null", column]:
            return pc.field(column).is_null()
        case ["in", column, values]:
            return pc.field(column).isin(values)
        case [operator, column, float(value)]:  # Arrow would convert the column to as few bits as hold the value
            return _COMPARE[operator](pc.field(column).cast(pa.float64(), safe=False), value)
        case [operator, column, value]:
            return _COMPARE[operator](pc.field(column), value)
    raise ValueError(f"no test has the form {test!r}")
