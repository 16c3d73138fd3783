"""Parts: rows of partials that lie in a file, and the tables that stand for them.

A center with shards keeps no rows. Where the core of a plain one has a table of partials (slice_us, keys...,
states...), its core has a table of **parts**, one row per (query, slice, file): where the partials lie, and how many of
them are of each shard. A shard is a set of groups, by a hash of their keys, so that groups can be merged, lowered and
published shard by shard, wherever there is a core to do it. The core takes such tables from one place to the next as it
does those of rows; only what merges, recalls and lowers rows tells them apart (`is_parts`).

Invariants: a file is never changed once a part names it; the rows of a part are of one slice, and ordered by shard.
Rows of a part that was written with another number of shards are divided when they are read. Tables of both kinds may
meet, where shards were switched on or off: rows are then carried along inside of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import Aggregate, partials
from catchment.aggregates.hashing import can_hash, hash_rows
from catchment.arrays import Ints
from catchment.query.fragment import SLICE_COLUMN

FILE_COLUMN = "_part_file"
QUERY_COLUMN = "_part_query"
PUBLISHED = "*"  # in place of a file: what is published of the window
_ROWS, _FIRST, _ENDS, _TOTALS, _INLINE = "_part_rows", "_part_first", "_part_ends", "_part_totals", "_part_inline"

ROW_SCHEMA = pa.schema(
    [
        pa.field(QUERY_COLUMN, pa.string()),
        pa.field(FILE_COLUMN, pa.string()),
        pa.field(_FIRST, pa.int64()),  # the number of its first row in the file
        pa.field(_ENDS, pa.list_(pa.int64())),  # how many of its rows are of a shard or of one before it
        pa.field(_ROWS, pa.int64()),
        pa.field(_TOTALS, pa.list_(pa.float64())),  # the sums of what is watched of the query; null where unknown
        pa.field(_INLINE, pa.binary()),  # in place of a file: the rows themselves
    ]
)
SCHEMA = pa.schema([pa.field(SLICE_COLUMN, pa.int64()), *ROW_SCHEMA])


@dataclass(frozen=True, slots=True)
class Shard:
    """One of so many shards."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Part:
    """One row of a table of parts, but for its slice."""

    query: str
    file: str
    first: int
    ends: tuple[int, ...]
    totals: tuple[float | None, ...] | None = None
    inline: bytes | None = None

    @property
    def rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    def of_shard(self, shard: Shard | None) -> tuple[int, int] | None:
        """Return where the rows of a shard begin in the file, and how many there are; None if that is not known."""
        if shard is None:
            return self.first, self.rows
        if len(self.ends) != shard.of:
            return None
        begin = self.ends[shard.number - 1] if shard.number else 0
        return self.first + begin, self.ends[shard.number] - begin


def is_parts(table: pa.Table) -> bool:
    """Return whether a table stands for rows that lie in files."""
    return FILE_COLUMN in table.schema.names


def count_rows(table: pa.Table) -> int:
    """Return how many rows a table has or stands for."""
    return (pc.sum(table[_ROWS]).as_py() or 0) if is_parts(table) else table.num_rows


