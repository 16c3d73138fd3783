"""The layout in which a table is compressed: the same values, arranged so that they shrink more.

Two reversible steps. Text columns whose values repeat become dictionaries. Columns of fixed width have their bytes
transposed: all lowest bytes first, then all second ones, and so on; counts and sums are small numbers in wide columns,
so most of these runs are constant. Law: `from_wire(*to_wire(table))` equals the table, bit by bit.

Parquet has both ideas (dictionaries, BYTE_STREAM_SPLIT), but a footer per file and a header per column: it costs most
where it matters, in the small frames that leave a site every few seconds, and gains nothing in large ones. Bytes of one
table of four columns, measured by `pytest -s tests/wire/test_layout.py`; without the Arrow schema Parquet does not keep
all types, so that the schema would have to travel beside it:

                   here  Parquet  Parquet without the Arrow schema
    1 row            99      941      545
    10 rows         263    1,086      690
    1,000 rows    8,628    8,812    8,416
    10,000 rows  75,760   76,811   76,415

These are tables as Arrow streams, and of the first two 196 and 176 bytes are saved by the dictionary of
`table_bytes.py`. From version 4 of frames on, tables of so few rows are plain columns (`plain_columns.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from catchment.errors import WireError

MIN_DICTIONARY_ROWS = 64  # below it a dictionary costs more than it saves
MAX_DISTINCT_SHARE = 0.5  # distinct values per row; above it a dictionary does not pay

_Bytes = npt.NDArray[np.uint8]


def to_wire(table: pa.Table) -> tuple[pa.Table, list[int]]:
    """Return the table as it is compressed, and the numbers of the columns that were made dictionaries."""
    columns: list[pa.Array] = []
    dictionary_columns: list[int] = []
    for number, column in enumerate(table.columns):
        array = _contiguous(column)
        encoded = _encode_texts(array)
        if encoded is not None:
            dictionary_columns.append(number)
        columns.append(_transpose(array) if encoded is None else encoded)
    return _rebuild(table, columns), dictionary_columns


def from_wire(table: pa.Table, dictionary_columns: Sequence[int], max_bytes: int) -> pa.Table:
    """Return the table as it was given to `to_wire`; refused if its texts would take more than `max_bytes`.

    The bytes may come from anyone: buffers are checked before they are used, values when all are in place.
    """
    table.validate()
    arrays = [_contiguous(column) for column in table.columns]
    for number in dictionary_columns:
        if number >= len(arrays) or not pa.types.is_dictionary(arrays[number].type):
            raise WireError(f"column {number} of {table.column_names} is no dictionary")
        arrays[number] = _restore_indices(arrays[number])
    _check_expansion([arrays[number] for number in dictionary_columns], max_bytes)
    decoded = set(dictionary_columns)
    columns = [a.dictionary_decode() if n in decoded else _restore(a) for n, a in enumerate(arrays)]
    restored = _rebuild(table, columns)
    restored.validate(full=True)
    return restored


def _encode_texts(array: pa.Array) -> pa.Array | None:
    """Make a dictionary of texts that repeat; None for any other array."""
    if not _is_text(array.type) or len(array) < MIN_DICTIONARY_ROWS:
        return None
    encoded = array.dictionary_encode()
    if len(encoded.dictionary) > MAX_DISTINCT_SHARE * len(array):
        return None
    return pa.DictionaryArray.from_arrays(_transpose(encoded.indices), encoded.dictionary, safe=False)


def _transpose(array: pa.Array) -> pa.Array:
    return _with_bytes(array, _columns_first) if _is_wide(array.type) else array


def _restore(array: pa.Array) -> pa.Array:
    return _with_bytes(array, _rows_first) if _is_wide(array.type) else array


def _restore_indices(array: pa.Array) -> pa.Array:
    """Restore the indices; a damaged dictionary, and indices outside of it, are refused."""
    array.dictionary.validate(full=True)
    return pa.DictionaryArray.from_arrays(_restore(array.indices), array.dictionary, safe=True)


def _check_expansion(arrays: Sequence[pa.Array], max_bytes: int) -> None:
    import pyarrow.compute as pc  # large, and senders do not need it

    total = sum(pc.sum(pc.take(pc.binary_length(a.dictionary), a.indices)).as_py() or 0 for a in arrays)
    if total > max_bytes:
        raise WireError(f"the texts of an update take {total} bytes, at most {max_bytes} are taken")


def _with_bytes(array: pa.Array, rearrange: Callable[[_Bytes, int, int], _Bytes]) -> pa.Array:
    """Return the array with the bytes of its values rearranged; nulls stay where they are."""
    width = array.type.bit_width // 8
    validity, values = array.buffers()
    start = array.offset * width
    end = start + len(array) * width
    cells = np.frombuffer(values, dtype=np.uint8)[start:end] if len(array) else np.empty(0, np.uint8)
    moved = rearrange(cells, len(array), width)
    if start:
        moved = np.concatenate([np.zeros(start, np.uint8), moved])
    return pa.Array.from_buffers(
        array.type, len(array), [validity, pa.py_buffer(moved)], array.null_count, array.offset
    )


def _columns_first(cells: _Bytes, rows: int, width: int) -> _Bytes:
    return cells.reshape(rows, width).T.ravel()


def _rows_first(cells: _Bytes, rows: int, width: int) -> _Bytes:
    return cells.reshape(width, rows).T.ravel()


def _rebuild(table: pa.Table, columns: Sequence[pa.Array]) -> pa.Table:
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
    """Return whether values are of fixed width, two bytes or more."""
    return bool((pa.types.is_primitive(kind) or pa.types.is_decimal(kind)) and kind.bit_width >= 16)
