"""The cache of one fragment: which key a slot stands for, and the states that wait for it.

States are appended as they come and merged only when they leave or when the log has grown to twice what it
would be merged: a sketch that is absorbed a hundred times and sent once is merged once, many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pandas.util import hash_array

from catchment.aggregates import Aggregate
from catchment.aggregates.partials import combine, group_codes, one_array
from catchment.errors import SiteError
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.site.slot_table import Slots

SLOT_COLUMN = "__slot"
_HASH_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd and irregular: columns that swap values do not cancel out
_MAX_CHUNKS = 64  # pieces of an Arrow column before they are joined
_LOG_SLACK_ROWS = 4096  # the state log is merged when it holds this many rows more than twice the pending ones


def _compacted(table: pa.Table) -> pa.Table:
    return table.combine_chunks() if table.column(0).num_chunks > _MAX_CHUNKS else table


class KeyIndex:
    """Rows (slice, keys...): row i is what slot i stands for."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def slots_of(self, keys: pa.Table) -> Slots:
        """The slot of each given row; rows not seen before get new slots, in the order they stand in."""
        known = self.rows
        codes, _ = group_codes(pa.concat_tables([self.table, keys]), self.table.column_names)
        slots = codes[known:].astype(np.int64)  # the known rows are distinct: each is its own code
        if _has_repeats(slots):
            raise SiteError("a micro-batch holds a (slice, key) twice: its partials are not grouped")
        fresh = slots >= known
        if fresh.any():
            self.table = _compacted(pa.concat_tables([self.table, keys.filter(pa.array(fresh))]))
        return slots

    def keep(self, renamed: Slots) -> None:
        self.table = self.table.filter(pa.array(renamed >= 0)).combine_chunks()


class StateLog:
    """Rows (slot, states...), several a slot until they are merged."""

    def __init__(self, aggregates: Sequence[Aggregate], table: pa.Table) -> None:
        self._aggregates = tuple(aggregates)
        self.table = table

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def slots(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.table[SLOT_COLUMN].to_numpy(), dtype=np.int64)

    def append(self, slots: Slots, states: pa.Table, pending_rows: int) -> None:
        added = states.add_column(0, SLOT_COLUMN, pa.array(slots)).cast(self.table.schema)
        self.table = _compacted(pa.concat_tables([self.table, added]))
        if self.rows > 2 * pending_rows + _LOG_SLACK_ROWS:
            self.table = self._merged(self.table)

    def take(self, slots: Slots, size: int) -> pa.Table:
        """The merged states of these slots, in the order of slots; they leave the log."""
        chosen = np.zeros(size, dtype=np.bool_)
        chosen[slots] = True
        mask = chosen[self.slots()]
        leaving = self.table.filter(pa.array(mask))
        self.table = self.table.filter(pa.array(~mask)).combine_chunks()
        return self._merged(leaving)

    def keep(self, renamed: Slots) -> None:
        slots = renamed[self.slots()]
        self.table = self.table.set_column(0, SLOT_COLUMN, pa.array(slots)).combine_chunks()

    def _merged(self, table: pa.Table) -> pa.Table:
        slots = np.asarray(table[SLOT_COLUMN].to_numpy(), dtype=np.int64)
        if _has_repeats(slots):
            table = combine(table, (SLOT_COLUMN,), self._aggregates).select(table.column_names).cast(table.schema)
            slots = np.asarray(table[SLOT_COLUMN].to_numpy(), dtype=np.int64)
        return table.take(pa.array(np.argsort(slots, kind="stable"))).combine_chunks()


def _has_repeats(slots: Slots) -> bool:
    """Whether a slot stands twice; slots are small whole numbers, so that counting them is cheapest."""
    return bool(slots.size) and int(np.bincount(slots).max()) > 1


class PartialCache:
    """Keys and states of one fragment, by slot."""

    def __init__(self, fragment: Fragment, index: pa.Table | None = None, log: pa.Table | None = None) -> None:
        self._schema = fragment.schema
        keys = pa.schema([self._schema.field(n) for n in (SLICE_COLUMN, *fragment.key_names)])
        self._states = [n for n in self._schema.names if n not in keys.names]
        log_schema = pa.schema([pa.field(SLOT_COLUMN, pa.int64()), *(self._schema.field(n) for n in self._states)])
        self._key_names = keys.names
        self.index = KeyIndex(keys.empty_table() if index is None else index.select(keys.names).cast(keys))
        self.log = StateLog(
            fragment.aggregates,
            log_schema.empty_table() if log is None else log.select(log_schema.names).cast(log_schema),
        )

    @property
    def nbytes(self) -> int:
        return int(self.index.table.nbytes + self.log.table.nbytes)

    @property
    def row_bytes(self) -> float:
        """Arrow bytes of one update, keys and states."""
        keys = self.index.table.nbytes / max(self.index.rows, 1)
        states = self.log.table.nbytes / max(self.log.rows, 1)
        return float(max(keys + states - 8, 1.0))

    def conform(self, partials: pa.Table) -> pa.Table:
        """The partials with exactly the fragment's columns and types."""
        missing = [n for n in self._schema.names if n not in partials.column_names]
        if missing:
            raise SiteError(f"partials lack the columns {missing}; they have {partials.column_names}")
        return partials.select(self._schema.names).cast(self._schema)

    def slots_of(self, partials: pa.Table) -> Slots:
        return self.index.slots_of(partials.select(self._key_names))

    def identities(self, partials: pa.Table) -> npt.NDArray[np.int64]:
        """64 bits for each key, the same in every slice, process and life of the site."""
        total = np.zeros(partials.num_rows, dtype=np.uint64)
        for name in self._key_names[1:]:
            values = one_array(partials[name]).to_pandas().to_numpy()
            total = total * _HASH_STEP + hash_array(values, categorize=False)
        return total.view(np.int64)

    def absorb(self, slots: Slots, partials: pa.Table, pending_rows: int) -> None:
        self.log.append(slots, partials.select(self._states), pending_rows)

    def take(self, slots: Slots) -> pa.Table:
        """The update rows (slice, keys..., states...) of these slots, each once."""
        ordered = np.sort(slots)
        states = self.log.take(ordered, self.index.rows)
        keys = self.index.table.take(pa.array(ordered))
        columns = [*keys.columns, *(states[n] for n in self._states)]
        return pa.table(columns, schema=self._schema).combine_chunks()

    def keep(self, renamed: Slots) -> None:
        self.index.keep(renamed)
        self.log.keep(renamed)
