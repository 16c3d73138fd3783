"""The size of an Arrow table by what it holds, and not by how its buffers happen to lie.

`Table.nbytes` counts a validity bitmap that says nothing, and one more offset per chunk. A table that was just computed
and the same one read back from a journal differ in both. Whatever a core decides by a size must come out the same when
its journal is replayed, so it asks for this size.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from catchment.arrays import Ints

_OFFSET_BITS = 32  # of a value whose length varies

_Bits = int | Ints  # of each value: one number if all have the same


def content_bytes(table: pa.Table) -> int:
    """Return the bytes of the values of a table: equal tables have equal sizes."""
    return sum(_add_up(_bits(chunk), len(chunk)) for column in table.columns for chunk in column.chunks) // 8


def content_bytes_by_row(table: pa.Table) -> Ints:
    """Return the bytes of the values of each row, each rounded up."""
    bits = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        start = 0
        for chunk in column.chunks:
            bits[start : start + len(chunk)] += _bits(chunk)
            start += len(chunk)
    return np.asarray(-(-bits // 8))


def _add_up(bits: _Bits, values: int) -> int:
    return bits * values if isinstance(bits, int) else int(bits.sum())


def _bits(array: pa.Array) -> _Bits:
    """Return the bits of each value."""
    of = array.type
    if pt.is_null(of):
        return 0
    if pt.is_dictionary(of):
        return _bits(array.dictionary_decode())
    if pt.is_struct(of):
        return sum((_bits(field) for field in array.flatten()), 0)
    if pt.is_fixed_size_list(of):
        lengths = np.where(np.asarray(array.is_valid()), of.list_size, 0)
        return _within(lengths, _bits(array.flatten()))
    if pt.is_map(of):
        entries = pa.struct([of.key_field, of.item_field])
        return _bits(array.cast(pa.list_(entries)))
    if pt.is_list(of) or pt.is_large_list(of):
        return _OFFSET_BITS + _within(_lengths(pc.list_value_length(array)), _bits(array.flatten()))
    if pt.is_primitive(of) or pt.is_decimal(of) or pt.is_fixed_size_binary(of):
        return int(of.bit_width)
    return _OFFSET_BITS + 8 * _lengths(pc.binary_length(array))


def _lengths(found: pa.Array) -> Ints:
    """Return lengths, 0 where there is no value."""
    return np.asarray(found.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _within(lengths: Ints, bits: _Bits) -> Ints:
    """Return the bits of lists of these lengths, of the bits of all their values one after the other."""
    if isinstance(bits, int):
        return lengths * bits
    ends = np.cumsum(lengths)
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(bits)])
    return np.asarray(before[ends] - before[ends - lengths])
