"""Aggregates that a project declares: their law is Python code of the user, over whole columns.

The user says what one record is (`lift`), what two states are together (`combine`) and what a state is worth (`lower`),
each for many rows at once. Here groups are folded with that: the rows of each group are paired, and the pairs combined,
until one is left; so n rows take as many calls as n has binary digits. A group without records has null in every column
of its state, which is the identity: it is never given to the user's code.

A stored aggregate names its code by digest (`catchment.functions.installed`); without that code it raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.base import Aggregate, AggregateCall, Groups, StateColumn, fields_of
from catchment.aggregates.grouped import nullable, stable_order, valid_rows
from catchment.arrays import Index, Mask
from catchment.functions.declared import AggregateFunction
from catchment.functions.installed import aggregate_of
from catchment.storage.codec import stored

LIFTED_BYTES = 64 << 20  # of states that are held at once, by the bound that the aggregate states
States = list[pa.Array]


@stored()
@dataclass(frozen=True)
class UserAggregate(Aggregate):
    """An aggregate of the project; `columns` are the names and types of its state. Null for no records."""

    columns: tuple[tuple[str, pa.DataType], ...] = ()
    returns: pa.DataType | None = None
    max_state_bytes: int = 0

    @classmethod
    def from_call(cls, call: AggregateCall) -> UserAggregate:
        """Make the aggregate of a call of an installed function."""
        declared = aggregate_of(call.function)
        return cls(*call.head, declared.state, declared.returns, declared.max_state_bytes)

    @property
    def law(self) -> AggregateFunction:
        """The code of the user."""
        return aggregate_of(self.function)

    @property
    def states(self) -> tuple[StateColumn, ...]:
        return tuple(self.column(name, type_) for name, type_ in self.columns)

    @property
    def result_type(self) -> pa.DataType:
        return self.returns

    @property
    def lifts_in_spark(self) -> bool:
        return False

    @property
    def merges_in_spark(self) -> bool:
        return False

    def lift_sql(self) -> tuple[str, ...]:
        raise AssertionError(f"{self.function} is lifted by its own code")

    def merge_sql(self) -> tuple[str, ...]:
        raise AssertionError(f"{self.function} is merged by its own code")

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> States:
        assert values is not None
        names = list(fields_of(self.argument_type))
        arguments = [pc.struct_field(values, name) for name in names] or [values]
        if values.null_count and names:  # a struct that is null has fields that are not
            absent = values.is_null()
            arguments = [pc.if_else(absent, pa.scalar(None, a.type), a) for a in arguments]
        return lift_groups(self.law, arguments, groups, size)

    def combine(self, states: Sequence[pa.Array], groups: Groups, size: int) -> States:
        return combine_groups(self.law, states, groups, size)

    def lower(self, states: Sequence[pa.Array]) -> pa.Array:
        return lower_groups(self.law, states)


def lift_groups(law: AggregateFunction, arguments: Sequence[pa.Array], groups: Groups, size: int) -> States:
    """Return the states of `size` groups of records; records with a null argument do not count."""
    known = np.logical_and.reduce([valid_rows(a) for a in arguments])
    present = [a.filter(pa.array(known)) for a in arguments]
    owners = groups[known]
    step = max(LIFTED_BYTES // max(law.max_state_bytes, 1), 1)
    parts = []
    for start in range(0, len(owners), step):
        lifted = law.lift([a.slice(start, step) for a in present])
        parts.append(_fold(law, lifted, owners[start : start + step]))
    if not parts:
        return [pa.nulls(size, type_) for _, type_ in law.state]
    together = [pa.concat_arrays(columns) for columns in zip(*(states for states, _ in parts), strict=True)]
    return _place(*_fold(law, together, np.concatenate([found for _, found in parts])), size)


def combine_groups(law: AggregateFunction, states: Sequence[pa.Array], groups: Groups, size: int) -> States:
    """Return the states of `size` groups of states; those of no records are null, and change nothing."""
    known = valid_rows(states[0])
    present = [s.filter(pa.array(known)) for s in states]
    return _place(*_fold(law, present, groups[known]), size)


def lower_groups(law: AggregateFunction, states: Sequence[pa.Array]) -> pa.Array:
    """Return the values of states, null where there are no records."""
    known = valid_rows(states[0])
    if not known.any():
        return pa.nulls(len(known), law.returns)
    values = law.lower([s.filter(pa.array(known)) for s in states])
    return values.take(nullable(np.cumsum(known) - 1, ~known))


def _fold(law: AggregateFunction, states: Sequence[pa.Array], groups: Groups) -> tuple[States, Index]:
    """Return one state for each group that has any, and these groups in ascending order."""
    order = stable_order(groups)
    codes = groups[order]
    folded = _take(states, order)
    while (repeated := codes[1:] == codes[:-1]).any():
        position = _position_in_group(repeated)
        right = np.flatnonzero(position & 1)
        left = np.flatnonzero(position & 1 == 0)
        merged = law.combine(_take(folded, right - 1), _take(folded, right))
        rest = [pa.concat_arrays([s, m]) for s, m in zip(folded, merged, strict=True)]
        rows = np.arange(len(codes))
        rows[right - 1] = len(codes) + np.arange(len(right))  # a pair is where its left half was
        folded = _take(rest, rows[left])
        codes = codes[left]
    return folded, codes


def _place(states: Sequence[pa.Array], groups: Index, size: int) -> States:
    """Return the states in the places of their groups, null where a group has none."""
    rows = np.full(size, -1, dtype=np.int64)
    rows[groups] = np.arange(len(groups))
    return _take(states, nullable(rows, rows < 0))


def _take(states: Sequence[pa.Array], rows: Index | pa.Array) -> States:
    wanted = pa.array(rows)
    return [s.take(wanted) for s in states]


def _position_in_group(repeated: Mask) -> Index:
    """Return the position of each row in its group, from 0; `repeated` says of all rows but the first what goes on."""
    rows = np.arange(len(repeated) + 1)
    starts = np.maximum.accumulate(np.where(np.concatenate([[True], ~repeated]), rows, 0))
    return rows - starts
