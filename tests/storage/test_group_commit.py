"""Writes that threads share. Catches: an item that is written twice or never, or told written before it is."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from catchment.storage.group_commit import GroupCommit
from tests.worlds.waiting import wait_until


class Writer:
    """Writes when it is let, and notes what was written together."""

    def __init__(self, max_items: int, fails: frozenset[int] = frozenset()) -> None:
        self.groups: list[tuple[int, ...]] = []
        self.may_write = threading.Event()
        self.writing = 0
        self.fails = fails
        self.commit: GroupCommit[int] = GroupCommit(max_items)
        self.told: dict[int, BaseException | None] = {}

    def _write(self, items: Sequence[int]) -> None:
        self.writing += 1
        assert self.writing == 1, "one write at a time"
        self.may_write.wait()
        self.writing -= 1
        if self.fails & set(items):
            raise OSError(5, "the disk fails")
        self.groups.append(tuple(items))

    def submit(self, item: int) -> None:
        try:
            self.commit.submit(item, self._write)
            assert any(item in group for group in self.groups), "it is told when it is written"
            self.told[item] = None
        except OSError as failure:
            self.told[item] = failure

    def submit_all(self, count: int) -> None:
        """Submit item 0, and all others while that is being written."""
        threads = [threading.Thread(target=self.submit, args=(item,)) for item in range(count)]
        threads[0].start()
        wait_until(lambda: self.writing == 1, "the first write to begin")
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: self.commit.waiting == count - 1, "the others to wait")
        self.may_write.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("max_items", "sizes"), [(100, [1, 9]), (4, [1, 4, 4, 1]), (1, [1] * 10)])
def test_what_comes_during_a_write_is_written_together_once(max_items: int, sizes: list[int]) -> None:
    writer = Writer(max_items)
    writer.submit_all(10)
    assert [len(group) for group in writer.groups] == sizes
    assert sorted(item for group in writer.groups for item in group) == list(range(10))
    assert writer.told == dict.fromkeys(range(10))
    assert writer.commit.waiting == 0


def test_an_error_is_told_to_every_thread_of_its_group_and_to_no_other() -> None:
    writer = Writer(100, fails=frozenset([3]))
    writer.submit_all(6)
    assert writer.groups == [(0,)]
    assert writer.told[0] is None
    assert all(isinstance(writer.told[item], OSError) for item in range(1, 6))
    writer.submit(6)
    assert writer.groups == [(0,), (6,)], "who comes later is written"


def test_a_thread_alone_writes_at_once() -> None:
    writer = Writer(100)
    writer.may_write.set()
    for item in range(3):
        writer.submit(item)
    assert writer.groups == [(0,), (1,), (2,)]