def make_parts(parts: Sequence[tuple[int, Part]]) -> pa.Table:
    """Return the table of parts, each with its slice."""
    rows = [
        {
            SLICE_COLUMN: slice_us,
            QUERY_COLUMN: part.query,
            FILE_COLUMN: part.file,
            _FIRST: part.first,
            _ENDS: part.ends,
            _ROWS: part.rows,
            _TOTALS: part.totals,
            _INLINE: part.inline,
        }
        for slice_us, part in parts
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def published_parts(starts_us: Sequence[int], column: str) -> pa.Table:
    """Return (column, part...): of each window that starts at an instant, all that is published of it."""
    table = make_parts([(start_us, Part("", PUBLISHED, 0, ())) for start_us in starts_us])
    return table.rename_columns([column, *ROW_SCHEMA.names])


def select_query(table: pa.Table, query: str) -> pa.Table:
    """Return the parts of one query."""
    return table.filter(pc.equal(table[QUERY_COLUMN], query))


def part_files(table: pa.Table) -> set[str]:
    """Return the files that parts lie in."""
    return {file for file in pc.unique(table[FILE_COLUMN]).to_pylist() if file and file != PUBLISHED}


def list_parts(table: pa.Table) -> Iterator[Part]:
    """Yield the parts that a table has."""
    for row in table.select(ROW_SCHEMA.names).to_pylist():
        totals = None if row[_TOTALS] is None else tuple(row[_TOTALS])
        yield Part(row[QUERY_COLUMN], row[FILE_COLUMN], row[_FIRST], tuple(row[_ENDS]), totals, row[_INLINE])


def concat_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of rows, or of parts, as one; where both meet, rows become parts."""
    if any(map(is_parts, tables)):
        tables = [table if is_parts(table) else _carry_along(table) for table in tables]
    return pa.concat_tables(tables)


def merge_rows(tables: Sequence[pa.Table], keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Merge rows with equal keys; parts are merged when they are read."""
    together = concat_rows(tables)
    return together if is_parts(together) else partials.combine(together, keys, aggregates)


def merge_fitting(tables: Sequence[pa.Table], keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
    """Merge rows with equal keys where sums fit; parts are merged when they are read."""
    together = concat_rows(tables)
    return together if is_parts(together) else partials.combine_fitting(together, keys, aggregates)


def add_totals(table: pa.Table, number: int) -> tuple[float | None, ...]:
    """Return the sums over all parts of what is watched of their query; None where one of them does not say."""
    found = [part.totals for part in list_parts(table)]
    known = [totals for totals in found if totals is not None and len(totals) == number]
    if len(known) < len(found):
        return (None,) * number
    return tuple(_add([totals[i] for totals in known]) for i in range(number))


def _add(totals: Sequence[float | None]) -> float | None:
    """Return the sum of what there is: a part of which all values are null has none."""
    known = [total for total in totals if total is not None]
    return sum(known) if known else None


def _carry_along(rows: pa.Table) -> pa.Table:
    """Return rows as parts that have them inside, one per slice where rows have slices."""
    has_slices = SLICE_COLUMN in rows.column_names
    slices = pc.unique(rows[SLICE_COLUMN]).to_pylist() if has_slices else [0] if rows.num_rows else []
    found = []
    for slice_us in slices:
        mine = rows.filter(pc.equal(rows[SLICE_COLUMN], slice_us)).drop_columns([SLICE_COLUMN]) if has_slices else rows
        found.append((slice_us, Part("", "", 0, (mine.num_rows,), inline=write_rows(mine))))
    table = make_parts(found)
    return table if has_slices else table.drop_columns([SLICE_COLUMN])


# --- rows -----------------------------------------------------------------------------------------------------------


def write_rows(rows: pa.Table) -> bytes:
    """Return rows as the bytes of an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_part(part: Part, shard: Shard | None, keys: Sequence[str]) -> pa.Table:
    """Return the rows of a part, or those of them that are of a shard."""
    if part.inline is not None:
        rows = pa.ipc.open_file(pa.BufferReader(part.inline)).read_all()
    else:
        with pa.memory_map(part.file) as file:
            rows = pa.ipc.open_file(file).read_all()
    place = part.of_shard(shard)
    if place is not None:
        return rows.slice(*place)
    assert shard is not None
    return select_shard(rows.slice(part.first, part.rows), keys, shard)


def select_shard(rows: pa.Table, keys: Sequence[str], shard: Shard) -> pa.Table:
    """Return the rows that are of a shard."""
    return rows.filter(pa.array(find_shards(rows, keys, shard.of) == shard.number))


def find_shards(rows: pa.Table, keys: Sequence[str], shards: int) -> Ints:
    """Return the shard of each row, by its keys; all are of the first where there are none, or they have no hash."""
    columns = [partials.one_array(rows[key]) for key in keys]
    columns = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in columns]
    if shards == 1 or not columns or not all(can_hash(column.type) for column in columns):
        return np.zeros(rows.num_rows, dtype=np.int64)
    return (hash_rows(columns) % np.uint64(shards)).astype(np.int64)


def order_by_shard(rows: pa.Table, keys: Sequence[str], shards: int) -> tuple[pa.Table, tuple[int, ...]]:
    """Return rows in the order of their shards, and how many are of each shard or of one before it."""
    numbers = find_shards(rows, keys, shards)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=shards))
    return rows.take(pa.array(order)), tuple(int(end) for end in ends)
