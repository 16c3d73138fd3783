"""What tasks make of the revisions of one query: the rows of one shard, merged, lowered, bounded and written.

A task reads the parts of its shard and, for repairs, what is published of their windows, and writes one Parquet file. A
view whose last step is more than a choice of columns gets the lowered values beside the rest: the engine finishes them.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from catchment.center.events import Publish
from catchment.center.results.layout import INSTANT
from catchment.center.results.store import DataFile
from catchment.center.results.write import ResultTables, UnfinishedRowsError, published_before
from catchment.center.shards.parts import Shard
from catchment.errors import AggregateError
from catchment.timeline import Window

LOWERED = "_lowered_{}"  # names the lowered values of a view that is not finished yet
IS_LOWERED = "_is_lowered"  # whether a row has lowered values; one that takes another back has none


@dataclass(frozen=True)
class PublishedFile:
    """A file of a result table, and of which shards its rows are, if it says so."""

    path: str
    shard: Shard | None = None


@dataclass(frozen=True)
class AnswerFindings:
    """What a task has written; or which windows it cannot merge, or why it cannot lower what it has merged."""

    shard: int
    file: DataFile | None = None
    schema: pa.Schema | None = None
    rows: tuple[int, ...] = ()  # per revision
    failed: tuple[tuple[Window, int], ...] = ()  # rows of windows that could not be finished, while others were
    overflows: tuple[tuple[int, str], ...] = ()  # numbers of revisions with a sum that does not fit, and why
    problem: str = ""


@dataclass(frozen=True)
class AnswerOrder:
    """What the tasks of one enactment of a query are told; `tables` has no store in it."""

    tables: ResultTables
    folder: Path
    shards: int
    revisions: tuple[Publish, ...]
    published: tuple[PublishedFile, ...]

    def run(self, shard: int) -> AnswerFindings:
        """Write the rows of one shard."""
        place = Shard(shard, self.shards)
        merged: list[Publish] = []
        overflows: list[tuple[int, str]] = []
        for number, revision in enumerate(self.revisions):
            try:
                rows = self.tables.resolver.rows(revision, place, self._read_published)
                merged.append(replace(revision, rows=rows))
            except AggregateError as error:
                overflows.append((number, error.message))
        if overflows:
            return AnswerFindings(shard, overflows=tuple(overflows))
        failed: Counter[Window] = Counter()
        try:
            table = self._make_rows(merged, place, failed)
        except UnfinishedRowsError as error:
            return AnswerFindings(shard, problem=error.message)
        counts = tuple(revision.rows.num_rows for revision in merged)
        if not table.num_rows:
            return AnswerFindings(shard, rows=counts)
        file = write_data_file(self.folder, table, place)
        return AnswerFindings(shard, file, table.schema, counts, tuple(failed.items()))

    def find_signs(self, shard: int) -> list[dict[str, frozenset[int]]]:
        """Return the signs of the sums of one shard, per revision; none where they do not matter, or are not known."""
        return [self._signs_of(revision, Shard(shard, self.shards)) for revision in self.revisions]

    def _signs_of(self, revision: Publish, shard: Shard) -> dict[str, frozenset[int]]:
        if not self.tables.needs_signs(revision):
            return {}
        try:
            rows = self.tables.resolver.rows(revision, shard, self._read_published)
            return self.tables.find_signs(replace(revision, rows=rows))
        except (AggregateError, UnfinishedRowsError):
            return {}  # the rows themselves say why

    def _make_rows(self, merged: Sequence[Publish], shard: Shard, failed: Counter[Window]) -> pa.Table:
        changed = [revision for revision in merged if revision.rows.num_rows]
        retracted = [
            table
            for revision in merged
            if revision.replaces
            for table in self.tables.retractions(revision, self._read_published(revision, shard), changed)
        ]
        if not changed and not retracted:
            return pa.table({})
        return self.tables.make_rows(changed, retracted, failed)

    def _read_published(self, revision: Publish, shard: Shard | None) -> pa.Table:
        start = pa.scalar(revision.window.start_us, pa.int64()).cast(pa.timestamp("us")).cast(INSTANT)
        mine = [f.path for f in self.published if f.shard is None or shard is None or _may_meet(f.shard, shard)]
        columns = ["window_start", "revision", "state"]
        wanted = pc.field("window_start") == start
        tables = [parquet.read_table(path, columns=columns, filters=wanted) for path in mine]
        found = pa.concat_tables(tables, promote_options="permissive") if tables else None
        return published_before(revision, found, self.tables.fragment, shard)


def _may_meet(written: Shard, wanted: Shard) -> bool:
    """Return whether rows of one shard may be of another: shards of another number are other sets of groups."""
    return written.of != wanted.of or written.number == wanted.number


def keep_lowered(rows: pa.Table) -> pa.Table:
    """Return lowered rows in place of finished ones, under names of their own."""
    named = rows.rename_columns([LOWERED.format(name) for name in rows.column_names])
    every = pa.array([True] * rows.num_rows, pa.bool_())
    none = pa.array([False] * rows.num_rows, pa.bool_())
    return named.append_column(IS_LOWERED, every).append_column("retracted", none)


def write_data_file(folder: Path, rows: pa.Table, shard: Shard | None = None) -> DataFile:
    """Write rows into a new Parquet file of a result table, whose name says of which shard they are."""
    of = "" if shard is None else f"shard-{shard.number}-of-{shard.of}-"
    name = f"{of}{uuid.uuid4().hex}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows, folder / name)
    starts = pc.min_max(rows["window_start"])
    stats = {
        "numRecords": rows.num_rows,
        "minValues": {"window_start": _instant(starts["min"])},
        "maxValues": {"window_start": _instant(starts["max"])},
        "nullCount": {"window_start": 0},
    }
    return DataFile(name, (folder / name).stat().st_size, json.dumps(stats))


def _instant(value: Any) -> str:
    us = value.cast(pa.int64()).as_py()
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shard_in_name(path: str) -> Shard | None:
    """Return of which shard the rows of a file are, by its name; None if it does not say."""
    words = Path(path).name.split("-")
    if words[0] != "shard" or len(words) < 5:
        return None
    return Shard(int(words[1]), int(words[3]))
