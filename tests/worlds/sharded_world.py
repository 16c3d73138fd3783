"""A center whose rows lie in shards, beside the plain one of `world.py`: tasks run in this process, on real files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.events import Expired, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.shards.consumer import ShardedCenter, ShardedConsumer
from catchment.center.shards.folder import PartFolder
from catchment.center.shards.housekeeping import PartKeeper
from catchment.center.shards.parts import Shard, is_parts, published_parts, select_shard
from catchment.center.shards.resolve import RowResolver
from catchment.center.shards.runner import InProcess
from catchment.progress.consumer import CAUSE
from catchment.progress.events import Ticked
from tests.worlds.world import Center, Tables


class ShardedTables(Tables):
    """Result tables in memory that fetch the rows of each shard by itself."""

    def __init__(self, fragment: Any, shards: int) -> None:
        super().__init__(fragment)
        self.shards = shards
        self.resolver = RowResolver(fragment, False)

    def enact(self, number: int, actions: Sequence[Any]) -> int:
        if number in self.done:
            return 1
        return super().enact(number, [self._fetch(action) for action in actions])

    def _fetch(self, action: Any) -> Any:
        if isinstance(action, Publish) and is_parts(action.rows):
            places = [Shard(n, self.shards) for n in range(self.shards)]
            rows = [self.resolver.rows(action, place, self._read_published) for place in places]
            return replace(action, rows=pa.concat_tables(rows))
        if isinstance(action, Expired) and is_parts(action.rows):
            return replace(action, rows=self.resolver.unmerged(action.rows, None))
        return action

    def _read_published(self, revision: Publish, shard: Shard | None) -> pa.Table:
        assert shard is not None
        known = self.latest()
        rows = [row for (start_us, _), row in known.items() if start_us == revision.window.start_us]
        table = pa.Table.from_pylist(rows, self.resolver.row_schema)
        return select_shard(table, self.fragment.key_names, shard)

    def recall(self, wanted: pa.Table) -> pa.Table:
        return published_parts(sorted(pc.unique(wanted[WINDOW_COLUMN]).to_pylist()), WINDOW_COLUMN)


class ShardedWorldCenter(Center):
    """The center of one query, in shards."""

    tables: ShardedTables
    shards = 3

    def divide(self, shards: int) -> None:
        """Start again with another number of shards."""
        self.shards = self.tables.shards = shards
        self.crash()

    def open(self) -> None:
        if not isinstance(self.tables, ShardedTables):
            self.tables = ShardedTables(self.query.fragment, self.shards)
        super().open()
        spread = ShardedCenter(self.shards, InProcess(), PartFolder(self.folder / "parts"))
        self.keeper = PartKeeper(self.core, spread)
        plain = self.consumer
        self.consumer = ShardedConsumer(
            self.inbox, self.host, plain.merge, plain.find_span, lambda: 0.0, plain.find_alike, spread
        )
        self.consumer.recover()
        self.host.flush = lambda: self.keeper.note_snapshot(self.consumer.position)

    def consume(self, discard: bool = True) -> None:
        run = self.consumer.read({"q": self.query.fragment})
        if run is not None:
            folded = self.keeper.fold_slices(run.end)
            events = [*self._recalled(), *folded, *run.events, Ticked()]
            if discard:
                self.consumer.commit(run, events)
            else:
                self.host.submit(CAUSE, events, batch=run.end)
            self.keeper.remove_unused()
        self.repair()
        self.core.validate()


def told(publish: Publish) -> dict[str, Any]:
    """All that a revision says but its reason, with its rows in one order."""
    names = [name for name in Publish.__dataclass_fields__ if name not in ("reason", "rows")]
    rows = publish.rows.sort_by([(name, "ascending") for name in publish.rows.column_names])
    return {**{name: getattr(publish, name) for name in names}, "rows": rows.to_pylist()}
