"""Rows of a revision whose parts lie in files: read, merged with each other and, in a repair, with what is published.

What is published of a window is read as it was before the revision, so that a revision has the same rows however often
it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.events import Publish
from catchment.center.shards.parts import PUBLISHED, Shard, is_parts, list_parts, read_part, select_shard
from catchment.query.fragment import SLICE_COLUMN, Fragment

# Returns the states (keys..., states...) that were published of a window before a revision; of one shard, or of all.
ReadPublished = Callable[[Publish, Shard | None], pa.Table]


@dataclass(frozen=True)
class RowResolver:
    """Makes the rows of the revisions of one query; `is_whole`: each revision has all rows of its window."""

    fragment: Fragment
    is_whole: bool

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of rows: keys and states."""
        return pa.schema([f for f in self.fragment.schema if f.name != SLICE_COLUMN])

    def rows(self, revision: Publish, shard: Shard | None, read_published: ReadPublished) -> pa.Table:
        """Return the rows of a revision, of one shard or of all. A sum that does not fit is an `AggregateError`."""
        if not is_parts(revision.rows):
            return self.unmerged(revision.rows, shard)
        fresh = self._combine(self.unmerged(revision.rows, shard))
        kinds = {part.file == PUBLISHED for part in list_parts(revision.rows)}
        if True not in kinds:
            return fresh
        is_recalled_whole = self.is_whole or False not in kinds or not self.fragment.keys
        if not fresh.num_rows and not is_recalled_whole:
            return fresh
        published = read_published(revision, shard).select(self.row_schema.names).cast(self.row_schema)
        if not is_recalled_whole:
            published = partials.select_matching(published, fresh.select(list(self.fragment.key_names)))
        return self._combine(pa.concat_tables([published, fresh]))

    def unmerged(self, parts: pa.Table, shard: Shard | None) -> pa.Table:
        """Return the rows of parts as they are, without what is published; a table of rows may stand for itself."""
        keys = self.fragment.key_names
        if not is_parts(parts):
            return parts if shard is None else select_shard(parts, keys, shard)
        found = [read_part(p, shard, keys) for p in list_parts(parts) if p.file != PUBLISHED]
        return pa.concat_tables([self.row_schema.empty_table(), *(rows.cast(self.row_schema) for rows in found)])

    def _combine(self, rows: pa.Table) -> pa.Table:
        return partials.combine(rows, list(self.fragment.key_names), self.fragment.aggregates)
