"""The size of a table depends on its values alone: chunks, slices, bitmaps and a way over a journal change nothing.

Catches: a core that decides by a size otherwise when its journal is replayed, so that a segment gets other content
under a number that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import ceil

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.aggregates.content_bytes import content_bytes, content_bytes_by_row
from catchment.storage.codec import decode, encode

WHOLE = st.integers(-(2**31), 2**31 - 1)
COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.int64(), WHOLE),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us", tz="UTC"), st.integers(0, 2**40)),
    (pa.decimal128(20, 2), st.integers(-1000, 1000).map(Decimal)),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.list_(pa.string()), st.lists(st.text(max_size=3), max_size=3)),
    (pa.list_(pa.int64(), 2), st.lists(WHOLE, min_size=2, max_size=2)),
    (pa.list_(pa.string(), 2), st.lists(st.text(max_size=3), min_size=2, max_size=2)),
    (pa.struct([("a", pa.int32()), ("b", pa.string())]), st.fixed_dictionaries({"a": WHOLE, "b": st.text(max_size=3)})),
    (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text(max_size=3), WHOLE, max_size=3).map(lambda d: [*d.items()]),
    ),
]


def other_forms(values: Sequence[object], of: pa.DataType, cut: int) -> dict[str, pa.Table]:
    whole = pa.array(values, of)
    around = pa.concat_arrays([pa.nulls(3, of), whole, pa.nulls(2, of)])  # so that it has a bitmap, and offsets
    forms = {
        "one chunk": pa.chunked_array([whole]),
        "two chunks": pa.chunked_array([whole[:cut], whole[cut:]], of),
        "slice": pa.chunked_array([around[3 : 3 + len(values)]]),
    }
    tables = {name: pa.table({"x": column}) for name, column in forms.items()}
    return tables | {f"{name}, stored": decode(encode(table)) for name, table in tables.items()}


@pytest.mark.parametrize(("of", "value"), COLUMNS, ids=[str(of) for of, _ in COLUMNS])
@given(data=st.data())
def test_equal_tables_have_equal_sizes(of: pa.DataType, value: st.SearchStrategy[object], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | value, max_size=12))
    forms = other_forms(values, of, data.draw(st.integers(0, len(values))))
    assert len({content_bytes(table) for table in forms.values()}) == 1, {n: content_bytes(t) for n, t in forms.items()}
    by_row = [max(content_bytes(pa.table({"x": [v] * 8}, pa.schema([("x", of)]))), 0) / 8 for v in values]
    for table in forms.values():
        assert content_bytes_by_row(table).tolist() == [ceil(size) for size in by_row]


def test_arrow_counts_more_where_the_same_values_lie_otherwise() -> None:
    forms = other_forms(["a", "bc", "d"], pa.string(), 1)
    assert len({table.nbytes for table in forms.values()}) > 1, "else this size were not needed"
    assert {content_bytes(table) for table in forms.values()} == {3 * 4 + 4}
