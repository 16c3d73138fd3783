"""approx_top_k: a sketch of frequent items, over strings.

The state is what Spark's `approx_top_k_accumulate` puts into its field `sketch`: the bytes of a DataSketches
frequent-items sketch of strings, then the number of nulls as 8 bytes, big end first (Spark counts null as an item, and
so does the core). For a merge in Spark the other fields of its struct, which are constants, are added again. Items of
other types than strings are counted by their text and returned in their own type. Because null is an item, the argument
of a call with FILTER is STRUCT(item), which is null where a record does not count.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import frequent_items_error_type, frequent_strings_sketch

from catchment.aggregates.base import AggregateCall, Groups, fields_of, quote
from catchment.aggregates.grouped import valid_rows
from catchment.aggregates.sketches import EMPTY_BYTES, SketchAggregate, read_sketch
from catchment.arrays import Ints
from catchment.errors import AggregateError
from catchment.storage.codec import stored

ITEM = "item"
ITEM_BYTES = 24  # about what a sketch takes for each item: its text and its count
DEFAULT_K = 5  # how many items are returned
DEFAULT_MAX_ITEMS = 10_000  # how many distinct items are tracked
MAX_MAX_ITEMS = 1_000_000
_LOAD = 0.75  # share of the map that the sketch fills before it drops its rarest items
_MIN_LG_MAP = 3  # binary logarithm of the smallest map of a sketch
_NULLS = struct.Struct(">q")


@stored()
@dataclass(frozen=True)
class ApproxTopK(SketchAggregate):
    """The k most frequent items as a list of (item, count), by falling count, then by item; empty for none.

    Counts are exact until more than `max_items` distinct items were seen; then each is off by at most
    `sketch_error` of all records.
    """

    k: int = DEFAULT_K
    max_items: int = DEFAULT_MAX_ITEMS
    suffix = "topk"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.k <= self.max_items <= MAX_MAX_ITEMS:
            raise AggregateError(
                f"approx_top_k takes 1 <= k <= max_items <= {MAX_MAX_ITEMS}, and was given k {self.k}, "
                f"max_items {self.max_items}",
                where=self.name,
            )
        if not _has_faithful_text(self.item_type):
            raise AggregateError(
                f"approx_top_k takes strings, integers, booleans, dates, and was given {self.item_type}",
                where=self.name,
                hint="count CAST(x AS STRING)",
            )

    @classmethod
    def from_call(cls, call: AggregateCall) -> ApproxTopK:
        """Make the aggregate of a call: k, then optionally the number of items to track."""
        return cls(*call.head, *(_whole(p, call.name) for p in call.parameters))

    @property
    def is_filtered(self) -> bool:
        """Whether only some records count."""
        return bool(pa.types.is_struct(self.argument_type))

    @property
    def item_type(self) -> pa.DataType:
        return fields_of(self.argument_type).get(ITEM, self.argument_type)

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.struct([(ITEM, self.item_type), ("count", pa.int64())]))

    @property
    def lg_map(self) -> int:
        """Binary logarithm of the size of the sketch's map, as Spark chooses it."""
        return max(math.ceil(math.log2(math.ceil(self.max_items / _LOAD))), _MIN_LG_MAP)

    @property
    def sketch_error(self) -> float:
        """How far a count may be off, as a share of all records."""
        return float(frequent_strings_sketch.get_epsilon_for_lg_size(self.lg_map))

    @property
    def takes_counts(self) -> bool:
        return not self.is_filtered

    def size_bytes(self, values: float) -> float:
        return EMPTY_BYTES + ITEM_BYTES * min(values, self.max_items)

    def lift_counted(self, values: pa.Array, counts: Ints, groups: Groups, size: int) -> list[pa.Array]:
        known = valid_rows(values)
        nulls = np.bincount(groups[~known], weights=counts[~known], minlength=size)
        sketches = [frequent_strings_sketch(self.lg_map) for _ in range(size)]
        items = values.cast(pa.string()).to_pylist()
        for row in np.flatnonzero(known).tolist():
            sketches[groups[row]].update(items[row], int(counts[row]))
        states = [
            bytes(sketch.serialize()) + _NULLS.pack(int(count)) for sketch, count in zip(sketches, nulls, strict=True)
        ]
        return [pa.array(states, pa.binary())]

    def lift_sql(self) -> tuple[str, ...]:
        if not self.is_filtered:
            return (f"approx_top_k_accumulate(CAST(({self.argument}) AS STRING), {self.max_items}).sketch",)
        items = f"approx_top_k_accumulate(CAST(({self.argument}).{ITEM} AS STRING), {self.max_items})"
        return (f"({items} FILTER (WHERE ({self.argument}) IS NOT NULL)).sketch",)

    def merge_sql(self) -> tuple[str, ...]:
        state = quote(self.states[0].name)
        whole = (
            f"named_struct('sketch', {state}, 'maxItemsTracked', {self.max_items}, "
            "'itemDataType', CAST(NULL AS STRING), 'itemDataTypeDDL', 'item string not null')"
        )
        return (f"(approx_top_k_combine({whole}, {self.max_items}) FILTER (WHERE {state} IS NOT NULL)).sketch",)

    def prepare(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.string())

    def lift(self, values: pa.Array | None, groups: Groups, size: int) -> list[pa.Array]:
        assert values is not None
        if self.is_filtered:
            counted = valid_rows(values)
            values, groups = pc.struct_field(values, ITEM).filter(pa.array(counted)), groups[counted]
        nulls = np.bincount(groups[~valid_rows(values)], minlength=size).tolist()
        bodies = super().lift(values, groups, size)[0].to_pylist()
        return [pa.array([body + _NULLS.pack(n) for body, n in zip(bodies, nulls, strict=True)], pa.binary())]

    def sketch(self, values: pa.Array) -> bytes:
        sketch = frequent_strings_sketch(self.lg_map)
        for item, count in Counter(values.to_pylist()).items():
            sketch.update(item, count)
        return bytes(sketch.serialize())

    def merge(self, sketches: Sequence[bytes]) -> bytes:
        merged = frequent_strings_sketch(self.lg_map)
        nulls = 0
        for state in sketches:
            part, missing = self._read(state)
            merged.merge(part)
            nulls += missing
        return bytes(merged.serialize()) + _NULLS.pack(nulls)

    def estimate(self, sketch: bytes | None) -> list[tuple[object, int]]:
        if sketch is None:
            return []
        read, nulls = self._read(sketch)
        found = read.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES)
        read_item = _reader(self.item_type)
        items = [(read_item(text), count) for text, count, *_ in found]
        ranked = sorted(items, key=lambda pair: (-pair[1], pair[0]))
        missing = [(None, nulls)] if nulls else []
        return sorted(missing + ranked, key=lambda pair: -pair[1])[: self.k]

    def _read(self, state: bytes) -> tuple[frequent_strings_sketch, int]:
        body, tail = state[: -_NULLS.size], state[-_NULLS.size :]
        read = read_sketch(frequent_strings_sketch.deserialize, body, self)
        return read, int(_NULLS.unpack(tail)[0])


def _has_faithful_text(type_: pa.DataType | None) -> bool:
    """Return whether Spark and Arrow write the type as the same text, and read it back."""
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_signed_integer,
        pa.types.is_boolean,
        pa.types.is_date32,
    )
    return any(test(type_) for test in tests)


def _reader(type_: pa.DataType | None) -> Callable[[str], Any]:
    """Return the function that turns an item's text back into a value of its type."""
    if pa.types.is_boolean(type_):
        return lambda text: text == "true"
    if pa.types.is_date32(type_):
        return date.fromisoformat
    return int if pa.types.is_signed_integer(type_) else str


def _whole(value: object, name: str) -> int:
    text = str(value)
    if not text.isdigit():
        raise AggregateError(f"approx_top_k needs whole numbers after its argument, not {value!r}", where=name)
    return int(text)
