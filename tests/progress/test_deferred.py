"""Partials that wait: which groups, how their records are counted, and what is left on disk after a crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import StorageError
from catchment.progress.deferred import (
    DeferredFolder,
    DeferredPartials,
    describe,
    divide,
    is_complete,
    split,
)
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import WindowSpec
from tests.worlds.tiers import examples
from tests.worlds.world import make_fragment

FRAGMENT = make_fragment(WindowSpec.tumbling(10))
(KEY,) = FRAGMENT.key_names


def some_partials(rows: int, seed: int) -> tuple[pa.Table, tuple[tuple[str, int, int], ...]]:
    """Partials of a few slices, and the raw records behind them, of two sites and in several pieces."""
    numbers = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    for field in FRAGMENT.schema:
        if field.name == SLICE_COLUMN:
            columns[field.name] = pa.array(numbers.integers(0, 3, rows) * 10, pa.int64())
        elif field.name == KEY:
            columns[field.name] = pa.array([f"k{i}" for i in numbers.integers(0, 20, rows)], field.type)
        else:
            columns[field.name] = pa.array(numbers.integers(1, 9, rows)).cast(field.type)
    records = [(str(s), int(t) * 10, int(n)) for s, t, n in zip("abab", (0, 1, 1, 2), (5, 7, 3, 11), strict=True)]
    return pa.table(columns, FRAGMENT.schema), tuple(records)


def total(*parts: tuple[tuple[str, int, int], ...]) -> Counter[tuple[str, int]]:
    counts: Counter[tuple[str, int]] = Counter()
    for site, slice_us, count in (record for part in parts for record in part):
        assert count > 0
        counts[site, slice_us] += count
    return counts


@settings(max_examples=examples(40))
@given(st.integers(0, 60), st.floats(0.02, 0.98), st.integers(1, 20), st.integers(0, 1000))
def test_every_row_and_every_record_is_merged_now_or_waits_in_one_part(
    rows: int, share: float, part_rows: int, seed: int
) -> None:
    table, records = some_partials(rows, seed)
    found = split(table, records, [KEY], share)
    parts = list(divide("f", found, (), part_rows))
    now_and_later = [*found.merged.to_pylist(), *(row for part in parts for row in part.partials.to_pylist())]
    assert Counter(map(repr, now_and_later)) == Counter(map(repr, table.to_pylist()))
    assert all(0 < part.partials.num_rows <= part_rows for part in parts)
    assert total(found.merged_records, *(part.records for part in parts)) == total(records)
    merged = set(found.merged[KEY].to_pylist())
    assert not merged & {key for part in parts for key in part.partials[KEY].to_pylist()}, "groups are whole"
    for part in parts:
        told = describe(FRAGMENT, 1, share, (KEY,), part)
        assert {slice_us for slice_us, _ in told.lacking} == set(part.partials[SLICE_COLUMN].to_pylist())


def test_groups_of_a_share_are_among_those_of_a_larger_one() -> None:
    keys = [pa.array([f"k{i}" for i in range(2000)])]
    few, many = is_complete(keys, 0.1), is_complete(keys, 0.4)
    assert few.sum() == pytest.approx(200, abs=60)
    assert many.sum() == pytest.approx(800, abs=100)
    assert not (few & ~many).any()


def test_what_the_core_does_not_know_is_removed_and_what_is_damaged_is_refused(tmp_path: Path) -> None:
    table, records = some_partials(5, 1)
    folder = DeferredFolder(tmp_path / "deferred")
    for number in (7, 8, 9):
        folder.write(number, DeferredPartials("f", table, records, (("a", 0),)))
    again = DeferredFolder(tmp_path / "deferred")
    again.recover({("f", 7), ("f", 9)})
    assert again.keys == [("f", 7), ("f", 9)]
    assert again.read(("f", 9)).partials.equals(table)
    assert again.read(("f", 9)).records == records
    (file,) = (tmp_path / "deferred").glob("*7-f")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StorageError, match="deferred partials are damaged"):
        again.read(("f", 7))
    again.remove(("f", 9))
    with pytest.raises(StorageError, match="deferred partials are missing"):
        again.read(("f", 9))
    assert again.size_bytes == file.stat().st_size + 1


def test_a_full_folder_takes_no_more(tmp_path: Path) -> None:
    table, records = some_partials(5, 1)
    folder = DeferredFolder(tmp_path / "deferred", max_bytes=10)
    assert not folder.is_full
    folder.write(1, DeferredPartials("f", table, records, ()))
    assert folder.is_full
