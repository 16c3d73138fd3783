"""Rows of lake tables after a batch of upserts, against the definition: the newest row of every key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import CatchmentError
from catchment.records.object_store import S3Settings, without_secrets
from catchment.sinks.lake_rows import change_rows, read_place, touched_windows, write_place
from catchment.sinks.target import DELETED, OPERATION, UPSERTED, ChangeBatch, Place
from tests.worlds.tiers import examples

SCHEMA = pa.schema(
    [("window_start", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("n", pa.int64()), (OPERATION, pa.string())]
)
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]), st.sampled_from([UPSERTED, DELETED])),
    max_size=8,
    unique_by=lambda row: row[:2],
)


def batch_of(rows: list[tuple[int, str | None, str]], number: int) -> ChangeBatch:
    listed = [(start, key, number, what) for start, key, what in rows]
    columns = list(zip(*listed, strict=True)) or [()] * 4
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    return ChangeBatch("v", ("window_start", "k"), table, Place("life", number, 0))


@settings(max_examples=examples(200))
@given(batches=st.lists(ROWS, max_size=6))
def test_after_every_batch_a_table_has_the_newest_row_of_every_key(batches: list[Any]) -> None:
    stored: pa.Table | None = None
    expected: dict[tuple[int, str | None], int] = {}
    for number, rows in enumerate(batches):
        batch = batch_of(rows, number)
        starts = touched_windows(batch)
        assert starts == sorted({start for start, _, _ in rows})
        if stored is None:
            stored = change_rows(None, batch)
        else:
            is_touched = pa.array([m in starts for m in starts_of(stored)], pa.bool_())
            others = stored.filter(pc.invert(is_touched))
            stored = pa.concat_tables([others, change_rows(stored.filter(is_touched), batch)])
        for start, key, what in rows:
            expected.pop((start, key), None)
            if what == UPSERTED:
                expected[start, key] = number
        found = list(zip(starts_of(stored), stored["k"].to_pylist(), stored["n"].to_pylist(), strict=True))
        assert sorted(found, key=repr) == sorted(((s, k, n) for (s, k), n in expected.items()), key=repr)


def starts_of(table: pa.Table) -> list[int]:
    return table["window_start"].cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def test_rows_may_gain_columns_and_those_before_lack_them() -> None:
    first = change_rows(None, batch_of([(0, "a", UPSERTED), (0, "b", UPSERTED)], 0))
    later = batch_of([(0, "a", UPSERTED)], 1)
    wider = ChangeBatch("v", later.keys, later.rows.append_column("more", pa.array([1.5])), later.end)
    rows = sorted(change_rows(first, wider).to_pylist(), key=lambda row: row["k"])
    assert [(r["k"], r["n"], r["more"]) for r in rows] == [("a", 1, 1.5), ("b", 0, None)]


def test_a_place_comes_back_from_its_text() -> None:
    place = Place("a life", 7, 3)
    again = read_place(write_place(place))
    assert again is not None
    assert (again, again.life) == (place, "a life")
    assert read_place(None) is None
    with pytest.raises(CatchmentError, match="nobody can read"):
        read_place("7")


def test_what_a_client_says_is_told_without_keys_colours_and_stacks() -> None:
    settings = S3Settings("http://s3:9000", "eu", "AKIAID", "very-secret", "a-token")
    said = "\x1b[31mGeneric S3 error\x1b[0m\n  ↳ AKIAID:very-secret at s3\n   0: <unknown>\n   1: <unknown>\n a-token"
    assert without_secrets(said, settings.secrets) == "Generic S3 error: ***:*** at s3: ***"
    assert "secret" not in repr(settings)
    address = without_secrets("postgresql://user:hunter2@db/x is away", {})
    assert address == "postgresql://user:***@db/x is away"
