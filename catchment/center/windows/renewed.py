"""Windows that are computed again, because what was merged of a site is doubted (docs/history.md).

The partials of several sites, once merged, cannot be taken apart again. So every window of a query that is not final
begins anew, from nothing, with what all sites send of a new fragment; what was published of it stays until the new
answer is whole, and is then replaced by it at once.

Invariants: no window mixes what came before and after; an answer that was exact is replaced only by one that is exact,
and any other by none that has fewer records; a window that has fewer of a site than it had before says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from catchment.center.events import Action, Publish
from catchment.center.late.registry import LateRegistry
from catchment.center.query import CenterQuery
from catchment.center.statuses import EXACT
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.open import OpenSlices
from catchment.center.windows.recent import EarlyWindow
from catchment.center.windows.state import FormerWindow, WindowsState
from catchment.timeline import START_OF_TIME_US

FORMER_STANDS = "its former answer stands: not everything could be computed again"  # the reason of a revision
MAX_KEPT = 10_000  # final windows whose former answers stand; beyond, what comes again is registered as too late


class RenewedWindows:
    """What one query had of the windows that it computes again."""

    def __init__(self, state: WindowsState) -> None:
        self._state = state

    def is_pending(self, start_us: int) -> bool:
        """Return whether the former answer of a closed window still stands."""
        former = self._state.renewed.get(start_us)
        return former is not None and former.is_pending

    def is_stale(self, start_us: int) -> bool:
        """Return whether readers still see what was published of a window before it was computed again."""
        former = self._state.renewed.get(start_us)
        return former is not None and former.is_stale

    def were_missing(self, start_us: int, sites: Collection[str]) -> bool:
        """Return whether the former answer of a window is without these sites too, if there are any."""
        former = self._state.renewed[start_us]
        return not sites or (former.known is not None and former.known.missing.keys() >= set(sites))

    def has_other_late(self) -> bool:
        """Return whether late partials wait for a window whose former answer does not stand."""
        return any(not self.is_pending(start_us) for start_us in self._state.late.tables)

    def is_kept(self, start_us: int) -> bool:
        """Return whether the former answer of a window stands for good, and takes nothing more in."""
        former = self._state.renewed.get(start_us)
        return former is not None and former.is_kept

    def lacking(self, start_us: int, counts: Mapping[str, int]) -> dict[str, int]:
        """Return how many records fewer than before a window has of each site that it has fewer of."""
        former = self._state.renewed.get(start_us)
        before = {} if former is None else former.counts
        return {site: count - counts.get(site, 0) for site, count in before.items() if counts.get(site, 0) < count}

    def note_lacking(self, start_us: int, known: ClosedWindow) -> None:
        """Let a window name the sites that it has fewer records of than before."""
        former = self._state.renewed.get(start_us)
        if former is not None:
            lacking = self.lacking(start_us, known.counts)
            known.lost.update({site: count for site, count in lacking.items() if site not in known.missing})
            former.named = tuple(lacking)

    def forget_lacking(self, start_us: int, known: ClosedWindow) -> None:
        """Let a window name no site because it had more records of it before: that is about to be looked at again."""
        former = self._state.renewed.get(start_us)
        for site in () if former is None else former.named:
            known.lost.pop(site, None)

    def keeps_former(self, start_us: int, known: ClosedWindow) -> ClosedWindow | None:
        """Keep the former answer of a window if the new one is not exact and the former was, or has more records.

        Return it then. What comes again for it is not merged: it is in the answer, but for what a site has more of than
        before. One that was not exact also names the sites that the new one lacks.
        """
        former = self._state.renewed[start_us]
        if former.known is None or known.status == EXACT:
            return None
        if former.known.status != EXACT:
            if sum(former.known.counts.values()) <= sum(known.counts.values()):
                return None
            former.known.lost = {**known.lost, **known.missing, **former.known.lost}
        former.is_kept = True
        former.is_stale = False
        self._state.closed[start_us] = former.known
        for site, count in known.counts.items():
            self.count_again(start_us, site, count)
        return former.known

    def repeats(self, start_us: int, sites: Collection[str]) -> bool:
        """Return whether the answer of a window stands and may have what sites send for it now.

        One that is final has none of it where every one of them has sent all again that it has: what follows is new,
        and comes too late. Before that the window counts what is new.
        """
        former = self._state.renewed.get(start_us)
        if former is None or not former.is_kept:
            return False
        if former.known is not None or not sites:
            return True
        return any(former.came.get(site, 0) < former.counts.get(site, 0) for site in sites)

    def count_new(self, start_us: int, site: str, count: int) -> None:
        """Count records that have come too late for a window whose former answer stands."""
        former = self._state.renewed.get(start_us)
        if former is not None and former.is_kept:
            former.came[site] = former.came.get(site, 0) + count

    def count_again(self, start_us: int, site: str, count: int) -> int:
        """Count records that came again for a window whose former answer stands; return how many it does not have."""
        former = self._state.renewed[start_us]
        before = former.came.get(site, 0)
        former.came[site] = before + count
        had = (former.counts if former.known is None else former.known.counts).get(site, 0)
        more = max(before + count - had, 0) - max(before - had, 0)
        if former.known is not None:
            former.known.unmerged += more
            former.known.are_left_out |= more > 0
        return more

    def follow(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield what is published; the first new rows of a window take the place of all that were published before."""
        for action in actions:
            former = self._state.renewed.get(action.window.start_us) if isinstance(action, Publish) else None
            if former is not None and former.is_stale and isinstance(action, Publish) and action.has_answer:
                former.is_stale = False
                action = replace(action, replaces=True)
            yield action

    def forget(self, start_us: int) -> None:
        """Stop following a window, which is final.

        Where a former answer stands, that is remembered: what comes again for it later has not come too late.
        """
        if not self.is_kept(start_us):
            self._state.renewed.pop(start_us, None)
            return
        former = self._state.renewed[start_us]
        if former.known is not None and former.known.status == EXACT:
            former.counts = dict(former.known.counts)
        former.known = None
        kept = [start for start, former in self._state.renewed.items() if former.is_kept and former.known is None]
        for oldest_us in sorted(kept)[: len(kept) - MAX_KEPT]:
            del self._state.renewed[oldest_us]

    def forget_empty(self, until_us: int) -> None:
        """Stop following windows before an instant that were not closed again: nobody has records of them any more."""
        for start_us in [s for s in self._state.renewed if s < until_us and s not in self._state.closed]:
            if not self.is_kept(start_us):
                self.forget(start_us)
                self._state.early.pop(start_us, None)


