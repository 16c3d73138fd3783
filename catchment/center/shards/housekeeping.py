"""What keeps the parts of a center few and its folder small: folding, and removing files that nothing names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from catchment.center.core import CenterCore
from catchment.center.events import PartsFolded
from catchment.center.shards.consumer import ShardedCenter
from catchment.center.shards.fold import find_many_parts, fold, fold_above
from catchment.center.shards.parts import count_rows, is_parts, part_files

CHECKPOINT_AFTER_BYTES = 1 << 30  # of part files that were written since the state was last written down


@dataclass
class PartKeeper:
    """Follows the part files of a center.

    What the state named when it was last written down stays, because a restart begins there.
    """

    core: CenterCore
    spread: ShardedCenter
    kept_bytes: int = field(default=0, init=False)
    _named: set[str] = field(default_factory=set, init=False)
    _until: int | None = field(default=None, init=False)  # runs before it had ended when the state was written down
    _new_bytes: int = field(default=0, init=False)

    def fold_slices(self, run_end: int) -> list[PartsFolded]:
        """Merge the parts of slices that have many; nothing else may reach the core before these events."""
        many = list(find_many_parts(self.core, fold_above(self.spread.shards)))
        return fold(self.spread, self.spread.folder.begin_run(run_end), many) if many else []

    def note_run(self, run_end: int) -> bool:
        """Count what a run has written; return whether the state should be written down, so that files can go."""
        folder = self.spread.folder.begin_run(run_end)
        self._new_bytes += sum(file.stat().st_size for file in folder.iterdir())
        return self._new_bytes > CHECKPOINT_AFTER_BYTES

    def note_snapshot(self, position: int) -> None:
        """Remember what the state names that is about to be written down."""
        self._named = named_files(self.core)
        self._until = position
        self._new_bytes = 0

    def remove_unused(self) -> None:
        """Remove the files that the written state does not name, once after it was written."""
        if self._until is not None:
            self.kept_bytes = self.spread.folder.remove_unused(self._named, self._until + 1)
            self._until = None

    def status(self) -> dict[str, Any]:
        """Return how much lies in files, as plain JSON."""
        parts = [table for table in _tables(self.core) if is_parts(table)]
        return {
            "shards": self.spread.shards,
            "parts": sum(table.num_rows for table in parts),
            "rows": sum(map(count_rows, parts)),
            "kept_bytes": self.kept_bytes,
        }


def named_files(core: CenterCore) -> set[str]:
    """Return the part files that the state of a core names."""
    return {file for table in _tables(core) if is_parts(table) for file in part_files(table)}


def _tables(core: CenterCore) -> Iterator[pa.Table]:
    """Yield every table of partials, or of parts, that a core holds."""
    for running in list(core.queries.values()):
        state = running.windows.state
        for tables in (*list(state.slices.values()), *list(state.late.tables.values()), *list(state.expired.values())):
            yield from list(tables)
        for table, _ in running.waiting:
            yield table
