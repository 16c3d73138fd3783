"""What a site counts of its groups: exact while they are few, and close when they are many, whatever comes twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.aggregates.hashing import hash_rows
from catchment.site.meter import KEPT_HASHES, GroupCount


@given(
    sizes=st.lists(st.sampled_from([0, 1, 50, 900, 3_000, 40_000]), max_size=5),
    repeated=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_smallest_distinct_hashes_are_kept_however_groups_come(sizes: list[int], repeated: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    count = GroupCount()
    came = []
    for size in sizes:
        keys = chance.integers(0, 100_000, size) // repeated  # most come many times
        count.add_rows(pa.table({"key": keys}))
        came.append(keys)
    every = np.concatenate([np.empty(0, np.int64), *came])
    expected = np.sort(np.array(list(set(hash_rows([pa.array(every)]).tolist())), dtype=np.uint64))[:KEPT_HASHES]
    assert np.array_equal(count.smallest, expected)


def test_many_groups_are_counted_closely() -> None:
    count = GroupCount()
    for start in range(0, 1_000_000, 250_000):
        count.add_rows(pa.table({"key": np.arange(start, start + 300_000)}))
    assert count.estimate == pytest.approx(1_050_000, rel=0.1)