def first_window_us(query: CenterQuery, final_us: int, begin_us: int) -> int:
    """Return the start of the first window that is not final, of those from an instant on."""
    if final_us <= START_OF_TIME_US:
        return begin_us
    spec = query.window
    passed = (final_us - spec.size_us - spec.offset_us) // spec.slide_us
    return max(begin_us, (passed + 1) * spec.slide_us + spec.offset_us)


def renew_windows(
    query: CenterQuery, state: WindowsState, from_us: int, sites: Sequence[str], now_us: int
) -> WindowsState:
    """Return the state in which every window from an instant on begins anew; what was published stays for now."""
    open_slices = OpenSlices(query, state)
    open_slices.from_us = from_us
    renewed: dict[int, FormerWindow] = {}
    early = {start_us: EarlyWindow(known.revision, 0) for start_us, known in state.early.items()}
    # A window that was renewed before may have nothing yet of what is computed again, and is open all the same.
    not_closed = {*(window.start_us for window in open_slices.windows()), *state.early, *state.renewed}
    for start_us in sorted(start for start in not_closed if start >= from_us and start not in state.closed):
        counts = open_slices.counts(query.window_at(start_us))
        renewed[start_us] = _former(state, start_us, counts, None, is_published=start_us in state.early)
    closed: dict[int, ClosedWindow] = {}
    for start_us, known in state.closed.items():
        if not known.is_published:
            renewed[start_us] = _former(state, start_us, known.counts, None, is_published=known.revision > 0)
            if known.revision:
                early[start_us] = EarlyWindow(known.revision, 0)
            continue
        renewed[start_us] = _former(state, start_us, known.counts, known, is_published=True)
        expected = renewed[start_us].counts
        closed[start_us] = ClosedWindow(
            known.revision,
            {},
            {site: expected.get(site) for site in sites},
            repaired=query.repair is not None,
            closed_at_us=now_us,
        )
    return WindowsState(
        closed=closed,
        closed_us=state.closed_us,
        final_us=state.final_us,
        usual=state.usual,
        late=LateRegistry(),
        late_records=state.late_records,
        unmerged_records=state.unmerged_records,
        unmerged_of_sites=state.unmerged_of_sites,
        recent=state.recent,
        early=early,
        early_at_us=state.early_at_us,
        unfinished=state.unfinished,
        renewed=renewed,
    )


def _former(
    state: WindowsState, start_us: int, counts: Mapping[str, int], known: ClosedWindow | None, is_published: bool
) -> FormerWindow:
    """Return what a window had; where it was renewed before and not replaced since, what it had before that too."""
    before = state.renewed.get(start_us)
    if before is None:
        return FormerWindow(dict(counts), known, is_published)
    most = {s: max(counts.get(s, 0), before.counts.get(s, 0)) for s in {*counts, *before.counts}}
    if before.is_pending:
        known = before.known
    return FormerWindow(most, known, is_published or before.is_stale)
