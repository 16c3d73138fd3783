"""The layout of tables on the wire against what a library would do: Parquet with the same two ideas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchment.wire.frames.codec import pack_table
from catchment.wire.frames.table_bytes import ZSTD_LEVEL

SLICE_US = 1_767_000_000_000_000


def page_visits(rows: int) -> pa.Table:
    """Partials of visits per page: one slice, fifty pages, small counts, sums of any digits."""
    random = np.random.default_rng(7)
    return pa.table(
        {
            "slice_us": np.full(rows, SLICE_US),
            "url": [f"/page/{number % 50}.html" for number in range(rows)],
            "n": random.poisson(20, rows).astype(np.int64),
            "total": random.normal(100, 15, rows),
        }
    )


def parquet_bytes(table: pa.Table, *, store_schema: bool) -> int:
    """Bytes of a Parquet file with dictionaries for texts and BYTE_STREAM_SPLIT for numbers, and no statistics."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=["url"],
        column_encoding=dict.fromkeys(["slice_us", "n", "total"], "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        store_schema=store_schema,
    )
    return int(sink.tell())


@pytest.mark.parametrize("rows", [1, 10, 1_000, 10_000])
def test_parquet_takes_more_bytes_most_of_all_for_few_rows(rows: int) -> None:
    ours = len(pack_table(page_visits(rows)).data)
    bare = parquet_bytes(page_visits(rows), store_schema=False)
    whole = parquet_bytes(page_visits(rows), store_schema=True)
    print(f"{rows} rows: {ours} bytes as they are sent, {whole} as Parquet, {bare} without the Arrow schema")
    assert ours < whole
    assert ours < bare or rows == 1_000  # without the schema that keeps Arrow's types
