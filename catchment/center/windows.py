"""The windows of one query at the center: what is open, what closes now, what late partials change.

See `catchment.center.core` for the invariants. A slice is kept while a window that contains it is open. A closed
window leaves only a small record here; its rows are recalled from the result table when late partials touch them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment import partials
from catchment.center.debts import Debts
from catchment.center.events import EXACT, FINAL, ON_TIME, Action, CenterQuery, Expired, Publish
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import START_OF_TIME_US, Window

WINDOW_COLUMN = "window_start_us"


@dataclass
class ClosedWindow:
    """What is remembered of a published window until it is final."""

    revision: int
    status: str
    counts: dict[str, int]
    missing: dict[str, int | None] = field(default_factory=dict)  # site -> records expected of it, if known
    shed: int = 0  # about how many records sites have shed of it

    @property
    def coverage(self) -> float:
        """The share of the window's records that are in: counted where known, else by the share of sites."""
        got, lacking = sum(self.counts.values()), self.shed
        if any(e is None for e in self.missing.values()):
            sites = len(self.counts.keys() | self.missing.keys())
            return (sites - len(self.missing)) / sites * (got / (got + lacking) if got else 1.0)
        lacking += sum(e or 0 for e in self.missing.values())
        return got / (got + lacking) if got + lacking else 1.0


