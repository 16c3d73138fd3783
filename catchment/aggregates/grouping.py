"""Rows by groups: which rows of a table agree in some columns. Equality is that of Spark's GROUP BY.

Null equals null, NaN equals NaN, -0.0 equals 0.0. A column is first made small whole numbers (`CodedColumn`); the codes
of several columns are packed into one number. Whole numbers that lie close together are their own codes, and codes that
are dense are counted in an array, so that grouping mostly takes no hashing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.arrays import Index, Ints

# Two columns are packed into one 64 bit code while the product of their cardinalities is below this.
_MAX_PACKED = 2**62
# Codes are counted in an array of one entry per possible code while there are at most this many per row.
SPREAD_PER_ROW = 4


class Decoder(Protocol):
    """Gives the values of codes back."""

    def decode(self, codes: Ints) -> pa.Array: ...


@dataclass(frozen=True)
class CodedColumn:
    """A column as codes from 0 up to below `count`, equal for equal values, and how to get the values back."""

    codes: Ints
    count: int
    decoder: Decoder


@dataclass(frozen=True)
class _Offset:
    """Codes that are whole numbers less the lowest of them."""

    low: int
    type: pa.DataType

    def decode(self, codes: Ints) -> pa.Array:
        return pa.array(codes + self.low).cast(self.type)


@dataclass(frozen=True)
class _Dictionary:
    """Codes that are places in a list of values."""

    values: pa.Array

    def decode(self, codes: Ints) -> pa.Array:
        return self.values.take(pa.array(codes))


@dataclass(frozen=True)
class RowGroups:
    """The groups of some rows: the group of each row, and the keys of each group."""

    codes: Index
    keys: pa.Table
    size: int


def group_codes(table: pa.Table, columns: Sequence[str]) -> tuple[Index, pa.Table]:
    """Return a dense code for each row, and the distinct rows in the order of their codes.

    Rows have the same code where they agree in `columns`. Codes count up in the order in which the distinct rows
    first appear. Without columns, all rows are one group.
    """
    dense, first = number_groups(table, columns)
    keys = table.select(list(columns))
    return dense, keys if len(first) == table.num_rows else keys.take(pa.array(first))


def number_groups(table: pa.Table, columns: Sequence[str]) -> tuple[Index, Ints]:
    """Return a dense code for each row as `group_codes` does, and where each code appears first."""
    packed = np.zeros(table.num_rows, dtype=np.int64)
    cardinality = 1
    for column in columns:
        coded = encode(one_array(table[column]))
        if cardinality * coded.count > _MAX_PACKED:
            packed, cardinality, _ = _hash_codes(pa.array(packed))
        packed = coded.codes if cardinality == 1 else packed * coded.count + coded.codes
        cardinality *= coded.count
    return _number_by_appearance(packed, cardinality)


def group_coded(columns: Mapping[str, CodedColumn], rows: int) -> RowGroups | None:
    """Return the groups of rows by columns that are coded; None where their codes do not fit into one word.

    Groups come in the order of their codes, the last column varying fastest. Without columns, all rows are one group.
    """
    cardinality = prod(column.count for column in columns.values())
    if cardinality > _MAX_PACKED:
        return None
    packed = np.zeros(rows, dtype=np.int64)
    for number, column in enumerate(columns.values()):
        packed = column.codes if number == 0 else packed * column.count + column.codes
    codes, present = _renumber(packed, cardinality)
    keys: dict[str, pa.Array] = {}
    rest = present
    for name, column in reversed(list(columns.items())):
        rest, own = np.divmod(rest, max(column.count, 1))
        keys[name] = column.decoder.decode(own)
    return RowGroups(codes, pa.table({name: keys[name] for name in columns}), len(present))


def encode(values: pa.Array) -> CodedColumn:
    """Return a column as codes; whole numbers that lie close together are their own codes, which takes no hashing."""
    values = normal(values)
    if pa.types.is_signed_integer(values.type) and values.null_count == 0 and len(values):
        numbers = np.asarray(values)
        low = int(numbers.min())
        spread = int(numbers.max()) - low + 1
        if spread <= SPREAD_PER_ROW * len(values):
            codes = numbers.astype(np.int64, copy=False)
            return CodedColumn(codes - low if low else codes, spread, _Offset(low, values.type))
    codes, count, distinct = _hash_codes(values)
    return CodedColumn(codes, count, _Dictionary(distinct))


def normal(values: pa.Array) -> pa.Array:
    """Return the values in the one form in which equal keys have equal bytes."""
    if pa.types.is_dictionary(values.type):
        return normal(values.cast(values.type.value_type))
    if pa.types.is_floating(values.type):
        positive = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 + 0.0 is 0.0
        return pc.if_else(pc.is_nan(positive), pa.scalar(float("nan"), values.type), positive)
    return values


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the column as one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def _hash_codes(values: pa.Array) -> tuple[Ints, int, pa.Array]:
    encoded = values.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, len(encoded.dictionary), encoded.dictionary


def _renumber(codes: Ints, cardinality: int) -> tuple[Index, Ints]:
    """Return the codes without gaps, and the code that each stands for, in ascending order where codes are dense."""
    if cardinality > SPREAD_PER_ROW * len(codes):
        dense, _, distinct = _hash_codes(pa.array(codes))
        return dense.astype(np.intp, copy=False), np.asarray(distinct)
    present = np.flatnonzero(np.bincount(codes, minlength=cardinality))
    if len(present) == cardinality:
        return codes.astype(np.intp, copy=False), present
    numbers = np.empty(cardinality, dtype=np.intp)
    numbers[present] = np.arange(len(present))
    return numbers[codes], present


def _number_by_appearance(codes: Ints, cardinality: int) -> tuple[Index, Ints]:
    """Return the codes renumbered in the order of their first appearance, without gaps, and the rows of these."""
    rows = len(codes)
    if cardinality > SPREAD_PER_ROW * rows:
        codes, cardinality, _ = _hash_codes(pa.array(codes))
    first = np.full(cardinality, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(rows - 1, -1, -1)
    is_first = np.zeros(rows, dtype=np.bool_)
    is_first[first[first >= 0]] = True
    numbers = np.cumsum(is_first) - 1  # by row: the number of the group that appears there first
    return numbers[first[codes]].astype(np.intp, copy=False), np.flatnonzero(is_first)
