"""ORDER BY with LIMIT: the first rows of each window, whatever comes late.

Catches: a row that stays though a late record puts another before it, nulls or ties that are ordered otherwise than in
the oracle. Cannot catch: expressions in ORDER BY, which Spark computes; `tests/spark/test_query.py` does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.center.results.recent import RecentRows
from catchment.center.results.top_rows import beyond_limit, order_codes
from catchment.query.plan_nodes import SortKey
from tests.worlds.sql_world import SqlTown, sorted_rows
from tests.worlds.tiers import examples

TOP = """CREATE MATERIALIZED VIEW top AS
SELECT window.start, page, country, count(*) AS n, sum(bytes) AS bytes FROM hits
GROUP BY window(ts, '1 minute'), page, country ORDER BY {order} LIMIT {limit};"""
ORACLE = """SELECT w, page, country, n, bytes FROM (
  SELECT *, row_number() OVER (PARTITION BY w ORDER BY {order}, page NULLS FIRST, country NULLS FIRST) AS place FROM (
    SELECT ts // 60000000 * 60000000 AS w, page, country, count(*) AS n, sum(bytes)::BIGINT AS bytes
    FROM hits GROUP BY ALL)) WHERE place <= {limit}"""
ORDERS = [
    "n DESC NULLS LAST",
    "bytes DESC NULLS LAST, n ASC NULLS FIRST",
    "bytes ASC NULLS LAST",
    "page DESC NULLS FIRST",
]


@settings(max_examples=examples(12))
@given(
    seed=st.integers(0, 10**6),
    order=st.sampled_from(ORDERS),
    limit=st.integers(1, 4),
    policy=st.sampled_from(["streaming", "batching"]),
)
def test_a_run_ends_with_the_first_rows_of_each_window(
    tmp_path_factory: pytest.TempPathFactory, seed: int, order: str, limit: int, policy: str
) -> None:
    town = SqlTown(tmp_path_factory.mktemp("town"), TOP.format(order=order, limit=limit), seed, policy)
    town.run()
    expected = town.expected(ORACLE.format(order=order, limit=limit))
    assert sorted_rows(town.center.rows("top")) == sorted_rows(expected)


def naive_key(value: Any, key: SortKey) -> tuple[int, Any]:
    """The place of a value in Spark's order: nulls where they are asked for, NaN above every number."""
    if value is None:
        return (0 if key.nulls_first else 2, 0)
    rank = (1, math.inf) if isinstance(value, float) and math.isnan(value) else (0, value)
    return (1, tuple(-x for x in rank) if key.descending else rank)


@settings(max_examples=examples(60))
@given(
    values=st.lists(st.none() | st.sampled_from([0.0, -0.0, 1.5, -3.0, 1e300, math.nan]), max_size=12),
    descending=st.booleans(),
    nulls_first=st.booleans(),
)
def test_codes_are_in_the_order_of_values(values: list[float | None], descending: bool, nulls_first: bool) -> None:
    key = SortKey("x", pa.float64(), "x", descending, nulls_first)
    codes = order_codes(pa.array(values, pa.float64()), key).tolist()
    for i, left in enumerate(values):
        for j, right in enumerate(values):
            a, b = naive_key(left, key), naive_key(right, key)
            assert (codes[i] < codes[j]) == (a < b)


def test_rows_that_are_left_out_take_no_place() -> None:
    revisions, kept = np.array([0, 0, 0, 1, 1]), np.array([False, True, True, True, True])
    assert beyond_limit(revisions, kept, [np.array([1, 2, 3, 2, 1])], 1).tolist() == [True, False, True, True, False]


def test_a_whole_window_is_recalled_from_its_newest_revision() -> None:
    recent = RecentRows()
    recent.add(0, pa.table({"k": [1, 2], "n": [10, 20]}))
    recent.add(0, pa.table({"k": [1, 2, 3], "n": [11, 20, 5]}))
    found = recent.recall(pa.table({"window_start_us": pa.array([0], pa.int64())}))
    assert found is not None
    assert found["n"].to_pylist() == [11, 20, 5]
