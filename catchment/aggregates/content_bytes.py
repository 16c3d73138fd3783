"""The size of an Arrow table by what it holds, and not by how its buffers happen to lie.

`Table.nbytes` counts a validity bitmap that says nothing, and one more offset per chunk. A table that was just computed
and the same one read back from a journal differ in both. Whatever a core decides by a size must come out the same when
its journal is replayed, so it asks for this size.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_OFFSET_BITS = 32  # of a value whose length varies


def content_bytes(table: pa.Table) -> int:
    """Return the bytes of the values of a table: equal tables have equal sizes."""
    return sum(_bits(chunk) for column in table.columns for chunk in column.chunks) // 8


def _bits(array: pa.Array) -> int:
    of = array.type
    if pt.is_null(of):
        return 0
    if pt.is_dictionary(of):
        return _bits(array.dictionary_decode())
    if pt.is_struct(of):
        return sum(_bits(field) for field in array.flatten())
    if pt.is_fixed_size_list(of):
        return _bits(array.flatten())
    if pt.is_map(of):
        entries = pa.struct([of.key_field, of.item_field])
        return _bits(array.cast(pa.list_(entries)))
    if pt.is_list(of) or pt.is_large_list(of):
        return _OFFSET_BITS * len(array) + _bits(array.flatten())
    if pt.is_primitive(of) or pt.is_decimal(of) or pt.is_fixed_size_binary(of):
        return int(of.bit_width) * len(array)
    return _OFFSET_BITS * len(array) + 8 * (pc.sum(pc.binary_length(array)).as_py() or 0)
