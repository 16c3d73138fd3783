"""Writing results: what was published, every revision of it, as Delta tables that any engine reads.

Two tables per query. `results/<query>`: one row per (window, key, revision), only the rows that a revision changed,
with the aggregate state that late partials are merged into. `windows/<query>`: one row per published revision or status
of a window, with its reason. A third, `late/<query>`, registers partials that are not merged: they came after the
repair horizon, or the query asks for no repair.

Every append carries the number of the enactment it belongs to, so that enacting again writes nothing
(`catchment.center.results.store`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.arrays import Floats
from catchment.center.events import Expired, Publish, UnfinishedRevision
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.bounds import DELTA, ColumnLaw, ResultBounds, RowBounds
from catchment.center.results.layout import (
    flatten_states,
    instants,
    late_rows,
    recalled_schema,
    repeat_names,
    retracted_state,
    source_names,
    state_of,
    window_rows,
    without_retracted,
)
from catchment.center.results.newest_rows import newest_revisions
from catchment.center.results.recent import RecentRows
from catchment.center.results.store import DeltaStore, TableStore
from catchment.center.shards.parts import FILE_COLUMN, PUBLISHED, Shard, is_parts, select_shard
from catchment.center.shards.resolve import RowResolver
from catchment.center.statuses import EARLY, SUSPENDED
from catchment.errors import AggregateError, CenterError
from catchment.quality.contract import LATE_SHARE
from catchment.query.fragment import Fragment
from catchment.timeline import Window

Finish = Callable[[pa.Table], pa.Table]
_WORD = ("window_start", "revision", "status", "coverage", "missing_sites", "entry", "step")
REVISION_ROWS = "_revision"  # beside what is finished: which of the revisions that are finished together a row is of
OnUnfinished = Callable[[tuple[UnfinishedRevision, ...], str], None]
UNFINISHED = "unfinished"  # the column that says which rows could not be finished


class UnfinishedRowsError(CenterError):
    """The last step of a query fails on a row."""


def _fail_as_before(rows: pa.Table) -> pa.Table:
    raise UnfinishedRowsError(f"none of {rows.num_rows} rows can be finished alone")


@dataclass(frozen=True)
class ResultTables:
    """The tables of one query.

    `finish` turns (window_start, window_end, keys..., aggregates...) into the user's columns and a boolean `retracted`:
    whether HAVING or LIMIT leaves the row out. It raises `UnfinishedRowsError` where that fails on a row; `finish_each`
    then gives null to the columns that fail, and says so in a column `unfinished`.
    """

    folder: Path
    query: str
    fragment: Fragment
    finish: Finish = field(compare=False)
    laws: tuple[ColumnLaw, ...] = ()  # by which law each of the user's columns is bounded
    delta: float = DELTA  # the chance that an answer misses its bound
    late_delta: float = LATE_SHARE * DELTA  # the part of it that is the chance of more being late than is stated
    source_key: str | None = None  # the key that is the source of the records, if one is
    recent: RecentRows = field(default_factory=RecentRows, compare=False)
    store: TableStore | None = field(default=None, compare=False)  # None: Delta tables in the folder
    finish_each: Finish = field(default=_fail_as_before, compare=False)
    publishes_nulls: bool = False  # whether rows that fail are published, with null columns
    is_whole: bool = False  # whether each revision has all rows of its window
    kinds: ClassVar[tuple[str, ...]] = ("results", "windows", "late")

    def publish(
        self, sequence: int, revisions: Sequence[Publish], on_unfinished: OnUnfinished = lambda windows, reason: None
    ) -> None:
        """Append what one enactment publishes; nothing if it was appended before.

        Where it cannot be finished, it is appended without the columns of the view, after `on_unfinished` was called.
        """
        changed = [r for r in revisions if r.rows.num_rows]
        replacing = [r for r in revisions if r.replaces]
        retracted = [table for revision in replacing for table in self._retractions(revision, changed)]
        failed: Counter[Window] = Counter()  # rows per window that could not be finished, while others were
        try:
            if changed or retracted:
                self._append("results", sequence, lambda: self.make_rows(changed, retracted, failed))
        except UnfinishedRowsError as failure:
            on_unfinished(tuple(UnfinishedRevision.of(r) for r in changed if r.status != EARLY), failure.message)
            why = f"its answers could not be finished: {failure.message}"
            revisions = [replace(r, status=SUSPENDED, reason=why, is_finished=False) for r in revisions]
            changed = [r for r in revisions if r.rows.num_rows]
            self._append("results", sequence, lambda: self.make_rows(changed, retracted, failed))
        for revision in replacing:
            self.recent.forget(revision.window.start_us)
        for revision in changed:
            self.recent.add(revision.window.start_us, revision.rows)
        if revisions:
            revisions = [with_note(r, failed[r.window]) for r in revisions]
            bounds = self._bounds.window_bounds(revisions).columns()
            numbers = [r.rows.num_rows for r in revisions]
            self._append("windows", sequence, lambda: window_rows(sequence, revisions, numbers, bounds))

    def register_late(self, sequence: int, expired: Sequence[Expired]) -> None:
        """Register partials that came too late to be merged."""
        if expired:
            self._append("late", sequence, lambda: pa.concat_tables([late_rows(self._with_rows(e)) for e in expired]))

    # --- rows that lie in parts (`catchment.center.shards`) -----------------------------------------------------

    def fetch_rows(
        self, sequence: int, revisions: Sequence[Publish], on_unfinished: OnUnfinished = lambda windows, reason: None
    ) -> tuple[list[Publish], list[Expired]]:
        """Return revisions with their rows, none if they were appended before, and what must be registered as late.

        Late partials with which a sum would not fit are not merged; `on_unfinished` was called then.
        """
        if self._has_published(sequence):
            return [], []
        fetched: list[Publish] = []
        given_up: list[Expired] = []
        for revision in revisions:
            try:
                rows = self.resolver.rows(revision, None, self.read_published)
                fetched.append(replace(revision, rows=rows))
            except AggregateError as error:
                fetched.append(self._give_up(revision, error.message, on_unfinished))
                given_up += late_parts(revision)
        return fetched, given_up

    def _give_up(self, revision: Publish, reason: str, on_unfinished: OnUnfinished) -> Publish:
        """Return a revision without rows: a sum of them does not fit."""
        unfinished = replace(UnfinishedRevision.of(revision), overflows=True)
        on_unfinished(() if revision.status == EARLY else (unfinished,), f"{reason}, over all sites")
        nothing = self.resolver.row_schema.empty_table()
        return replace(revision, rows=nothing, status=SUSPENDED, reason=f"not answered: {reason}", replaces=False)

    def _with_rows(self, expired: Expired) -> Expired:
        return replace(expired, rows=self.resolver.unmerged(expired.rows, None))

    def _has_published(self, sequence: int) -> bool:
        """Return whether an enactment is in the tables: the log of windows comes last."""
        newest = self._store.newest_number("windows", self.query)
        return newest is not None and newest >= sequence

    @cached_property
    def resolver(self) -> RowResolver:
        """What makes the rows of revisions whose rows lie in parts."""
        return RowResolver(self.fragment, self.is_whole)

    def read_published(self, revision: Publish, shard: Shard | None = None) -> pa.Table:
        """Return the newest states (keys..., states...) of a window before a revision; of one shard, or of all."""
        start = pa.array([revision.window.start_us], pa.int64())
        found = self._store.read("results", self.query, ["window_start", "revision", "state"], start)
        return published_before(revision, found, self.fragment, shard)

    def recall_windows(self, starts_us: Sequence[int]) -> pa.Table:
        """Return the newest published states of whole windows: (window_start_us, keys..., states...)."""
        return self.recall_answers(starts_us)

    def recall_answers(self, starts_us: Sequence[int]) -> pa.Table:
        """Return the newest published states of the answers of whole windows."""
        return self._recall("results", self.fragment, pa.table({WINDOW_COLUMN: pa.array(starts_us, pa.int64())}))

    def late_keys(self, start_us: int) -> list[tuple[Any, ...]]:
        """Return the keys of what came too late to be merged into a window, as far as it is registered."""
        found = self._store.read("late", self.query, ["window_start", "state"], pa.array([start_us], pa.int64()))
        if found is None or not found.num_rows:
            return []
        states = partials.one_array(found["state"])
        columns = [pc.struct_field(states, name).to_pylist() for name in self.fragment.key_names]
        return list(zip(*columns, strict=True)) if columns else [()]

    def recall(self, wanted: pa.Table) -> pa.Table:
        """Return the newest published states of (window_start_us, keys...), with these in front."""
        known = self.recent.recall(wanted)
        if known is None:
            return self._recall("results", self.fragment, wanted)
        schema = recalled_schema(self.fragment)
        return known.select(schema.names).cast(schema)

    def read_rows(self, columns: Sequence[str], starts: pa.Array) -> pa.Table | None:
        """Return some columns of every published revision of some windows; None before the first append."""
        return self._store.read("results", self.query, columns, starts)

    def read_log(self, columns: Sequence[str], starts: pa.Array) -> pa.Table | None:
        """Return some columns of the log of some windows; None before the first append."""
        return self._store.read("windows", self.query, columns, starts)

    def newest_word(self, start_us: int) -> dict[str, Any] | None:
        """Return what was last said of a window; None if it was never published."""
        found = self.read_log(_WORD, instants(start_us))
        rows = [] if found is None else found.to_pylist()
        return max(rows, key=lambda row: (row["entry"], row["step"]), default=None)

    def newest_revisions_between(self, first_us: int, end_us: int) -> dict[int, int]:
        """Return the newest revision of each published window that starts between two instants, by its start."""
        starts = self.fragment.windows[0].starts_between(first_us, end_us)
        found = self.read_log(("window_start", "revision"), pa.array(starts, pa.int64()))
        revisions: dict[int, int] = {}
        for row in [] if found is None else found.to_pylist():
            start_us = round(row["window_start"].timestamp() * 1e6)
            revisions[start_us] = max(revisions.get(start_us, 0), row["revision"])
        return revisions

    def compact(self) -> None:
        """Fold many small files into few; readers are not disturbed."""
        for kind in self.kinds:
            self._store.compact(kind, self.query)

    def flush(self) -> None:
        """Make everything that was published durable."""
        for kind in (*self.kinds, "late"):
            self._store.flush(kind, self.query)

    def remove_tables(self, query: str) -> None:
        """Remove the tables of another query, which is gone for good."""
        for kind in (*self.kinds, "late"):
            self._store.remove(kind, query)

    def remove_torn(self, first_number: int) -> list[str]:
        """Remove what a power cut has left half written, before the journal repeats the numbers from the first on."""
        kinds = (*self.kinds, "late")
        return [told for kind in kinds for told in self._store.remove_torn(kind, self.query, first_number)]

    @cached_property
    def _store(self) -> TableStore:
        return self.store or DeltaStore(self.folder)

    @cached_property
    def _bounds(self) -> ResultBounds:
        return ResultBounds(
            self.fragment, self.laws, self.delta, self.late_delta, self.source_key, is_indirect=self.is_indirect
        )

    @property
    def is_indirect(self) -> bool:
        """Whether records are not what its rows count."""
        return bool(self.fragment.explodes)

    def _recall(self, kind: str, fragment: Fragment, wanted: pa.Table) -> pa.Table:
        schema = recalled_schema(fragment)
        starts = pc.unique(wanted[WINDOW_COLUMN])
        found = self._store.read(kind, self.query, ["window_start", "revision", "state"], starts)
        if found is None:
            return schema.empty_table()
        held = without_retracted(newest_revisions(found))
        return partials.select_matching(flatten_states(held), wanted).cast(schema)

    def needs_signs(self, revision: Publish) -> bool:
        """Return whether the bounds of a row depend on the signs of the other rows of a revision."""
        return self._bounds.needs_signs(revision)

    def find_signs(self, revision: Publish) -> dict[str, frozenset[int]]:
        """Return the signs of the rows of a revision in each column that is a sum, by its aggregate."""
        return self._bounds.find_signs(self._lower(revision)[0])

    def _result_rows(self, revisions: Sequence[Publish], failed: Counter[Window]) -> pa.Table:
        """Return the rows of all revisions; finished together, because finishing may be a job of its own."""
        held = [r for r in revisions if not r.is_finished]
        if held:
            finished = [r for r in revisions if r.is_finished]
            unfinished = [self._unfinished_rows(r) for r in held]
            tables = [*([self._result_rows(finished, failed)] if finished else []), *unfinished]
            return pa.concat_tables(tables, promote_options="default")
        lowered = [self._lower(r) for r in revisions]
        # In one piece: of hundreds of small ones fewer rows once came back from Spark, and each would be a task.
        together = pa.concat_tables([table for table, _ in lowered]).combine_chunks()
        numbers = np.repeat(np.arange(len(revisions)), [table.num_rows for table, _ in lowered])
        together = together.append_column(REVISION_ROWS, pa.array(numbers, pa.int64()))
        user = self._finish(together, any(r.leaves_out_failing for r in revisions))
        if user.num_rows != together.num_rows:
            raise CenterError(
                f"{together.num_rows} rows of {self.query!r} were finished, and {user.num_rows} came back"
            )
        start = 0
        tables = []
        for revision, (values, sampled) in zip(revisions, lowered, strict=True):
            mine = user.slice(start, revision.rows.num_rows)
            failed[revision.window] += pc.sum(mine[UNFINISHED]).as_py() or 0
            bounds = self._bounds.row_bounds(revision, values, sampled)
            tables.append(self._rows(revision, mine.drop_columns([UNFINISHED]), bounds))
            start += revision.rows.num_rows
        return pa.concat_tables(tables)

    def make_rows(self, changed: Sequence[Publish], retracted: list[pa.Table], failed: Counter[Window]) -> pa.Table:
        """Return the rows of all revisions, and those that take back what a replacing one does not have any more."""
        rows = [self._result_rows(changed, failed)] if changed else []
        return pa.concat_tables([*rows, *retracted], promote_options="default")

    def _retractions(self, revision: Publish, together: Sequence[Publish]) -> Iterator[pa.Table]:
        """Yield rows that say of everything published before, and not in a revision, that it holds no more.

        Published before is also what is appended together with it.
        """
        recalled = self.recall_answers([revision.window.start_us]).drop_columns([WINDOW_COLUMN])
        yield from self.retractions(revision, recalled, together)

    def retractions(self, revision: Publish, recalled: pa.Table, together: Sequence[Publish]) -> Iterator[pa.Table]:
        """Yield the same, where what was published before has been recalled."""
        keys = list(self.fragment.key_names)
        earlier = [r.rows for r in together if r.window == revision.window and r.revision < revision.revision]
        before = pa.concat_tables([recalled, *(rows.select(recalled.column_names) for rows in earlier)])
        gone = partials.select_others(before, revision.rows, keys)
        n = gone.num_rows
        if n:
            nothing = pa.table({"retracted": pa.repeat(pa.scalar(True), n)})
            bounds = self._bounds.window_bounds([revision] * n)
            yield self._rows(replace(revision, rows=gone), nothing, bounds, retracted_state(gone, self.fragment))

    def _unfinished_rows(self, revision: Publish) -> pa.Table:
        """Return rows with their states and without the columns of the view; nobody reads them."""
        n = revision.rows.num_rows
        nothing = pa.table({"retracted": pa.repeat(pa.scalar(True), n)})
        return self._rows(revision, nothing, self._bounds.window_bounds([revision] * n))

    def _finish(self, rows: pa.Table, leaves_out_failing: bool) -> pa.Table:
        """Return the user's columns, and which rows have failed: they have null columns, or are left out."""
        try:
            user = self.finish(rows)
            return user.append_column(UNFINISHED, pa.repeat(pa.scalar(False), user.num_rows))
        except UnfinishedRowsError:
            if not (leaves_out_failing or self.publishes_nulls):
                raise
        user = self.finish_each(rows)
        if self.publishes_nulls:
            return user
        left_out = pc.or_(user["retracted"], user[UNFINISHED])
        return user.set_column(user.column_names.index("retracted"), "retracted", left_out)

    def _lower(self, revision: Publish) -> tuple[pa.Table, dict[str, Floats]]:
        try:
            lowered = partials.lower(revision.rows, self.fragment.key_names, self.fragment.aggregates)
        except (pa.ArrowInvalid, ArithmeticError, AggregateError) as failure:
            raise UnfinishedRowsError(str(failure)) from failure
        lowered, sampled = self._bounds.scale(revision, lowered)
        n = lowered.num_rows
        lowered = lowered.add_column(0, "window_end", instants(revision.window.end_us, n))
        return lowered.add_column(0, "window_start", instants(revision.window.start_us, n)), sampled

    def _rows(self, revision: Publish, user: pa.Table, bounds: RowBounds, states: pa.Array | None = None) -> pa.Table:
        n = revision.rows.num_rows
        columns = {
            "window_start": instants(revision.window.start_us, n),
            "window_end": instants(revision.window.end_us, n),
            **{c: user[c] for c in user.column_names if c not in ("retracted", "window_start", "window_end")},
            "coverage": self._bounds.row_coverage(revision),
            **bounds.columns(),
            "status": pa.repeat(pa.scalar(revision.status, pa.string()), n),
            "revision": pa.repeat(pa.scalar(revision.revision, pa.int32()), n),
            "published_at": instants(revision.published_us, n),
            "missing_sites": repeat_names(revision.missing_sites, n),
            "missing_sources": repeat_names(source_names(revision), n),
            "retracted": user["retracted"],
            "state": state_of(revision.rows, self.fragment) if states is None else states,
        }
        return pa.table(columns)

    def next_number(self) -> int:
        """Return the number after the newest enactment that is in the tables."""
        done = [self._store.newest_number(kind, self.query) for kind in ("results", "windows", "late")]
        return max((number + 1 for number in done if number is not None), default=0)

    def _append(self, kind: str, sequence: int, make: Callable[[], pa.Table]) -> None:
        self._store.append(kind, self.query, sequence, make)


