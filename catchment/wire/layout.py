"""The layout in which a table is compressed: the same values, arranged so that they shrink more.

Two reversible steps. Text columns whose values repeat become dictionaries. Columns of fixed width have their
bytes transposed: all lowest bytes first, then all second ones, and so on; counts and sums are small numbers
in wide columns, so most of these runs are constant. Law: `from_wire(*to_wire(table))` equals the table, bit
by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from catchment.errors import WireError

MIN_ROWS = 64  # below it a dictionary costs more than it saves
MAX_DISTINCT_SHARE = 0.5

_Bytes = npt.NDArray[np.uint8]


def to_wire(table: pa.Table) -> tuple[pa.Table, list[int]]:
    """The table as it is compressed, and the numbers of the columns that were made dictionaries."""
    coded: list[int] = []
    columns = []
    for number, column in enumerate(table.columns):
        array, is_coded = _shrink(_contiguous(column))
        columns.append(array)
        coded += [number] if is_coded else []
    return _rebuilt(table, columns), coded


def from_wire(table: pa.Table, coded: Sequence[int], max_bytes: int) -> pa.Table:
    """The table as it was given to `to_wire`; refused if its texts would take more than `max_bytes`.

    The bytes may come from anyone: buffers are checked before they are used, values when all are in place.
    """
    table.validate()
    arrays = [_contiguous(column) for column in table.columns]
    for number in coded:
        if number >= len(arrays) or not pa.types.is_dictionary(arrays[number].type):
            raise WireError(f"column {number} of {table.column_names} is no dictionary")
        arrays[number] = _restore_indices(arrays[number])
    _check_expansion([arrays[number] for number in coded], max_bytes)
    columns = [a.dictionary_decode() if n in coded else _restore(a) for n, a in enumerate(arrays)]
    restored = _rebuilt(table, columns)
    restored.validate(full=True)
    return restored


def _shrink(array: pa.Array) -> tuple[pa.Array, bool]:
    if _is_text(array.type) and len(array) >= MIN_ROWS:
        encoded = array.dictionary_encode()
        if len(encoded.dictionary) <= MAX_DISTINCT_SHARE * len(array):
            indices = _with_bytes(encoded.indices, _columns_first)
            return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, safe=False), True
    return (_with_bytes(array, _columns_first) if _is_wide(array.type) else array), False


def _restore(array: pa.Array) -> pa.Array:
    return _with_bytes(array, _rows_first) if _is_wide(array.type) else array


def _restore_indices(array: pa.Array) -> pa.Array:
    """Refuses a damaged dictionary, and indices outside of it."""
    array.dictionary.validate(full=True)
    return pa.DictionaryArray.from_arrays(_with_bytes(array.indices, _rows_first), array.dictionary, safe=True)


def _check_expansion(arrays: Sequence[pa.Array], max_bytes: int) -> None:
    total = sum(pc.sum(pc.take(pc.binary_length(a.dictionary), a.indices)).as_py() or 0 for a in arrays)
    if total > max_bytes:
        raise WireError(f"the texts of an update take {total} bytes, at most {max_bytes} are taken")


def _with_bytes(array: pa.Array, rearrange: Callable[[_Bytes, int, int], _Bytes]) -> pa.Array:
    """The array with its value bytes rearranged; nulls stay where they are."""
    width = array.type.bit_width // 8
    validity, values = array.buffers()
    start, end = array.offset * width, (array.offset + len(array)) * width
    cells = np.frombuffer(values, dtype=np.uint8)[start:end] if len(array) else np.empty(0, np.uint8)
    moved = np.concatenate([np.zeros(start, np.uint8), rearrange(cells, len(array), width)])
    return pa.Array.from_buffers(
        array.type, len(array), [validity, pa.py_buffer(moved)], array.null_count, array.offset
    )


def _columns_first(cells: _Bytes, rows: int, width: int) -> _Bytes:
    return cells.reshape(rows, width).T.ravel()


def _rows_first(cells: _Bytes, rows: int, width: int) -> _Bytes:
    return cells.reshape(width, rows).T.ravel()


def _rebuilt(table: pa.Table, columns: Sequence[pa.Array]) -> pa.Table:
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.table(list(columns), schema=pa.schema(fields))


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        raise WireError(f"a column of {combined.nbytes} bytes does not fit into one update")
    return combined


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_wide(kind: pa.DataType) -> bool:
    """Of fixed width, two bytes or more."""
    return bool((pa.types.is_primitive(kind) or pa.types.is_decimal(kind)) and kind.bit_width >= 16)
