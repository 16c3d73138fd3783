"""The laws of a project's own functions, checked on many drawn values: for the tests of a project.

    check_aggregate(geometric_mean, [[1.0, 2.5, 40.0, None]])

Rows are drawn from the examples that are given: any number of them, in any order, split in any way. Numbers are
compared within `rel_tol`, everything else exactly. A broken law is a `LawBrokenError` that names it and shows the rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.aggregates.user_defined import combine_groups, lift_groups, lower_groups
from catchment.errors import CatchmentError
from catchment.functions.declared import AggregateFunction, ScalarFunction

ROUNDS = 100
MAX_ROWS = 12  # that are drawn at once: what is wrong is wrong for few
Examples = Sequence[Sequence[Any]]  # one list per argument


class LawBrokenError(CatchmentError):
    """A function of a project does not do what every function of its kind does."""


def check_function(
    function: ScalarFunction, examples: Examples, *, rel_tol: float = 0.0, rounds: int = ROUNDS, seed: int = 0
) -> None:
    """Check that a scalar function takes each row alone, gives the same answer each time, and of the declared type.

    `examples` has a list of values for each argument; they may have None.
    """
    check = _Check(function.name, _typed(function.takes, examples, function.name), rel_tol, random.Random(seed))
    for _ in range(rounds):
        rows = check.draw(check.chance.randint(2, MAX_ROWS))
        at_once = function.evaluate(rows)
        check.same("it gives the same answer each time", rows, at_once, function.evaluate(rows))
        cut = check.chance.randrange(1, len(rows[0]))
        parts = [[column.slice(0, cut) for column in rows], [column.slice(cut) for column in rows]]
        apart = pa.concat_arrays([function.evaluate(part) for part in parts])
        check.same("it takes each row alone", rows, at_once, apart)


def check_aggregate(
    aggregate: AggregateFunction | type,  # a type checker sees the class below the decorator
    examples: Examples,
    *,
    rel_tol: float = 1e-9,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> None:
    """Check the law of an aggregate, and that its states have the stated types and size.

    `combine` is associative and commutative; `lift` takes each record alone; no records change nothing; and however the
    records of a group are split, their parts combined have the value of all of them.
    """
    if not isinstance(aggregate, AggregateFunction):
        raise CatchmentError(f"{aggregate} is no aggregate", hint="declare it by @catchment.aggregate(...)")
    check = _Check(aggregate.name, _typed(aggregate.takes, examples, aggregate.name), rel_tol, random.Random(seed))
    for _ in range(rounds):
        _check_pairs(check, aggregate)
    for _ in range(rounds):
        _check_parts(check, aggregate)


def _check_pairs(check: _Check, aggregate: AggregateFunction) -> None:
    rows = check.draw(3, whole=True)
    if not len(rows[0]):
        return
    a, b, c = (aggregate.lift([column.slice(n, 1) for column in rows]) for n in range(3))
    merge = aggregate.combine
    left = aggregate.lower(merge(merge(a, b), c))
    right = aggregate.lower(merge(a, merge(b, c)))
    check.same("combine is associative", rows, left, right)
    check.same("combine is commutative", rows, aggregate.lower(merge(a, b)), aggregate.lower(merge(b, a)))
    at_once = aggregate.lower(aggregate.lift(rows))
    apart = pa.concat_arrays([aggregate.lower(state) for state in (a, b, c)])
    check.same("lift takes each record alone", rows, at_once, apart)


def _check_parts(check: _Check, aggregate: AggregateFunction) -> None:
    count = check.chance.randrange(MAX_ROWS + 1)
    rows = check.draw(count)
    one_group = np.zeros(count, dtype=np.intp)
    parts = np.array([check.chance.randrange(3) for _ in range(count)], dtype=np.intp)
    at_once = lift_groups(aggregate, rows, one_group, 1)
    states = lift_groups(aggregate, rows, parts, 4)  # the fourth part has no records
    together = combine_groups(aggregate, states, np.zeros(4, dtype=np.intp), 1)
    left = lower_groups(aggregate, at_once)
    right = lower_groups(aggregate, together)
    check.same("its parts have the value of all", rows, left, right)


@dataclass(frozen=True)
class _Check:
    """The examples of one function, and how its answers are compared."""

    name: str
    examples: Sequence[pa.Array]
    rel_tol: float
    chance: random.Random

    def draw(self, count: int, whole: bool = False) -> list[pa.Array]:
        """Return so many rows of the examples; with `whole`, of those without nulls, none if there are none."""
        possible = [row for row in range(len(self.examples[0])) if not (whole and self._has_null(row))]
        chosen = self.chance.choices(possible, k=count) if possible else []
        return [column.take(pa.array(chosen, pa.int64())) for column in self.examples]

    def _has_null(self, row: int) -> bool:
        return any(not column[row].is_valid for column in self.examples)

    def same(self, law: str, given: Sequence[pa.Array], left: pa.Array, right: pa.Array) -> None:
        """Refuse two answers that differ."""
        ours, theirs = left.to_pylist(), right.to_pylist()
        if len(ours) == len(theirs) and all(map(self._equal, ours, theirs)):
            return
        raise LawBrokenError(
            f"{self.name} breaks the law that {law}: {ours} is not {theirs}",
            where=f"for {', '.join(str(column.to_pylist()) for column in given)}",
        )

    def _equal(self, left: Any, right: Any) -> bool:
        if not isinstance(left, float) or not isinstance(right, float):
            return bool(left == right)
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return math.isclose(left, right, rel_tol=self.rel_tol, abs_tol=self.rel_tol)


def _typed(takes: Sequence[pa.DataType], examples: Examples, name: str) -> list[pa.Array]:
    if len(examples) != len(takes) or len({len(values) for values in examples}) != 1 or not len(examples[0]):
        raise CatchmentError(
            f"{name} takes {len(takes)} columns, and the examples are {len(examples)}",
            hint="give one list of values for each argument, all of one length",
        )
    return [pa.array(values, type_) for values, type_ in zip(examples, takes, strict=True)]
