"""Threads that each need something made durable share a write: who comes while one is under way waits for the next.

Nobody waits for others to come: who finds no write under way begins one, with what is there. So a single thread has its
own write, and many have one per turn of the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(eq=False)
class _Group(Generic[Item]):
    """Items that are written together, and why that failed if it did."""

    items: list[Item] = field(default_factory=list)
    is_done: bool = False
    failure: BaseException | None = None


class GroupCommit(Generic[Item]):
    """Lets one thread at a time write what it and others have brought, at most `max_items` at once.

    It knows nothing of whose it is, so that an owner which nobody uses any more is gone at once, and its locks with it.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._changed = threading.Condition()
        self._groups: list[_Group[Item]] = []  # that wait for their turn, oldest first
        self._is_writing = False

    @property
    def waiting(self) -> int:
        """How many items wait for a write that is under way."""
        with self._changed:
            return sum(len(group.items) for group in self._groups)

    def submit(self, item: Item, write: Callable[[Sequence[Item]], None]) -> None:
        """Return when the item is written, by this thread or by another, all of which write in the same way.

        An error of `write` is raised in every thread whose item was among what was written.
        """
        with self._changed:
            group = self._join(item)
            self._changed.wait_for(lambda: group.is_done or (not self._is_writing and self._groups[0] is group))
            if not group.is_done:
                self._groups.pop(0)  # whoever comes from now on is in the next one
                self._is_writing = True
                is_mine = True
            else:
                is_mine = False
        if is_mine:
            self._write(group, write)
        if group.failure is not None:
            raise group.failure

    def _join(self, item: Item) -> _Group[Item]:
        if not self._groups or len(self._groups[-1].items) >= self._max_items:
            self._groups.append(_Group())
        self._groups[-1].items.append(item)
        return self._groups[-1]

    def _write(self, group: _Group[Item], write: Callable[[Sequence[Item]], None]) -> None:
        try:
            write(group.items)
        except BaseException as failure:  # noqa: BLE001 - it is raised in every thread of the group
            group.failure = failure
        with self._changed:
            group.is_done = True
            self._is_writing = False
            self._changed.notify_all()
