"""What must hold of views whose windows are assembled from slices: they are those of the slices that were published.

That the slices are those of all records is checked like any view. Here they are put together key by key, in plain
loops: sessions are cut where a gap is, growing windows and calendar windows have the slices of their period.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import flatten_states, without_retracted
from catchment.center.results.newest_rows import newest_revisions
from catchment.query.assembly import EPOCH, CalendarPeriods, GrowingWindows, Sessions
from catchment.query.plan_nodes import FIRST_INSTANT, LAST_INSTANT
from catchment.testing.verdicts.composed import ComposedCheck, Rows

Part = dict[str, Any]  # what is published of a slice and key: its states, and where it is


class AssembledCheck(ComposedCheck):
    """Checks what one view with assembled windows has published."""

    def _expected(self) -> Rows:
        rows = self._store.rows("results", self._lower)
        if rows is None:
            return {}
        slices = flatten_states(without_retracted(newest_revisions(rows)))
        keys = list(self._plan.fragment.key_names)
        found: Rows = {}
        by_key: dict[tuple[Any, ...], list[Part]] = {}
        for part in slices.to_pylist():
            by_key.setdefault(tuple(part[key] for key in keys), []).append(part)
        for parts in by_key.values():
            ordered = sorted(parts, key=lambda part: int(part[WINDOW_COLUMN]))
            for end_us, members in self._windows(ordered):
                if end_us >= self._from_us:
                    table = pa.Table.from_pylist(members, slices.schema).drop_columns([WINDOW_COLUMN])
                    found |= self._lowered(end_us, partials.combine(table, keys, self._plan.fragment.aggregates))
        return found

    def _status_problems(self) -> Iterator[str]:
        """Yield nothing: rows of a slice may follow from slices that are not in it."""
        return iter(())

    def _windows(self, parts: list[Part]) -> Iterator[tuple[int, list[Part]]]:
        """Yield the slice that each window of a key ends in, and the parts of the window."""
        assembly = self._plan.assembly
        if isinstance(assembly, Sessions):
            yield from _sessions(assembly, parts)
        elif isinstance(assembly, GrowingWindows):
            yield from _growing(assembly, parts)
        else:
            assert isinstance(assembly, CalendarPeriods)
            for end_us in sorted({assembly.last_slice_us(part[WINDOW_COLUMN]) for part in parts}):
                yield end_us, [part for part in parts if assembly.last_slice_us(part[WINDOW_COLUMN]) == end_us]


def _sessions(sessions: Sessions, parts: list[Part]) -> Iterator[tuple[int, list[Part]]]:
    session: list[Part] = []
    for part in parts:
        if session and _first_us(part) - _last_us(session[-1]) >= sessions.gap_us:
            yield _cut(sessions, session)
            session = []
        session.append(part)
    yield _cut(sessions, session)


def _cut(sessions: Sessions, session: list[Part]) -> tuple[int, list[Part]]:
    """Return the slice that a session ends in, and its parts that are not too long before that."""
    end_us = session[-1][WINDOW_COLUMN]
    return end_us, [part for part in session if part[WINDOW_COLUMN] >= end_us - sessions.lookback_us]


def _first_us(part: Part) -> int:
    return _micros(part[f"{FIRST_INSTANT}__min"])


def _last_us(part: Part) -> int:
    return _micros(part[f"{LAST_INSTANT}__max"])


def _micros(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(microseconds=1)


def _growing(growing: GrowingWindows, parts: list[Part]) -> Iterator[tuple[int, list[Part]]]:
    for period_us in sorted({growing.start_us(part[WINDOW_COLUMN]) for part in parts}):
        mine = [part for part in parts if growing.start_us(part[WINDOW_COLUMN]) == period_us]
        for end_us in range(mine[0][WINDOW_COLUMN], period_us + growing.size_us, growing.step_us):
            yield end_us, [part for part in mine if part[WINDOW_COLUMN] <= end_us]
