"""Answers of materialized views as records of streams that are born at the cloud.

A stream with `rows = 'exact'` has the rows of a window once: as they are when the window is first exact, or final
without having been exact. What revises the window later is no record. With `rows = 'revisions'` every revision of a row
that was published is a record, and one that takes a row back too, where the stream has a column that says so.

Law: which records follow from the log of a view depends on the log alone, and so does their order. So a place in the
log, kept together with the records up to it, is all that it takes to have each of them once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.results.layout import key_columns
from catchment.center.results.names import newest_name
from catchment.center.results.newest_rows import newest_revisions, open_table
from catchment.center.statuses import EXACT, FINAL
from catchment.feeds.cloud.core import AnswerPlace
from catchment.feeds.language.statements import Declared
from catchment.feeds.language.view_answers import RETRACTED
from catchment.feeds.runs.published import MAX_RECORDS
from catchment.query.sql.feed_statements import ALL_REVISIONS
from catchment.sinks.changes import entries_after, of_windows

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)

MAX_ENTRIES = 256  # of the log of windows, which are read at once
NO_LIFE = ""  # of a view that has published nothing yet
Entry = Mapping[str, Any]  # of the log of windows


@dataclass(frozen=True)
class AnswerBatch:
    """Records that follow from the answers of a view, and the place that is reached with them."""

    place: AnswerPlace
    rows: list[tuple[Any, ...]]


class ViewAnswers:
    """Reads what the views of a project have published, for the streams of their answers.

    `keys` has for each view the columns that show the keys of its rows: of a row that is taken back they are all
    there is. Tables that cannot be read for now are read again when it is asked the next time.
    """

    def __init__(self, state: Path, keys: Mapping[str, Mapping[str, str]]) -> None:
        self._state = state
        self._keys = keys
        self._logs: dict[str, _Log] = {}

    def since(self, stream: Declared, place: AnswerPlace | None) -> Iterator[AnswerBatch]:
        """Yield the records of a stream after a place, in batches of at most `MAX_RECORDS`.

        A stream that has no place yet begins with what is published from now on. One of a view that was replaced
        goes on with the first answers of the new definition.
        """
        from deltalake.exceptions import DeltaError  # a machine that plans, and has no tables, need not have it

        assert stream.view is not None
        try:
            yield from self._since(stream, stream.view, place)
        except (OSError, pa.ArrowException, DeltaError) as failure:
            _log.warning("the answers of %s cannot be read for now: %s", stream.view, failure)

    def _since(self, stream: Declared, view: str, place: AnswerPlace | None) -> Iterator[AnswerBatch]:
        published = newest_name(self._state, view)
        log = self._logs.setdefault(published, _Log(self._state, published, self._keys.get(view, {})))
        if not log.look():
            if place is None:
                yield AnswerBatch(AnswerPlace(NO_LIFE, -1, -1, 0), [])
            return
        if place is None:
            yield AnswerBatch(log.end(), [])
        else:
            yield from log.records_after(stream, place)


class _Log:
    """The log of the windows of one view, and the rows beside it."""

    def __init__(self, state: Path, view: str, keys: Mapping[str, str]) -> None:
        self._keys = keys
        self._windows_path = state / "windows" / view
        self._results_path = state / "results" / view
        self._windows: DeltaTable | None = None
        self._read: dict[str, tuple[int, AnswerPlace]] = {}  # the version of the log that has nothing more for a stream

    def look(self) -> bool:
        """Read what is new in the log; return whether there is one."""
        if self._windows is None:
            self._windows = open_table(self._windows_path)
        else:
            self._windows.update_incremental()
        return self._windows is not None

    @property
    def _table(self) -> DeltaTable:
        assert self._windows is not None
        return self._windows

    def end(self) -> AnswerPlace:
        """Return the place behind everything that is published."""
        entries = entries_after(self._table, None)
        if not entries.num_rows:
            return self._beginning()
        last = entries.slice(entries.num_rows - 1).to_pylist()[0]
        return AnswerPlace(self._life, last["entry"], last["step"], 0)

    @property
    def _life(self) -> str:
        return str(self._table.metadata().id)

    def _beginning(self) -> AnswerPlace:
        return AnswerPlace(self._life, -1, -1, 0)

    def records_after(self, stream: Declared, place: AnswerPlace) -> Iterator[AnswerBatch]:
        if self._read.get(stream.name) == (self._table.version(), place):
            return
        if place.life != self._life:
            place = self._beginning()
        while True:
            entries = entries_after(self._table, (place.entry, place.step)).slice(0, MAX_ENTRIES)
            if not entries.num_rows:
                break
            for batch in self._records_of(stream, place, entries):
                place = batch.place
                yield batch
        self._read[stream.name] = (self._table.version(), place)

    def _records_of(self, stream: Declared, place: AnswerPlace, entries: pa.Table) -> Iterator[AnswerBatch]:
        """Yield the records of some entries; a batch is full, or the last one."""
        touched = pc.unique(entries["window_start"].combine_chunks())
        first = _first_exact(of_windows(self._table, touched).to_pylist())
        results = open_table(self._results_path)
        rows = None if results is None else of_windows(results, touched)
        waiting: list[tuple[Any, ...]] = []
        done = place.rows
        for entry in entries.to_pylist():
            due = [] if rows is None else self._due_rows(stream, entry, first, rows)
            while len(due) - done > MAX_RECORDS - len(waiting):
                more = MAX_RECORDS - len(waiting)
                waiting += due[done : done + more]
                done += more
                yield AnswerBatch(AnswerPlace(place.life, place.entry, place.step, done), waiting)
                waiting = []
            waiting += due[done:]
            done = 0
            place = AnswerPlace(place.life, entry["entry"], entry["step"], 0)
        yield AnswerBatch(place, waiting)

    def _due_rows(
        self, stream: Declared, entry: Entry, first: Mapping[Any, tuple[int, int]], rows: pa.Table
    ) -> list[tuple[Any, ...]]:
        """Return the records that follow from one entry, in an order of their own."""
        start = entry["window_start"]
        if stream.rows == ALL_REVISIONS:
            if not entry["rows_changed"]:
                return []
            found = _of_window(rows, start, pc.equal(rows["revision"], entry["revision"]))
            if RETRACTED not in stream.column_names:
                found = found.filter(pc.invert(found[RETRACTED]))
        else:
            if first.get(start) != (entry["entry"], entry["step"]):
                return []
            found = newest_revisions(_of_window(rows, start, pc.less_equal(rows["revision"], entry["revision"])))
            found = found.filter(pc.invert(found[RETRACTED]))
        said = {"status": entry["status"], "coverage": entry["coverage"]}
        return sorted((_record(stream, row, said) for row in self._with_keys(found)), key=repr)

    def _with_keys(self, rows: pa.Table) -> Iterator[dict[str, Any]]:
        """Yield rows by the names of their columns in lower case; one that is taken back has its keys."""
        if not rows.num_rows:
            return
        found = key_columns(rows)
        keys = {self._keys[name].lower(): found[name].to_pylist() for name in found if name in self._keys}
        for at, row in enumerate(rows.drop_columns(["state"]).to_pylist()):
            shown = {name.lower(): value for name, value in row.items() if value is not None}
            yield {**{name: values[at] for name, values in keys.items()}, **shown}


def _first_exact(log: list[Entry]) -> dict[Any, tuple[int, int]]:
    """Return for each window which entry of the log made it exact, or final, for the first time."""
    found: dict[Any, tuple[int, int]] = {}
    for entry in log:
        if entry["status"] in (EXACT, FINAL):
            at = (entry["entry"], entry["step"])
            found[entry["window_start"]] = min(at, found.get(entry["window_start"], at))
    return found


def _of_window(rows: pa.Table, start: datetime, chosen: pa.ChunkedArray) -> pa.Table:
    at = pa.scalar(start, rows["window_start"].type)
    return rows.filter(pc.and_(pc.equal(rows["window_start"], at), chosen))


def _record(stream: Declared, row: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[Any, ...]:
    whole = {**row, **said}
    return tuple(_value(whole.get(name), kind) for name, kind in stream.columns)


def _value(value: Any, kind: str) -> Any:
    """Return a value of an answer as feeds have it: instants in microseconds, days as texts."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return pa.scalar(value, pa.timestamp("us", tz="UTC")).value
    if isinstance(value, date):
        return value.isoformat()
    return float(value) if kind == "DOUBLE" or isinstance(value, Decimal) else value
