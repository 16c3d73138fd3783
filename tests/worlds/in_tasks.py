"""Lets sites and a center with shards leave everything to tasks, however small it is, as large ones do.

`python -m tests.worlds.in_tasks run --once` is the command `catchment` with that.
"""

from __future__ import annotations

from catchment.center.shards import consumer
from catchment.center.shards.tables import ShardedTables
from catchment.spark.evaluation import file_scan


def leave_all_to_tasks() -> None:
    """Make no exception for what is small."""
    consumer.TASK_BYTES = 1
    file_scan.SMALL_BYTES = 0
    ShardedTables._is_small = lambda self, revisions: False  # type: ignore[method-assign]


if __name__ == "__main__":
    from catchment.cli.main import main

    leave_all_to_tasks()
    main()
