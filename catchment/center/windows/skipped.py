"""What the windows of one query lack because a fragment is suspended at a site: records that were read and not taken.

They count as soon as the statement lands, and a window that lacks them is `suspended`, not exact. They stay missing
after the fragment was resumed, until the site has sent them from its history; what it could not send stays missing. A
window that is forgotten, because it is final, forgets them too.
"""

from __future__ import annotations

from collections.abc import Iterable

from catchment.center.roster import lost_sites
from catchment.center.windows.open import OpenSlices
from catchment.center.windows.state import WindowsState
from catchment.wire.messages import Skipped


class SkippedRecords:
    """The skipped records of one query, per window and site."""

    def __init__(self, state: WindowsState, open_slices: OpenSlices) -> None:
        self._state = state
        self._open = open_slices
        self._changed: set[int] = set()

    def add(self, site: str, fact: Skipped) -> None:
        """Add what a site has skipped; what is of final windows changes nothing any more."""
        for slice_us, count in fact.lacking:
            for window in self._open.windows_of(slice_us):
                if window.end_us > self._state.final_us:
                    counts = self._state.skipped.setdefault(window.start_us, {})
                    counts[site] = counts.get(site, 0) + count
                    self._changed.add(window.start_us)

    def settle(self, site: str, lost: Iterable[tuple[int, int]]) -> None:
        """Lack nothing more of a site, which has sent what it skipped, but in windows with event times that are lost.

        Those keep what they lacked.
        """
        still = [(site, low_us, high_us) for low_us, high_us in lost]
        for start_us, counts in list(self._state.skipped.items()):
            if site in counts and not lost_sites(still, self._open.query.window_at(start_us)):
                del counts[site]
                self._changed.add(start_us)
                if not counts:
                    del self._state.skipped[start_us]

    def take_changed(self) -> set[int]:
        """Return the windows that have come to lack more, or less, since this was last asked."""
        changed = self._changed
        self._changed = set()
        return changed

    def of(self, start_us: int) -> dict[str, int]:
        """Return how many records of a window each site has skipped."""
        return dict(self._state.skipped.get(start_us, {}))

    def forget(self, start_us: int) -> None:
        """Stop following a window."""
        self._state.skipped.pop(start_us, None)
