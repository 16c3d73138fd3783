"""What must hold of a view of a view in a simulated deployment.

At the end its answers are what its definition makes of all rows that the lower view shows by then, each in every window
that contains it; the lower view itself is checked against raw records. And no window of it is called exact while one of
the lower windows in it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from catchment.aggregates import partials
from catchment.center.composed.windows import ComposedState
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.layout import flatten_states, without_retracted
from catchment.center.results.newest_rows import newest_revisions
from catchment.center.statuses import EXACT, FINAL
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import LOWER_ROWS
from catchment.testing.simulated.evaluate import evaluate_rows
from catchment.testing.simulated.tables import MemoryStore
from catchment.timeline import END_OF_TIME_US

Rows = dict[tuple[Any, ...], tuple[Any, ...]]  # (window, keys...) -> values


class ComposedCheck:
    """Checks what one view of a view has published."""

    def __init__(self, store: MemoryStore, plan: QueryPlan, state: ComposedState, has_dead: bool) -> None:
        self._store = store
        self._plan = plan
        self._from_us = state.from_us
        self._lower = state.query.lower
        self._closed_us = END_OF_TIME_US
        if has_dead:
            self._closed_us = state.closed_us  # windows after it still wait for the dead site

    def problems(self) -> Iterator[str]:
        """Yield what is wrong, each with the view and the window."""
        expected = self._expected()
        answered = self._answered()
        for key in sorted(expected.keys() | answered.keys(), key=str):
            waits = key not in answered and self._end_us(key[0]) > self._closed_us
            if expected.get(key) != answered.get(key) and not waits:
                yield f"{self._plan.name}: {key} is {answered.get(key)}, expected {expected.get(key)}"
        yield from self._status_problems()

    def _status_problems(self) -> Iterator[str]:
        for start_us, status in self._statuses(self._plan.name).items():
            inside = {s for at, s in self._statuses(self._lower).items() if start_us <= at < self._end_us(start_us)}
            if status in (EXACT, FINAL) and inside - {EXACT, FINAL}:
                yield f"{self._plan.name}: {start_us} is {status}, and windows of {self._lower} in it are {inside}"

    def _end_us(self, start_us: int) -> int:
        return start_us + self._plan.window.size_us

    def _expected(self) -> Rows:
        rows = self._store.results(self._lower)
        if rows is None or not rows.num_rows:
            return {}
        fragment = self._plan.fragment
        slices = evaluate_rows(fragment, rows)
        found: Rows = {}
        starts = {w.start_us for at in slices[SLICE_COLUMN].to_pylist() for w in self._plan.window.containing(at)}
        for start_us in (s for s in starts if s >= self._from_us):
            mask = [start_us <= at < self._end_us(start_us) for at in slices[SLICE_COLUMN].to_pylist()]
            inside = slices.filter(pa.array(mask)).drop_columns([SLICE_COLUMN])
            found |= self._lowered(start_us, partials.combine(inside, list(fragment.key_names), fragment.aggregates))
        return found

    def _answered(self) -> Rows:
        rows = self._store.rows("results", self._plan.name)
        if rows is None:
            return {}
        states = flatten_states(without_retracted(newest_revisions(rows)))
        found: Rows = {}
        for start_us in set(states[WINDOW_COLUMN].to_pylist()):
            mask = [at == start_us for at in states[WINDOW_COLUMN].to_pylist()]
            found |= self._lowered(start_us, states.filter(pa.array(mask)).drop_columns([WINDOW_COLUMN]))
        return found

    def _lowered(self, start_us: int, states: pa.Table) -> Rows:
        fragment = self._plan.fragment
        lower = partial(partials.lower, keys=list(fragment.key_names), aggregates=fragment.aggregates)
        names = [a.name for a in fragment.aggregates]
        return {
            (start_us, *(row[key] for key in fragment.key_names)): tuple(row[name] for name in names)
            for row in lower(states).to_pylist()
            if row[LOWER_ROWS]
        }

    def _statuses(self, view: str) -> dict[int, str]:
        log = self._store.windows(view)
        if log is None:
            return {}
        starts = log["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        return dict(zip(starts, log["status"].to_pylist(), strict=True))
