"""The cache of one fragment: which key a slot stands for, and the states that wait for it.

States are appended as they come and merged only when they leave, or when the log has grown to twice its merged size: a
sketch that is absorbed a hundred times and sent once is merged once, many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pandas.util import hash_array

from catchment.aggregates import Aggregate
from catchment.aggregates.content_bytes import content_bytes, content_bytes_by_row
from catchment.aggregates.partials import combine_fitting, number_groups, one_array
from catchment.arrays import Ints
from catchment.errors import SiteError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.site.slot_table import Slots
from catchment.storage.codec import stored

SLOT_COLUMN = "__slot"
_SLOT_BYTES = 8
_HASH_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd and irregular: columns that swap values do not cancel out
_MAX_CHUNKS = 64  # chunks of an Arrow column before they are joined
_LOG_SLACK_ROWS = 4096  # the state log is merged when it holds this many rows more than twice the pending ones


@stored()
@dataclass(eq=False)
class KeyIndex:
    """Rows (slice, keys...): row i is what slot i stands for."""

    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def find_slots(self, keys: pa.Table) -> Slots:
        """Return the slot of each given row; rows not seen before get new slots, in their order."""
        known = self.rows
        codes, _ = number_groups(pa.concat_tables([self.table, keys]), self.table.column_names)
        slots = codes[known:].astype(np.int64)  # the known rows are distinct: each is its own code
        if _has_repeats(slots):
            raise SiteError("a micro-batch holds a (slice, key) twice: its partials are not grouped")
        fresh = slots >= known
        if fresh.any():
            added = keys if fresh.all() else keys.filter(pa.array(fresh))
            self.table = _join_chunks(pa.concat_tables([self.table, added]))
        return slots

    def renumber(self, renumbered: Slots) -> None:
        self.table = self.table.filter(pa.array(renumbered >= 0)).combine_chunks()


@stored()
@dataclass(eq=False)
class StateLog:
    """Rows (slot, states...), several per slot until they are merged."""

    aggregates: tuple[Aggregate, ...]
    table: pa.Table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def slots(self) -> Slots:
        return _slots_in(self.table)

    def append(self, slots: Slots, states: pa.Table, pending_rows: int) -> None:
        added = states.add_column(0, SLOT_COLUMN, pa.array(slots))
        if added.schema != self.table.schema:
            added = added.cast(self.table.schema)
        self.table = _join_chunks(pa.concat_tables([self.table, added]))
        if self.rows > 2 * pending_rows + _LOG_SLACK_ROWS:
            self.table = self._merge(self.table)

    def take(self, slots: Slots, size: int) -> pa.Table:
        """Remove the states of these slots; return them in the order of slots, merged unless a sum would not fit."""
        chosen = np.zeros(size, dtype=np.bool_)
        chosen[slots] = True
        mask = chosen[self.slots()]
        if mask.all():
            leaving = self.table
            self.table = self.table.schema.empty_table()
            return self._merge(leaving)
        leaving = self.table.filter(pa.array(mask))
        self.table = self.table.filter(pa.array(~mask)).combine_chunks()
        return self._merge(leaving)

    def merge(self) -> None:
        """Merge what can be merged."""
        self.table = self._merge(self.table)

    def renumber(self, renumbered: Slots) -> None:
        slots = renumbered[self.slots()]
        self.table = self.table.set_column(0, SLOT_COLUMN, pa.array(slots)).combine_chunks()

    def _merge(self, table: pa.Table) -> pa.Table:
        if _has_repeats(_slots_in(table)):
            merged = combine_fitting(table, (SLOT_COLUMN,), self.aggregates)
            table = merged.select(table.column_names).cast(table.schema)
        slots = _slots_in(table)
        if (slots[1:] >= slots[:-1]).all():
            return table.combine_chunks()
        return table.take(pa.array(np.argsort(slots, kind="stable"))).combine_chunks()


@stored()
@dataclass(eq=False)
class PartialCache:
    """Keys and states of one fragment, by slot."""

    fragment: Fragment
    index: KeyIndex
    log: StateLog
    _sizes: tuple[pa.Table, int, pa.Table, int] | None = field(default=None, metadata={"stored": False})

    @classmethod
    def empty(cls, fragment: Fragment) -> PartialCache:
        schema = fragment.schema
        key_names = (SLICE_COLUMN, *fragment.key_names)
        keys = pa.schema([schema.field(n) for n in key_names])
        states = [schema.field(n) for n in schema.names if n not in key_names]
        log = pa.schema([pa.field(SLOT_COLUMN, pa.int64()), *states])
        return cls(fragment, KeyIndex(keys.empty_table()), StateLog(fragment.aggregates, log.empty_table()))

    @property
    def nbytes(self) -> int:
        keys_bytes, states_bytes = self._measure()
        return keys_bytes + states_bytes

    @property
    def row_bytes(self) -> float:
        """The Arrow bytes of one update, keys and states."""
        keys_bytes, states_bytes = self._measure()
        keys = keys_bytes / max(self.index.rows, 1)
        states = states_bytes / max(self.log.rows, 1)
        return float(max(keys + states - _SLOT_BYTES, 1.0))

    def _measure(self) -> tuple[int, int]:
        """Return the bytes of keys and of states; they are asked for far more often than they change."""
        known = self._sizes
        keys, states = self.index.table, self.log.table
        if known is None or known[0] is not keys or known[2] is not states:
            known = keys, content_bytes(keys), states, content_bytes(states)
            self._sizes = known
        return known[1], known[3]

    def conform(self, partials: pa.Table) -> pa.Table:
        """Return the partials with exactly the fragment's columns and types."""
        schema = self.fragment.schema
        missing = [n for n in schema.names if n not in partials.column_names]
        if missing:
            raise SiteError(
                f"partials lack the columns {missing}; they have {partials.column_names}",
                where=f"fragment {self.fragment.name!r}",
            )
        chosen = partials.select(schema.names)
        return chosen if chosen.schema == schema else chosen.cast(schema)

    def find_slots(self, partials: pa.Table) -> Slots:
        """Return the slot of each partial; keys not seen before get new slots."""
        return self.index.find_slots(partials.select(self.index.table.column_names))

    def identify_keys(self, partials: pa.Table) -> Ints:
        """Return a 64-bit hash of each key, the same in every slice, process and life of the site."""
        total = np.zeros(partials.num_rows, dtype=np.uint64)
        for name in self.fragment.key_names:
            total = total * _HASH_STEP + hash_array(_plain_values(one_array(partials[name])), categorize=False)
        return total.view(np.int64)

    def absorb(self, slots: Slots, partials: pa.Table, pending_rows: int) -> None:
        """Append the states of partials to the log."""
        self.log.append(slots, partials.select(self._state_names), pending_rows)

    def take(self, slots: Slots) -> pa.Table:
        """Remove the states of these slots; return the update rows (slice, keys..., states...).

        There is one row per slot, or several where their sum would not fit: whoever answers with it meets the error.
        """
        states = self.log.take(slots, self.index.rows)
        keys = self.index.table.take(states[SLOT_COLUMN])
        columns = [*keys.columns, *(states[n] for n in self._state_names)]
        return pa.table(columns, schema=self.fragment.schema).combine_chunks()

    def measure_updates(self) -> Ints:
        """Return how many bytes the update of each slot has, keys and states."""
        self.log.merge()
        states = np.zeros(self.index.rows, dtype=np.int64)
        np.add.at(states, self.log.slots(), content_bytes_by_row(self.log.table.select(self._state_names)))
        return content_bytes_by_row(self.index.table) + states

    def renumber(self, renumbered: Slots) -> None:
        """Follow the slot table: old slot -> new slot (-1: given up)."""
        self.index.renumber(renumbered)
        self.log.renumber(renumbered)

    @property
    def _state_names(self) -> list[str]:
        return [name for name in self.log.table.column_names if name != SLOT_COLUMN]


def _plain_values(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the values as pandas gives them; the common types need no pandas for that."""
    if column.null_count == 0 and (pa.types.is_string(column.type) or pa.types.is_integer(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.to_pandas().to_numpy())


def _join_chunks(table: pa.Table) -> pa.Table:
    return table.combine_chunks() if table.column(0).num_chunks > _MAX_CHUNKS else table


def _slots_in(table: pa.Table) -> Slots:
    return np.asarray(table[SLOT_COLUMN].to_numpy(), dtype=np.int64)


def _has_repeats(slots: Slots) -> bool:
    """Return whether a slot stands twice; slots are small whole numbers, so counting them is cheapest."""
    return bool(slots.size) and int(np.bincount(slots).max()) > 1
