"""A row has the hash of its own values, whatever other rows are hashed with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from catchment.aggregates.hashing import hash_rows

# few values: columns that have one value, or two, are common
NUMBERS = st.sampled_from([0, 1, -(2**63), 2**63 - 1])
ROWS = st.lists(st.tuples(NUMBERS, st.none() | NUMBERS, NUMBERS), min_size=1, max_size=6)


@given(ROWS)
def test_a_row_has_the_same_hash_alone_and_among_others(rows: list[tuple[int, int | None, int]]) -> None:
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    together = hash_rows(columns)
    alone = [hash_rows([column.slice(number, 1) for column in columns]) for number in range(len(rows))]
    assert together.dtype == np.uint64
    assert together.tolist() == np.concatenate(alone).tolist()