class QueryWindows:
    """Open slices and published windows of one query."""

    def __init__(self, query: CenterQuery) -> None:
        self.query = query
        self.slices: dict[int, list[pa.Table]] = {}
        self.records: dict[int, dict[str, int]] = {}
        self.closed: dict[int, ClosedWindow] = {}
        self.closed_us = START_OF_TIME_US  # every window that ends here or before is closed
        self.final_us = START_OF_TIME_US  # every window that ends here or before is final
        self.first_passed_us: dict[int, int] = {}  # window start -> when the first site passed its end
        self.usual: dict[str, int] = {}  # site -> its records in the newest complete window
        self.debts = Debts(query.window)
        self._late: dict[int, list[pa.Table]] = {}
        self._recalled: dict[int, pa.Table] = {}

    # --- taking partials in -------------------------------------------------------------------------------

    def touched(self, table: pa.Table) -> pa.Table:
        """(window_start_us, keys...) of the closed windows that these partials change."""
        parts = [_with_window(rows.select(self._keys), w) for w, rows in self._by_window(table) if self._is_late(w)]
        return pa.concat_tables(parts) if parts else pa.table({WINDOW_COLUMN: pa.array([], pa.int64())})

    def recall(self, states: pa.Table) -> None:
        """Take published states back for the revision that is about to be made."""
        for start in pc.unique(states[WINDOW_COLUMN]).to_pylist():
            chosen = states.filter(pc.equal(states[WINDOW_COLUMN], start))
            self._recalled[start] = chosen.drop_columns([WINDOW_COLUMN]).cast(self._row_schema)

    def merge(self, table: pa.Table, records: tuple[tuple[str, int, int], ...]) -> None:
        """Merge partials into every window, open or closed, that contains their slice."""
        for slice_us, rows in _by_slice(table):
            if any(w.end_us > self.closed_us for w in self.query.window.containing(slice_us)):
                self.slices.setdefault(slice_us, []).append(rows)
        for window, rows in self._by_window(table):
            if window.end_us <= self.closed_us:
                self._late.setdefault(window.start_us, []).append(rows.drop_columns([SLICE_COLUMN]))
        for site, slice_us, count in records:
            counts = self.records.setdefault(slice_us, {})
            counts[site] = counts.get(site, 0) + count
            self._count_late(site, slice_us, count)

    def _count_late(self, site: str, slice_us: int, count: int) -> None:
        for window in self.query.window.containing(slice_us):
            known = self.closed.get(window.start_us)
            if known and window.end_us <= self.closed_us:
                known.counts[site] = known.counts.get(site, 0) + count
                expected = known.missing.get(site)
                if expected is not None:
                    known.missing[site] = max(expected - count, 0)

    def _by_window(self, table: pa.Table) -> Iterator[tuple[Window, pa.Table]]:
        for slice_us, rows in _by_slice(table):
            for window in self.query.window.containing(slice_us):
                yield window, rows

    def _is_late(self, window: Window) -> bool:
        return self.final_us < window.end_us <= self.closed_us

    # --- publishing ---------------------------------------------------------------------------------------

    def settle(self, marks: Mapping[str, int], now_us: int) -> Iterator[Action]:
        """Publish all that can be: revisions of closed windows, windows that close now, and better statuses."""
        yield from self._revise(marks, now_us)
        yield from self._close(marks, now_us)
        yield from self._complete(marks, now_us)
        yield from self._finalize(marks, now_us)

    def _revise(self, marks: Mapping[str, int], now_us: int) -> Iterator[Action]:
        for start, tables in sorted(self._late.items()):
            window = self._window(start)
            if window.end_us <= self.final_us:
                yield Expired(self.query.name, window, pa.concat_tables(tables))
                continue
            late = self._combine(tables)
            rows = self._combine([*([self._recalled[start]] if start in self._recalled else []), late])
            known = self.closed.setdefault(start, ClosedWindow(0, EXACT, {}))
            self._settle_missing(window, known, marks)
            reason = f"late: {late.num_rows} {'row' if late.num_rows == 1 else 'rows'} changed" + self._shed_reason(
                window
            )
            yield self._publish(window, known, reason, rows, now_us)
        self._late.clear()
        self._recalled.clear()

    def _close(self, marks: Mapping[str, int], now_us: int) -> Iterator[Action]:
        for window in self._open_windows():
            missing = [s for s, mark in marks.items() if mark < window.end_us]
            if missing and not self._waited_enough(window, marks, now_us):
                return
            counts = self._counts(window)
            known = ClosedWindow(0, EXACT, counts, {s: self._lacking(s, counts) for s in missing})
            self._settle_missing(window, known, marks)
            if not missing:
                self.usual = counts
            reason = f"closed without {', '.join(missing)}" if missing else "closed: every site has passed its end"
            reason += self._shed_reason(window)
            self.closed[window.start_us] = known
            rows = self._rows(window)
            self.closed_us = max(self.closed_us, window.end_us)
            self._forget(window)
            yield self._publish(window, known, reason, rows, now_us)

    def _complete(self, marks: Mapping[str, int], now_us: int) -> Iterator[Action]:
        """Windows that were published without a site, or a sample of it, and have since got all with nothing to add."""
        for start, known in self.closed.items():
            if known.status == ON_TIME:
                self._settle_missing(self._window(start), known, marks)
                if known.status != ON_TIME:
                    yield self._status(self._window(start), known, "every site has passed its end", now_us)

    def _finalize(self, marks: Mapping[str, int], now_us: int) -> Iterator[Action]:
        horizon_us = min(marks.values()) - self.query.repair_horizon_us
        owed_us = self.debts.earliest_waiting_us()  # what was shed is repaired however old it has grown
        self.final_us = max(self.final_us, horizon_us if owed_us is None else min(horizon_us, owed_us))
        done = [s for s, k in self.closed.items() if self._window(s).end_us <= self.final_us and not k.missing]
        for start in done:
            known = self.closed.pop(start)
            if not self.debts.owes(start):
                known.status = FINAL
                yield self._status(self._window(start), known, "the repair horizon has passed", now_us)
            self.debts.forget(start)
        for slice_us in [
            s for s in self.records if s not in self.slices and s < self.final_us - self.query.window.size_us
        ]:
            del self.records[slice_us]

    def _publish(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        known.revision += 1
        return Publish(self.query.name, window, known.revision, known.status, known.coverage,
                       tuple(sorted(known.missing)), reason, rows, now_us,
                       self.debts.lowest_rate(window.start_us))  # fmt: skip

    def _status(self, window: Window, known: ClosedWindow, reason: str, now_us: int) -> Publish:
        empty = self._row_schema.empty_table()
        return Publish(self.query.name, window, known.revision, known.status, known.coverage,
                       tuple(sorted(known.missing)), reason, empty, now_us,
                       self.debts.lowest_rate(window.start_us))  # fmt: skip

    def _settle_missing(self, window: Window, known: ClosedWindow, marks: Mapping[str, int]) -> None:
        for site in [s for s in known.missing if marks.get(s, START_OF_TIME_US) >= window.end_us]:
            del known.missing[site]
        known.shed = self.debts.lacking(window.start_us)
        known.status = ON_TIME if known.missing or self.debts.owes(window.start_us) else EXACT

    def _shed_reason(self, window: Window) -> str:
        if not self.debts.owes(window.start_us):
            return ""
        sites, rate = ", ".join(self.debts.sites(window.start_us)), self.debts.lowest_rate(window.start_us)
        return f"; load was shed at {sites}, down to a share of {rate:.3g}"

    # --- helpers ------------------------------------------------------------------------------------------

    def _open_windows(self) -> list[Window]:
        """Windows with open slices, in the order they end."""
        found = {w for s in self.slices for w in self.query.window.containing(s) if w.end_us > self.closed_us}
        return sorted(found, key=lambda w: w.end_us)

    def is_due(self, marks: Mapping[str, int], now_us: int) -> bool:
        """Whether the next window to close has waited for its missing sites as long as it may."""
        if self.query.freshness_us is None:
            return False
        window = next(iter(self._open_windows()), None)
        if window is None or max(marks.values()) < window.end_us:
            return False
        since = self.first_passed_us.get(window.start_us)
        return since is None or now_us - since >= self.query.freshness_us

    def _waited_enough(self, window: Window, marks: Mapping[str, int], now_us: int) -> bool:
        if self.query.freshness_us is None or max(marks.values()) < window.end_us:
            return False
        since = self.first_passed_us.setdefault(window.start_us, now_us)
        return now_us - since >= self.query.freshness_us

    def _rows(self, window: Window) -> pa.Table:
        for slice_us in self._slices_in(window):
            self.slices[slice_us] = [self._combine_slice(self.slices[slice_us])]
        return self._combine([t.drop_columns([SLICE_COLUMN]) for s in self._slices_in(window) for t in self.slices[s]])

    def _slices_in(self, window: Window) -> list[int]:
        return sorted(s for s in self.slices if window.start_us <= s < window.end_us)

    def _combine_slice(self, tables: list[pa.Table]) -> pa.Table:
        if len(tables) == 1:
            return tables[0]
        return partials.combine(pa.concat_tables(tables), [SLICE_COLUMN, *self._keys], self.query.fragment.aggregates)

    def _combine(self, tables: list[pa.Table]) -> pa.Table:
        return partials.combine(pa.concat_tables(tables), self._keys, self.query.fragment.aggregates)

    def _counts(self, window: Window) -> dict[str, int]:
        total: dict[str, int] = {}
        for slice_us, counts in self.records.items():
            if window.start_us <= slice_us < window.end_us:
                for site, count in counts.items():
                    total[site] = total.get(site, 0) + count
        return total

    def _lacking(self, site: str, counts: Mapping[str, int]) -> int | None:
        usual = self.usual.get(site)
        return None if usual is None else max(usual - counts.get(site, 0), 0)

    def _forget(self, window: Window) -> None:
        self.first_passed_us.pop(window.start_us, None)
        for slice_us in [s for s in self.slices if s < window.end_us]:
            if all(w.end_us <= self.closed_us for w in self.query.window.containing(slice_us)):
                del self.slices[slice_us]

    def _window(self, start_us: int) -> Window:
        return Window(start_us, start_us + self.query.window.size_us)

    @property
    def _keys(self) -> list[str]:
        return list(self.query.fragment.key_names)

    @property
    def _row_schema(self) -> pa.Schema:
        return pa.schema([f for f in self.query.fragment.schema if f.name != SLICE_COLUMN])

    # --- snapshots ----------------------------------------------------------------------------------------

    def open_table(self) -> pa.Table:
        """Every open partial, as one table."""
        tables = [t for kept in self.slices.values() for t in kept]
        return pa.concat_tables(tables) if tables else self.query.fragment.schema.empty_table()

    def to_dict(self) -> dict[str, Any]:
        assert not self._late, "a snapshot is taken between batches"
        return {
            "records": [[s, c] for s, c in self.records.items()],
            "closed": [[s, k.revision, k.status, k.counts, k.missing] for s, k in self.closed.items()],
            "closed_us": self.closed_us,
            "final_us": self.final_us,
            "first_passed_us": [list(item) for item in self.first_passed_us.items()],
            "usual": self.usual,
            "debts": self.debts.dump(),
        }

    def from_dict(self, state: dict[str, Any], table: pa.Table) -> None:
        self.slices = {s: [rows] for s, rows in _by_slice(table)}
        self.records = {s: dict(c) for s, c in state["records"]}
        self.closed = {s: ClosedWindow(r, status, dict(c), dict(m)) for s, r, status, c, m in state["closed"]}
        self.closed_us, self.final_us = state["closed_us"], state["final_us"]
        self.first_passed_us = dict(state["first_passed_us"])
        self.usual = dict(state["usual"])
        self.debts.load(state.get("debts", ()))

    def validate(self) -> None:
        for slice_us in self.slices:
            ends = [w.end_us for w in self.query.window.containing(slice_us)]
            assert max(ends) > self.closed_us, f"slice {slice_us} is kept although all its windows are closed"
        for start, known in self.closed.items():
            assert known.revision >= 1, f"window {start} is closed without a revision"
            owed = bool(known.missing) or self.debts.owes(start)
            assert (known.status == ON_TIME) == owed or known.status == EXACT, f"window {start}: {known}"


def _by_slice(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    starts = table[SLICE_COLUMN]
    found = sorted(pc.unique(starts).to_pylist())
    for slice_us in found:
        yield slice_us, table if len(found) == 1 else table.filter(pc.equal(starts, slice_us))


def _with_window(rows: pa.Table, window: Window) -> pa.Table:
    return rows.add_column(0, WINDOW_COLUMN, pa.array([window.start_us] * rows.num_rows, pa.int64()))
