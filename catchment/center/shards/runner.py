"""Who runs the tasks of a center with shards: this process, or the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")


class TaskRunner(Protocol):
    """Runs one function over many tasks. A task may run more than once, and the result of one attempt counts."""

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        ...

    def run(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        """Return what the function makes of each task, in their order."""
        ...


class InProcess:
    """Runs tasks here, one after another."""

    cores = 1

    def run(self, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
        return [function(task) for task in tasks]
