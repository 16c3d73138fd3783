"""Folding: the many parts of a slice that stays open for long become one per shard.

Every run adds parts to each slice that it has partials of. A slice with more than `fold_above` of them is merged by
tasks, shard by shard, so that what the driver knows of it is bounded by the number of shards, and what lies in files by
the number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.core import CenterCore
from catchment.center.events import PartsFolded
from catchment.center.shards.consumer import ShardedCenter
from catchment.center.shards.gather import write_parts
from catchment.center.shards.parts import Part, Shard, concat_rows, is_parts, make_parts
from catchment.center.shards.resolve import RowResolver
from catchment.query.fragment import SLICE_COLUMN, Fragment


def fold_above(shards: int) -> int:
    """Return how many parts a slice may have."""
    return max(64, 4 * shards)


@dataclass(frozen=True)
class OpenParts:
    """The parts of one open slice of a query."""

    query: str
    fragment: Fragment
    slice_us: int
    parts: pa.Table


@dataclass(frozen=True)
class FoldOrder:
    """What the tasks of one folding are told."""

    folder: Path
    shards: int
    slices: tuple[OpenParts, ...]

    def run(self, shard: int) -> list[list[tuple[int, Part]]]:
        """Merge the rows of one shard; return the parts of each slice."""
        return [list(self._fold(given, Shard(shard, self.shards))) for given in self.slices]

    def _fold(self, given: OpenParts, shard: Shard) -> list[tuple[int, Part]]:
        rows = RowResolver(given.fragment, False).unmerged(given.parts, shard)
        slices = pa.array([given.slice_us] * rows.num_rows, pa.int64())
        placed = rows.add_column(0, SLICE_COLUMN, slices)
        keys = [SLICE_COLUMN, *given.fragment.key_names]
        merged = partials.combine_fitting(placed, keys, given.fragment.aggregates)
        return write_parts(self.folder, given.query, given.fragment, merged, self.shards)


def find_many_parts(core: CenterCore, above: int) -> Iterator[OpenParts]:
    """Yield the open slices that have more parts than they may have."""
    for name, running in core.queries.items():
        for slice_us, tables in running.windows.state.slices.items():
            if sum(table.num_rows for table in tables) > above and all(map(is_parts, tables)):
                yield OpenParts(name, running.query.fragment, slice_us, concat_rows(tables))


def fold(spread: ShardedCenter, folder: Path, slices: Sequence[OpenParts]) -> list[PartsFolded]:
    """Let tasks merge the parts of slices; return the events that put the merged ones in their place."""
    if not slices:
        return []
    order = FoldOrder(folder, spread.shards, tuple(slices))
    found = spread.runner.run(partial(FoldOrder.run, order), range(spread.shards))
    return [
        PartsFolded(given.query, given.slice_us, make_parts([part for of_shard in found for part in of_shard[number]]))
        for number, given in enumerate(slices)
    ]
