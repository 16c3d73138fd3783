"""Old batches are removed within the limits, oldest first, and nothing that is needed.

The oracle recomputes from all batches what may stay; it does not share code with what is tested.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.storage.batch_retention import KEEP_NEWEST, MAX_REMOVALS, SCAN_EVERY_US, BatchRetention
from catchment.timeline import ManualClock
from tests.worlds.tiers import examples

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def write_batch(folder: Path, number: int, size: int, written_us: int) -> None:
    path = folder / f"batch={number}"
    path.mkdir(parents=True)
    (path / "part-0.parquet").write_bytes(b"x" * size)
    os.utime(path, ns=(written_us * 1000, written_us * 1000))


def numbers(folder: Path) -> list[int]:
    return sorted(int(p.name.removeprefix("batch=")) for p in folder.glob("batch=*"))


def tidy_all(kept: BatchRetention, needed: frozenset[int] = frozenset()) -> None:
    while kept.tidy(needed):
        pass


@given(
    sizes=st.lists(st.integers(1, 100), max_size=40),
    needed=st.frozensets(st.integers(0, 40)),
    keep_s=st.none() | st.integers(0, 50),
    max_bytes=st.none() | st.integers(0, 2000),
)
@settings(max_examples=examples(60))
def test_what_stays_is_what_the_limits_and_the_needs_say(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    needed: frozenset[int],
    keep_s: int | None,
    max_bytes: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    for number, size in enumerate(sizes):
        write_batch(folder, number, size, START + number * SECOND)
    now_us = START + len(sizes) * SECOND
    kept = BatchRetention(folder, ManualClock(now_us), None if keep_s is None else keep_s * SECOND, max_bytes)
    tidy_all(kept, needed)

    newest = set(range(len(sizes) - KEEP_NEWEST, len(sizes)))
    stays = set()
    for number in range(len(sizes)):
        is_young = keep_s is None or len(sizes) - number <= keep_s
        is_within = max_bytes is None or sum(sizes[number:]) <= max_bytes
        if number in newest | needed or (is_young and is_within):
            stays.add(number)
    assert set(numbers(folder)) == stays
    assert kept.size_bytes == sum(sizes[n] for n in stays)
    assert kept.removed_batches == len(sizes) - len(stays)
    assert kept.removed_bytes == sum(sizes) - kept.size_bytes


def test_new_batches_are_found_and_a_call_removes_only_so_many(tmp_path: Path) -> None:
    clock = ManualClock(START)
    kept = BatchRetention(tmp_path, clock, keep_us=SECOND)
    assert kept.tidy() == 0
    for number in range(200):
        write_batch(tmp_path, number, 1, START)
    clock.advance(SCAN_EVERY_US)
    assert kept.tidy() == MAX_REMOVALS
    tidy_all(kept)
    assert numbers(tmp_path) == list(range(200 - KEEP_NEWEST, 200))


def test_a_batch_that_was_half_removed_is_no_batch_and_goes_with_the_next_scan(tmp_path: Path) -> None:
    write_batch(tmp_path, 3, 1, START)
    os.replace(tmp_path / "batch=3", tmp_path / "_removed-3")
    (tmp_path / "another").mkdir()
    kept = BatchRetention(tmp_path, ManualClock(START), keep_us=0, max_bytes=0)
    tidy_all(kept)
    assert [p.name for p in tmp_path.iterdir()] == ["another"]


def test_a_batch_that_is_written_again_is_measured_again(tmp_path: Path) -> None:
    clock = ManualClock(START)
    write_batch(tmp_path, 0, 10, START)
    kept = BatchRetention(tmp_path, clock)
    kept.tidy()
    (tmp_path / "batch=0" / "part-1.parquet").write_bytes(b"x" * 5)
    clock.advance(SCAN_EVERY_US)
    kept.tidy()
    assert kept.size_bytes == 15
