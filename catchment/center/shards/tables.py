"""The result tables of a query whose rows lie in shards: tasks write them, and the driver only commits their files.

What is small is fetched and published by the driver, as in a plain center: a job would take longer.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from catchment.center.events import Expired, Publish, UnfinishedRevision
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import instants, window_rows, without_retracted
from catchment.center.results.store import DataFile, DeltaStore
from catchment.center.results.write import (
    Finish,
    OnUnfinished,
    ResultTables,
    UnfinishedRowsError,
    late_parts,
    with_note,
)
from catchment.center.shards.answers import AnswerFindings, AnswerOrder, PublishedFile, keep_lowered, shard_in_name
from catchment.center.shards.consumer import ShardedCenter
from catchment.center.shards.parts import FILE_COLUMN, PUBLISHED, count_rows, is_parts, published_parts
from catchment.center.statuses import EARLY, SUSPENDED
from catchment.storage.files import make_folder
from catchment.timeline import Window

SMALL_ROWS = 20_000  # revisions of fewer rows of partials are made by the driver


@dataclass(frozen=True)
class FinishedFiles:
    """The files of a result table, their columns, and how many rows of each window could not be finished."""

    files: tuple[DataFile, ...]
    schema: pa.Schema
    failed: Counter[Window]


class FinishFiles(Protocol):
    """Computes the columns of a view in files of a folder with lowered values, and writes others into another folder.

    With `each` that is done row by row, as far as it can be; `keeps_nulls`: rows that fail have null columns then, and
    are left out otherwise.
    """

    def __call__(
        self, given: FinishedFiles, source: Path, target: Path, *, each: bool, keeps_nulls: bool
    ) -> FinishedFiles: ...


@dataclass(frozen=True)
class _Written:
    """What tasks have written for one enactment: the rows of each revision, and files that are not committed yet."""

    rows: list[int]
    finished: FinishedFiles | None


@dataclass(frozen=True, kw_only=True)
class ShardedTables(ResultTables):
    """The tables of one query of a center with shards.

    `rename` finishes rows where that is a choice of columns; else `finish_files` does, in the engine.
    """

    spread: ShardedCenter = field(compare=False)
    rename: Finish | None = field(default=None, compare=False)
    finish_files: FinishFiles | None = field(default=None, compare=False)
    small_rows: int = SMALL_ROWS
    _written: dict[int, _Written] = field(default_factory=dict, compare=False)

    def recall(self, wanted: pa.Table) -> pa.Table:
        """Return parts that stand for what is published of the wanted windows: tasks read it."""
        return self.recall_windows(wanted[WINDOW_COLUMN].unique().to_pylist())

    def recall_windows(self, starts_us: Sequence[int]) -> pa.Table:
        """Return parts that stand for what is published of whole windows."""
        return published_parts(sorted(starts_us), WINDOW_COLUMN)

    def fetch_rows(
        self, sequence: int, revisions: Sequence[Publish], on_unfinished: OnUnfinished = lambda windows, reason: None
    ) -> tuple[list[Publish], list[Expired]]:
        """Let tasks write the rows of large revisions; `publish` commits them."""
        if not revisions or self._is_small(revisions) or self._has_published(sequence):
            return super().fetch_rows(sequence, revisions, on_unfinished)
        if self._delta.has_appended("results", self.query, sequence):  # a crash came before the log of windows
            self._written[sequence] = _Written(self._count_published(revisions), None)
            return list(revisions), []
        with self._scratch() as scratch:
            kept, given_up, found = self._merge(revisions, scratch, on_unfinished)
            try:
                finished = self._finish_all(kept, found, scratch)
            except UnfinishedRowsError as failure:
                kept = self._hold_back(kept, failure, on_unfinished)
                found = self._run(kept, scratch)
                finished = _put_together(found)
        rows = [sum(numbers) for numbers in zip(*(findings.rows for findings in found), strict=True)]
        self._written[sequence] = _Written(rows, finished)
        return kept, given_up

    def publish(
        self, sequence: int, revisions: Sequence[Publish], on_unfinished: OnUnfinished = lambda windows, reason: None
    ) -> None:
        written = self._written.pop(sequence, None)
        if written is None:
            super().publish(sequence, revisions, on_unfinished)
            return
        failed: Counter[Window] = Counter()
        if written.finished is not None and written.finished.files:
            failed = written.finished.failed
            self._delta.add_files("results", self.query, sequence, written.finished.schema, written.finished.files)
        noted = [with_note(revision, failed[revision.window]) for revision in revisions]
        bounds = self._bounds.window_bounds(noted).columns()
        self._append("windows", sequence, lambda: window_rows(sequence, noted, written.rows, bounds))

    # --- tasks --------------------------------------------------------------------------------------------------

    def _is_small(self, revisions: Sequence[Publish]) -> bool:
        """Return whether the driver makes the rows itself: few are to be merged, and few must be read for that."""
        rows = sum(count_rows(revision.rows) for revision in revisions)
        return rows + sum(number for _, number in self._published_files(revisions)) < self.small_rows

    def _published_files(self, revisions: Sequence[Publish]) -> list[tuple[str, int]]:
        """Return the files that have what is published of windows whose rows follow from it, with their rows."""
        starts = [r.window.start_us for r in revisions if r.replaces or _recalls(r)]
        return self._delta.files_with("results", self.query, instants(starts)) if starts else []

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Give a folder for files that are not finished; what a killed process leaves there goes with unused parts."""
        folder = self.spread.folder.path / f"lowered-{uuid.uuid4().hex}"
        make_folder(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _needs_finishing(self, revisions: Sequence[Publish]) -> bool:
        """Return whether the engine computes columns of revisions that tasks have merged."""
        return self.rename is None and any(r.is_finished and r.rows.num_rows for r in revisions)

    def _merge(
        self, revisions: Sequence[Publish], scratch: Path, on_unfinished: OnUnfinished
    ) -> tuple[list[Publish], list[Expired], list[AnswerFindings]]:
        """Let tasks merge revisions; those with a sum that does not fit are given up."""
        kept = list(revisions)
        given_up: list[Expired] = []
        found = self._run(kept, scratch)
        overflows = {number: why for findings in found for number, why in findings.overflows}
        for number, why in overflows.items():
            given_up += late_parts(kept[number])
            kept[number] = self._give_up(kept[number], why, on_unfinished)
        return kept, given_up, self._run(kept, scratch) if overflows else found

    def _run(self, revisions: Sequence[Publish], scratch: Path) -> list[AnswerFindings]:
        tables = ResultTables(
            self.folder,
            self.query,
            self.fragment,
            self.rename or keep_lowered,
            self.laws,
            self.delta,
            self.late_delta,
            self.source_key,
            is_whole=self.is_whole,
        )
        published = tuple(PublishedFile(path, shard_in_name(path)) for path, _ in self._published_files(revisions))
        folder = scratch if self._needs_finishing(revisions) else self._results_folder
        order = AnswerOrder(tables, folder, self.spread.shards, tuple(revisions), published)
        if any(self.needs_signs(revision) for revision in revisions):
            order = replace(order, revisions=tuple(self._with_signs(order)))
        return self.spread.runner.run(partial(AnswerOrder.run, order), range(self.spread.shards))

    def _with_signs(self, order: AnswerOrder) -> list[Publish]:
        """Return revisions that say which sums have both signs, over all shards."""
        found = self.spread.runner.run(partial(AnswerOrder.find_signs, order), range(order.shards))
        told = []
        for number, revision in enumerate(order.revisions):
            signs: dict[str, frozenset[int]] = {}
            for of_shard in found:
                for name, seen in of_shard[number].items():
                    signs[name] = signs.get(name, frozenset()) | seen
            mixed = frozenset(name for name, seen in signs.items() if len(seen) > 1)
            told.append(replace(revision, mixed_signs=mixed))
        return told

    def _finish_all(
        self, revisions: Sequence[Publish], found: Sequence[AnswerFindings], scratch: Path
    ) -> FinishedFiles | None:
        """Return the files with all columns of the view; an `UnfinishedRowsError` if they fail on a row."""
        problem = next((findings.problem for findings in found if findings.problem), "")
        if problem:
            raise UnfinishedRowsError(problem)
        given = _put_together(found)
        if given is None or not self._needs_finishing(revisions):
            return given
        assert self.finish_files is not None, "rows are finished by a choice of columns, or by the engine"
        finish = partial(self.finish_files, given, scratch, self._results_folder, keeps_nulls=self.publishes_nulls)
        try:
            return finish(each=False)
        except UnfinishedRowsError:
            if not (self.publishes_nulls or any(revision.leaves_out_failing for revision in revisions)):
                raise
            return finish(each=True)

    def _hold_back(
        self, revisions: Sequence[Publish], failure: UnfinishedRowsError, on_unfinished: OnUnfinished
    ) -> list[Publish]:
        """Return revisions that are written without the columns of the view."""
        held = [r for r in revisions if r.rows.num_rows and r.status != EARLY]
        on_unfinished(tuple(UnfinishedRevision.of(r) for r in held), failure.message)
        why = f"its answers could not be finished: {failure.message}"
        return [replace(r, status=SUSPENDED, reason=why, is_finished=False) for r in revisions]

    def _count_published(self, revisions: Sequence[Publish]) -> list[int]:
        """Return how many rows each revision has in the result table."""
        starts = pa.array([r.window.start_us for r in revisions], pa.int64())
        found = self.read_rows(["window_start", "revision", "state"], starts)
        held = [] if found is None else without_retracted(found).select(["window_start", "revision"]).to_pylist()
        counts = Counter((row["window_start"], row["revision"]) for row in held)
        begins = instants([r.window.start_us for r in revisions]).to_pylist()
        return [counts[begin, r.revision] if r.rows.num_rows else 0 for begin, r in zip(begins, revisions, strict=True)]

    @property
    def _results_folder(self) -> Path:
        return self._delta.path("results", self.query).resolve()  # tasks run in folders of their own

    @property
    def _delta(self) -> DeltaStore:
        store = self._store
        assert isinstance(store, DeltaStore), "tasks write the files of Delta tables"
        return store


def _recalls(revision: Publish) -> bool:
    return is_parts(revision.rows) and PUBLISHED in revision.rows[FILE_COLUMN].to_pylist()


def _put_together(found: Sequence[AnswerFindings]) -> FinishedFiles | None:
    """Return the files of all shards; None if no shard has rows."""
    files = [findings.file for findings in found if findings.file is not None]
    schemas = [findings.schema for findings in found if findings.schema is not None]
    if not files:
        return None
    failed: Counter[Window] = Counter()
    for findings in found:
        failed.update(dict(findings.failed))
    return FinishedFiles(tuple(files), pa.unify_schemas(schemas, promote_options="permissive"), failed)
