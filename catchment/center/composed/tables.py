"""The result tables of a composed query: its rows are computed from the published rows of the view that it reads.

They are read by revision, so that an enactment which is repeated after a crash computes what it computed before,
whatever the lower table holds by then. A revision has all rows of its window; a row that is there no more is published
once more, retracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.center.events import Compose, Publish
from catchment.center.late.registry import WINDOW_COLUMN
from catchment.center.results.newest_rows import newest_revisions
from catchment.center.results.write import UNFINISHED, OnUnfinished, ResultTables, UnfinishedRowsError
from catchment.center.statuses import EXACT, FINAL, SUSPENDED
from catchment.quality.merge_sites import Lateness
from catchment.query.fragment import SLICE_COLUMN
from catchment.query.plan import QueryPlan
from catchment.query.plan_nodes import LOWER_ROWS
from catchment.timeline import Window

Evaluate = Callable[[pa.Table], pa.Table]  # rows of the lower view -> partials per (slice, keys)


@dataclass(frozen=True)
class ComposedTables(ResultTables):
    """The tables of one composed query; `evaluate` raises `UnfinishedRowsError` where an expression fails on a row."""

    lower: ResultTables | None = None
    lower_columns: tuple[str, ...] = ()  # what is read of the lower view
    evaluate: Evaluate | None = None

    def compose(self, number: int, due: Sequence[Compose], on_unfinished: OnUnfinished) -> None:
        """Publish what one enactment composes; nothing if it was published before."""
        kinds = ("results", "windows") if any(c.has_new_rows for c in due) else ("windows",)
        newest = [self._store.newest_number(kind, self.query) for kind in kinds]
        if due and any(known is None or known < number for known in newest):
            known = [self._find_restated(c) if c.is_restated else c for c in due]
            self.publish(number, self._revisions([c for c in known if c is not None]), on_unfinished)

    def _find_restated(self, compose: Compose) -> Compose | None:
        """Return what is published of a window that was final, by its log and that of the view that it reads.

        None if it was never published.
        """
        assert self.lower is not None
        start_us = compose.window.start_us
        word = self.newest_word(start_us)
        lowers = self.lower.newest_revisions_between(start_us, compose.window.end_us)
        if word is None or not lowers:
            return None
        return replace(
            compose,
            revision=word["revision"] + 1,
            status=word["status"],
            coverage=word["coverage"],
            missing_sites=tuple(word["missing_sites"]),
            lowers=tuple(sorted(lowers.items())),
        )

    def _revisions(self, due: Sequence[Compose]) -> list[Publish]:
        changed = [c for c in due if c.has_new_rows]
        revisions = dict(lower for compose in changed for lower in compose.lowers)
        empty = pa.schema([f for f in self.fragment.schema if f.name != SLICE_COLUMN]).empty_table()
        try:
            slices = self._evaluate(revisions)
        except UnfinishedRowsError as failure:
            why = f"its rows could not be computed: {failure.message}"
            return [self._revision(c, empty, SUSPENDED, why) for c in due]
        before = self._recall_before(changed)
        return [self._revision(c, self._rows_of(c, slices, before) if c.has_new_rows else empty) for c in due]

    def _recall_before(self, due: Sequence[Compose]) -> pa.Table:
        """Return the rows that windows have had so far."""
        return self.recall_windows([c.window.start_us for c in due])

    def _evaluate(self, revisions: Mapping[int, int]) -> pa.Table:
        """Return the partials of the lower rows that count, by slice."""
        assert self.evaluate is not None
        rows = self._lower_rows(revisions)
        if rows is None:
            return self.fragment.schema.empty_table()
        return self.evaluate(rows.drop_columns(["revision", "retracted", "state"]))

    def _lower_rows(self, revisions: Mapping[int, int]) -> pa.Table | None:
        """Return the rows of lower windows up to a revision of each, without those that were retracted."""
        assert self.lower is not None
        starts = pa.array(sorted(revisions), pa.int64())
        wanted = [*dict.fromkeys([*self.lower_columns, "window_start", "window_end"]), "revision", "retracted", "state"]
        found = self.lower.read_rows(wanted, starts)
        if found is None:
            return None
        at_us = found["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
        limits = pa.array([revisions[start] for start in at_us], pa.int32())
        rows = newest_revisions(found.filter(pc.less_equal(found["revision"], limits)))
        rows = rows.filter(pc.invert(rows["retracted"]))
        return rows if rows.num_rows else None

    def _rows_of(self, compose: Compose, slices: pa.Table, before: pa.Table) -> pa.Table:
        """Return the states of a window's rows, and of former rows, which are then made of no lower rows."""
        window = compose.window
        rows = self._window_rows(window, slices)
        old = before.filter(pc.equal(before[WINDOW_COLUMN], window.start_us)).drop_columns([WINDOW_COLUMN])
        gone = partials.select_others(old, rows, list(self.fragment.key_names))
        place = gone.column_names.index(self._count_column)
        field = gone.schema.field(place)
        gone = gone.set_column(place, field, pa.array([0] * gone.num_rows, field.type))
        return pa.concat_tables([rows.select(old.column_names).cast(old.schema), gone])

    def _window_rows(self, window: Window, slices: pa.Table) -> pa.Table:
        """Return the rows of a window, as (keys..., states...)."""
        at = slices[SLICE_COLUMN]
        inside = pc.and_(pc.greater_equal(at, window.start_us), pc.less(at, window.end_us))
        rows = slices.filter(inside).drop_columns([SLICE_COLUMN])
        return (
            partials.combine(rows, list(self.fragment.key_names), self.fragment.aggregates) if rows.num_rows else rows
        )

    @property
    def _count_column(self) -> str:
        """The state that counts the lower rows of a row."""
        (state,) = next(a.states for a in self.fragment.aggregates if a.name == LOWER_ROWS)
        return state.name

    def _revision(self, compose: Compose, rows: pa.Table, status: str | None = None, reason: str = "") -> Publish:
        is_exact = compose.status in (EXACT, FINAL) and status is None
        return Publish(
            query=self.query,
            window=compose.window,
            revision=compose.revision,
            status=status or compose.status,
            coverage=compose.coverage,
            missing_sites=compose.missing_sites,
            reason=reason or compose.reason,
            rows=rows,
            published_us=compose.published_us,
            late=None if is_exact else Lateness(None, 0.0),
        )

    def _finish(self, rows: pa.Table, leaves_out_failing: bool) -> pa.Table:
        """Return the user's columns; rows without lower rows are retracted, and take no part in ORDER BY and LIMIT."""
        is_gone = np.asarray(pc.equal(rows[LOWER_ROWS], 0), dtype=bool)
        if not is_gone.any():
            return super()._finish(rows, leaves_out_failing)
        if is_gone.all():
            user = super()._finish(rows, leaves_out_failing)
            retracted = pa.array([True] * rows.num_rows, pa.bool_())
            return user.set_column(user.column_names.index("retracted"), "retracted", retracted)
        live = super()._finish(rows.filter(pa.array(~is_gone)), leaves_out_failing)
        blank = {f.name: pa.nulls(int(is_gone.sum()), f.type) for f in live.schema}
        blank["retracted"] = pa.array([True] * int(is_gone.sum()), pa.bool_())
        blank[UNFINISHED] = pa.array([False] * int(is_gone.sum()), pa.bool_())
        places = np.concatenate([np.flatnonzero(~is_gone), np.flatnonzero(is_gone)])
        return pa.concat_tables([live, pa.table(blank).cast(live.schema)]).take(pa.array(np.argsort(places)))


@dataclass(frozen=True)
class LowerView:
    """The view that a composed query reads: its plan and its tables."""

    plan: QueryPlan
    tables: ResultTables


MakeTables = Callable[[QueryPlan, LowerView | None], ResultTables]


def make_all_tables(
    plans: Iterable[QueryPlan], make: MakeTables, known: Mapping[str, ResultTables] | None = None
) -> dict[str, ResultTables]:
    """Return the tables of every view; those that are known stay, and a view is made after the one that it reads."""
    by_name = {plan.name: plan for plan in plans}
    by_view = {plan.view: plan for plan in by_name.values()}
    tables: dict[str, ResultTables] = {}

    def put(plan: QueryPlan) -> ResultTables:
        if plan.name not in tables:
            lower = plan.slices or (by_view[plan.lower] if plan.lower is not None else None)
            read = LowerView(lower, put(lower)) if lower is not None else None
            tables[plan.name] = (known or {}).get(plan.name) or make(plan, read)
        return tables[plan.name]

    for plan in by_name.values():
        put(plan)
    return tables
