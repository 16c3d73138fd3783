"""The windows of one query at the center: what is open, what closes now, what late partials change.

See `catchment.center.core` for the invariants. A slice is kept while a window that contains it is open. A closed
window leaves only a small record here; its rows are recalled from the result table when a repair touches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates import partials
from catchment.center.events import EARLY, FINAL, Action, CenterQuery, Expired, Publish
from catchment.center.late import WINDOW_COLUMN, LateRegistry, RepairRule
from catchment.center.windows.closed import ClosedWindow, SitesSay
from catchment.center.windows.early import EarlyWindow, Recent
from catchment.center.windows.outstanding import Outstanding
from catchment.quality.contract import watched_quantities
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Window


class QueryWindows:
    """Open slices and published windows of one query."""

    def __init__(self, query: CenterQuery) -> None:
        self.query = query
        self.measured = watched_quantities(query.fragment.aggregates)
        self.slices: dict[int, list[pa.Table]] = {}
        self.records: dict[int, dict[str, int]] = {}
        self.closed: dict[int, ClosedWindow] = {}
        self.closed_us = START_OF_TIME_US  # every window that ends here or before is closed
        self.final_us = START_OF_TIME_US  # every window that ends here or before is final
        self.first_passed_us: dict[int, int] = {}  # window start -> when the first site passed its end
        self.usual: dict[str, int] = {}  # site -> its records in the newest complete window
        self.outstanding = Outstanding(query.window, len(query.fragment.keys) == 1)
        self.late = LateRegistry(query.repair or RepairRule())
        self.recent = Recent(self.measured, query.fragment.aggregates)
        self.early: dict[int, EarlyWindow] = {}
        self.early_at_us = START_OF_TIME_US
        self.late_records = 0  # that came to a closed window
        self.unmerged_records = 0  # of these, registered for good
        self._expired: dict[int, list[pa.Table]] = {}

    # --- taking partials in -------------------------------------------------------------------------------

    def merge(self, table: pa.Table, records: tuple[tuple[str, int, int], ...], now_us: int) -> None:
        """Merge partials into every open window that contains their slice; register them for every closed one."""
        for slice_us, rows in _by_slice(table):
            if any(w.end_us > self.closed_us for w in self.query.window.containing(slice_us)):
                self.slices.setdefault(slice_us, []).append(rows)
            for window in self.query.window.containing(slice_us):
                if window.end_us <= self.closed_us:
                    self._register(window, rows.drop_columns([SLICE_COLUMN]), slice_us, now_us)
        for site, slice_us, count in records:
            counts = self.records.setdefault(slice_us, {})
            counts[site] = counts.get(site, 0) + count
            self._count_late(site, slice_us, count)

    def _register(self, window: Window, rows: pa.Table, slice_us: int, now_us: int) -> None:
        if self._is_repaired(window):
            self.late.register(window.start_us, rows, slice_us, now_us)
        else:
            self._expired.setdefault(window.start_us, []).append(rows)

    def _is_repaired(self, window: Window) -> bool:
        """Whether what comes late to a closed window is merged in the end."""
        return self.query.repair is not None and window.end_us > self.final_us

    def _count_late(self, site: str, slice_us: int, count: int) -> None:
        late = [w for w in self.query.window.containing(slice_us) if w.end_us <= self.closed_us]
        if not late:
            return
        repaired = [w.start_us for w in late if self._is_repaired(w)]
        self.late_records += count
        self.unmerged_records += 0 if repaired else count
        if repaired:
            self.late.count(repaired, count)
        for window in late:
            known = self.closed.get(window.start_us)
            if known is not None:
                self._count_into(known, site, count, window.start_us in repaired)

    def _count_into(self, known: ClosedWindow, site: str, count: int, merged: bool) -> None:
        if not merged:
            known.unmerged += count
            return
        known.counts[site] = known.counts.get(site, 0) + count
        expected = known.missing.get(site)
        if expected is not None:
            known.missing[site] = max(expected - count, 0)

    # --- publishing ---------------------------------------------------------------------------------------

    def settle(self, say: SitesSay, now_us: int) -> Iterator[Action]:
        """Publish all that can be without a repair: windows that close now, better statuses, early answers."""
        yield from self._expire(now_us)
        yield from self._close(say, now_us)
        yield from self._complete(say, now_us)
        yield from self._finalize(say, now_us)
        yield from self._emit_early(now_us)

    def due(self, say: SitesSay, now_us: int, everything: bool = False) -> dict[str, tuple[int, ...]]:
        """The windows whose repair is due, by the reason why."""
        reason = "no more will come" if everything and self.late else self.late.due(now_us)
        if reason is not None:
            return {reason: self.late.starts_us}
        whole = tuple(s for s in self.late.starts_us if self._is_whole(s, say))
        return {"every site has passed its end": whole} if whole else {}

    def _is_whole(self, start_us: int, say: SitesSay) -> bool:
        """Whether a repair makes the window what it was not before: exact; or must come before it is final."""
        end, known = self._window(start_us).end_us, self.closed.get(start_us)
        least = min(say.marks.values())
        if least == END_OF_TIME_US or end <= least - self.query.repair_horizon_us:
            return True
        lacking = known is not None and bool(known.missing or known.awaited or known.owed)
        return (
            lacking
            and not self.outstanding.lacks_records(start_us)
            and all(say.passed(s, end) and say.is_over(s, end) for s in say.marks)
        )

    def wanted(self, starts_us: Sequence[int]) -> pa.Table:
        """(window_start_us, keys...) of the published rows that a repair of these windows changes."""
        return self.late.wanted(starts_us, self._keys)

    def repair(
        self, starts_us: Sequence[int], states: pa.Table, reason: str, say: SitesSay, now_us: int
    ) -> Iterator[Action]:
        """Merge what is registered for these windows into their published states."""
        for start in starts_us:
            window, late = self._window(start), self.late.take(start)
            changed = self._combine([late.partials])
            before = states.filter(pc.equal(states[WINDOW_COLUMN], start)).drop_columns([WINDOW_COLUMN])
            rows = self._combine([before.cast(self._row_schema), changed])
            known = self.closed.setdefault(start, ClosedWindow(0, {}))
            self._assess(window, known, say)
            number = changed.num_rows
            told = (
                f"late: {late.records} records in {number} {'row' if number == 1 else 'rows'}; {reason}"
                + self._shed_reason(window)
            )
            yield self._revise(window, known, told, rows, changed, now_us)

    def _revise(
        self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, changed: pa.Table, now_us: int
    ) -> Publish:
        """Publish recalled rows, into which what has changed is merged."""
        assert rows.num_rows >= changed.num_rows, "a repair publishes every row that late partials touch"
        return self._publish(window, known, reason, rows, now_us)

    def _expire(self, now_us: int) -> Iterator[Action]:
        for start, tables in sorted(self._expired.items()):
            yield Expired(self.query.name, self._window(start), pa.concat_tables(tables), now_us)
            known = self.closed.get(start)
            if known is not None:
                yield self._status(self._window(start), known, "late records were registered, not merged", now_us)
        self._expired.clear()

    def _close(self, say: SitesSay, now_us: int) -> Iterator[Action]:
        for window in self._open_windows():
            missing = [s for s, mark in say.marks.items() if mark < window.end_us]
            if missing and not self._waited_enough(window, say.marks, now_us):
                return
            counts, before = self._counts(window), self.early.pop(window.start_us, None)
            lacking = {s: self._lacking(s, counts) for s in missing}
            known = ClosedWindow(
                before.revision if before else 0, counts, lacking, repaired=self.query.repair is not None
            )
            self._assess(window, known, say)
            if not missing:
                self.usual = counts
            self.closed[window.start_us] = known
            rows = self._rows(window)
            if self.query.early_us is not None:
                self.recent.note(sum(counts.values()), rows)
            self.closed_us = max(self.closed_us, window.end_us)
            self._forget(window)
            reason = self._why_closed(window, known, say) + self._shed_reason(window)
            yield self._publish(window, known, reason, rows, now_us)

    def _why_closed(self, window: Window, known: ClosedWindow, say: SitesSay) -> str:
        if known.missing:
            return f"closed without {', '.join(known.missing)}"
        told = {c.reason for s in known.awaited if (c := say.closings.get(s, {}).get(window.end_us))}
        if not told:
            return "closed: every site has passed its end"
        return f"closed under its contract ({', '.join(sorted(told))})"

    def _complete(self, say: SitesSay, now_us: int) -> Iterator[Action]:
        """Closed windows that a missing site has passed, or for which the last of what was awaited or shed is in."""
        for start, known in self.closed.items():
            if (known.missing or known.awaited or known.owed) and start not in self.late:
                window = self._window(start)
                if self._assess(window, known, say):
                    reason = (
                        "every site has passed its end" if not known.missing else "a missing site has passed its end"
                    )
                    yield self._status(window, known, reason, now_us)

    def _finalize(self, say: SitesSay, now_us: int) -> Iterator[Action]:
        horizon_us = min(say.marks.values()) - self.query.repair_horizon_us
        owed_us = self.outstanding.earliest_awaited_us()  # what was shed is repaired however old it has grown
        self.final_us = max(self.final_us, horizon_us if owed_us is None else min(horizon_us, owed_us))
        for start in [s for s, k in self.closed.items() if self._is_final(s, k)]:
            known, owed = self.closed.pop(start), self.outstanding.lacks_records(start)
            self.outstanding.forget(start)
            if owed:
                continue
            if known.awaited:  # what the horizon has passed is not waited for any more
                known.awaited, known.errors, known.sources = (), (), ()
            whole = (
                "the repair horizon has passed"
                if not known.unmerged
                else "the horizon has passed; late records are out"
            )
            yield self._status(self._window(start), known, whole, now_us, None if known.unmerged else FINAL)
        for slice_us in [
            s for s in self.records if s not in self.slices and s < self.final_us - self.query.window.size_us
        ]:
            del self.records[slice_us]

    def _is_final(self, start_us: int, known: ClosedWindow) -> bool:
        return self._window(start_us).end_us <= self.final_us and not known.missing and start_us not in self.late

    def _emit_early(self, now_us: int) -> Iterator[Action]:
        """What has changed in open windows since it was last told."""
        if not self._early_due(now_us):
            return
        self.early_at_us = now_us
        for window in self._open_windows():
            records = sum(self._counts(window).values())
            known = self.early.setdefault(window.start_us, EarlyWindow(0, 0))
            if records == known.records:
                continue
            known.records, known.revision = records, known.revision + 1
            rows = self._rows(window)
            errors, reason = self.recent.errors(records, rows), "early: the window is still open"
            yield Publish(self.query.name, window, known.revision, EARLY, self.recent.coverage(records), (), reason,
                          self._answer(rows), now_us, self.outstanding.lowest_rate(window.start_us), errors,
                          group_rates=self.outstanding.group_rates(window.start_us))  # fmt: skip

    def _answer(self, rows: pa.Table) -> pa.Table:
        """What is published of a window's rows."""
        return rows

    def _early_due(self, now_us: int) -> bool:
        return self.query.early_us is not None and now_us - self.early_at_us >= self.query.early_us

    def _assess(self, window: Window, known: ClosedWindow, say: SitesSay) -> bool:
        """Take in what is known by now; tells whether anything that is published of the window changed."""
        before = (known.status, tuple(known.missing))
        known.owed, known.shed = (
            self.outstanding.lacks_records(window.start_us),
            self.outstanding.lacking(window.start_us),
        )
        known.assess(window.end_us, self.measured, say, self.query.contract is not None)
        return before != (known.status, tuple(known.missing))

    def _shed_reason(self, window: Window) -> str:
        if not self.outstanding.lacks_records(window.start_us):
            return ""
        sites, rate = ", ".join(self.outstanding.sites(window.start_us)), self.outstanding.lowest_rate(window.start_us)
        return f"; load was shed at {sites}, down to a share of {rate:.3g}"

    def _publish(self, window: Window, known: ClosedWindow, reason: str, rows: pa.Table, now_us: int) -> Publish:
        known.revision += 1
        return Publish(
            self.query.name,
            window,
            known.revision,
            known.status,
            known.coverage,
            tuple(sorted(known.missing)),
            reason,
            rows,
            now_us,
            self.outstanding.lowest_rate(window.start_us),
            known.errors,
            known.sources,
            group_rates=self.outstanding.group_rates(window.start_us),
        )

    def _status(
        self, window: Window, known: ClosedWindow, reason: str, now_us: int, status: str | None = None
    ) -> Publish:
        empty = self._answer(self._row_schema.empty_table())
        return Publish(self.query.name, window, known.revision, status or known.status, known.coverage,
                       tuple(sorted(known.missing)), reason, empty, now_us,
                       self.outstanding.lowest_rate(window.start_us), known.errors, known.sources)  # fmt: skip

    # --- helpers ------------------------------------------------------------------------------------------

    def _open_windows(self) -> list[Window]:
        """Windows with open slices, in the order they end."""
        found = {w for s in self.slices for w in self.query.window.containing(s) if w.end_us > self.closed_us}
        return sorted(found, key=lambda w: w.end_us)

    def is_due(self, marks: Mapping[str, int], now_us: int) -> bool:
        """Whether early answers are due, or the next window has waited for its missing sites as long as it may."""
        window = next(iter(self._open_windows()), None)
        if window is not None and self._early_due(now_us) and self._has_news():
            return True
        if self.query.freshness_us is None or window is None or max(marks.values()) < window.end_us:
            return False
        since = self.first_passed_us.get(window.start_us)
        return since is None or now_us - since >= self.query.freshness_us

    def _has_news(self) -> bool:
        """Whether an open window has changed since it was last published early."""
        told = {w.start_us: self.early.get(w.start_us, EarlyWindow(0, 0)).records for w in self._open_windows()}
        return any(sum(self._counts(self._window(start)).values()) != records for start, records in told.items())

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

    def late_table(self) -> pa.Table:
        """Every registered late partial, with its window."""
        return self.late.to_table(self._row_schema)

    def to_dict(self) -> dict[str, Any]:
        assert not self._expired, "a snapshot is taken between batches"
        return {
            "records": [[s, c] for s, c in self.records.items()],
            "closed": [[s, k.to_list()] for s, k in self.closed.items()],
            "outstanding": self.outstanding.batches,
            "late": self.late.to_dict(),
            "recent": self.recent.to_list(),
            "early": [[s, e.revision, e.records] for s, e in self.early.items()],
            "counters": [self.early_at_us, self.late_records, self.unmerged_records],
            "closed_us": self.closed_us,
            "final_us": self.final_us,
            "first_passed_us": [list(item) for item in self.first_passed_us.items()],
            "usual": self.usual,
        }

    def from_dict(self, state: dict[str, Any], table: pa.Table, late: pa.Table) -> None:
        self.slices = {s: [rows] for s, rows in _by_slice(table)}
        self.records = {s: dict(c) for s, c in state["records"]}
        self.closed = {s: ClosedWindow.from_list(known) for s, known in state["closed"]}
        self.outstanding = replace(self.outstanding, batches=state["outstanding"])
        self.late.from_dict(state["late"], late)
        self.recent.from_list(state["recent"])
        self.early = {s: EarlyWindow(revision, records) for s, revision, records in state["early"]}
        self.early_at_us, self.late_records, self.unmerged_records = state["counters"]
        self.closed_us, self.final_us = state["closed_us"], state["final_us"]
        self.first_passed_us = dict(state["first_passed_us"])
        self.usual = dict(state["usual"])

    def validate(self) -> None:
        for slice_us in self.slices:
            ends = [w.end_us for w in self.query.window.containing(slice_us)]
            assert max(ends) > self.closed_us, f"slice {slice_us} is kept although all its windows are closed"
        for start, known in self.closed.items():
            assert known.revision >= 1, f"window {start} is closed without a revision"
            assert 0.0 <= known.coverage <= 1.0, f"window {start}: {known}"


def _by_slice(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    starts = table[SLICE_COLUMN]
    found = sorted(pc.unique(starts).to_pylist())
    for slice_us in found:
        yield slice_us, table if len(found) == 1 else table.filter(pc.equal(starts, slice_us))