def with_note(revision: Publish, failed: int) -> Publish:
    """Return a revision whose reason says how many of its rows could not be finished."""
    if not failed:
        return revision
    return replace(revision, reason=f"{revision.reason}; {failed} rows could not be finished")


def published_before(
    revision: Publish, found: pa.Table | None, fragment: Fragment, shard: Shard | None = None
) -> pa.Table:
    """Return the newest states (keys..., states...) of a window before a revision, of what its table holds of it."""
    schema = recalled_schema(fragment)
    if found is None:
        return schema.empty_table().drop_columns([WINDOW_COLUMN])
    earlier = found.filter(pc.less(found["revision"], revision.revision))
    rows = flatten_states(without_retracted(newest_revisions(earlier))).cast(schema).drop_columns([WINDOW_COLUMN])
    return rows if shard is None else select_shard(rows, fragment.key_names, shard)


def late_parts(revision: Publish) -> list[Expired]:
    """Return the parts of a repair that could not be merged with what is published, to be registered as late."""
    if not is_parts(revision.rows) or PUBLISHED not in revision.rows[FILE_COLUMN].to_pylist():
        return []
    late = revision.rows.filter(pc.not_equal(revision.rows[FILE_COLUMN], PUBLISHED))
    return [Expired(revision.query, revision.window, late, revision.published_us)] if late.num_rows else []
