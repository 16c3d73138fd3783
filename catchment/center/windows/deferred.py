"""What the windows of one query lack because partials of some groups were deferred: here, or at a relay on their way.

Nothing is sampled: of each deferral it is known which groups it left out, by a share of the places of their keys, and
how many records these have. A row whose groups are below the share of every deferral of its window is complete; any
other may lack so many records. A window that lacks deferred records is not exact, and is not final before they came.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from catchment.center.events import DeferredRows
from catchment.storage.codec import stored
from catchment.timeline import WindowSpec

DeferralName = tuple[str, str, int]  # where partials wait (empty: here), their fragment, and a number


@stored()
@dataclass
class DeferredBatch:
    """What waits of one deferral.

    `keys` are those of the query that groups were deferred by; without any, no row is known to be complete. `site` is a
    site whose partials come by the relay where they wait; it is empty where they wait here.
    """

    share: float
    keys: tuple[str, ...]
    is_counted: bool
    site: str = ""
    lacking: dict[int, int] = field(default_factory=dict)  # window start -> records


@dataclass
class DeferredGroups:
    """What is deferred of one query."""

    window: WindowSpec
    batches: dict[DeferralName, DeferredBatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_window: dict[int, set[DeferralName]] = {}
        for name, batch in self.batches.items():
            for start_us in batch.lacking:
                self._by_window.setdefault(start_us, set()).add(name)

    def add(self, name: DeferralName, batch: DeferredBatch, lacking: Iterable[tuple[int, int]]) -> set[int]:
        """Add a deferral that leaves out so many records per slice; return the windows that now lack some."""
        known = self.batches.get(name, batch)  # a relay may state one deferral in several pieces
        for slice_us, records in lacking:
            for window in self.window.containing(slice_us):
                known.lacking[window.start_us] = known.lacking.get(window.start_us, 0) + records
        if known.lacking:
            self.batches[name] = known
        for start_us in known.lacking:
            self._by_window.setdefault(start_us, set()).add(name)
        return set(known.lacking)

    def earliest_awaited_us(self, away: Collection[str]) -> int | None:
        """Return the start of the earliest window of which something waits, but not behind a site that is away."""
        awaited = (min(b.lacking) for b in self.batches.values() if b.lacking and b.site not in away)
        return min(awaited, default=None)

    def forget(self, start_us: int) -> None:
        """Stop following a window; that something of it is on its way is remembered until it has come."""
        for name in self._by_window.pop(start_us, set()):
            del self.batches[name].lacking[start_us]

    def awaited_fragments(self, sites: Collection[str]) -> set[str]:
        """Return the fragments of which something waits here, or behind one of these sites."""
        return {name[1] for name, batch in self.batches.items() if not batch.site or batch.site in sites}

    def settle(self, name: DeferralName) -> set[int]:
        """Settle a deferral whose partials have come; return the windows that lacked them."""
        batch = self.batches.pop(name, None)
        for start_us in batch.lacking if batch is not None else ():
            self._by_window[start_us].discard(name)
            if not self._by_window[start_us]:
                del self._by_window[start_us]
        return set() if batch is None else set(batch.lacking)

    def __contains__(self, start_us: int) -> bool:
        return start_us in self._by_window

    @property
    def starts_us(self) -> list[int]:
        """The windows that lack something, in order."""
        return sorted(self._by_window)

    def lacking(self, start_us: int) -> int:
        """Return about how many records a window lacks."""
        return sum(self.batches[name].lacking[start_us] for name in self._by_window.get(start_us, ()))

    def places(self, start_us: int) -> tuple[str, ...]:
        """Return the relays where partials of a window wait; an empty name is this center."""
        return tuple(sorted({place for place, _, _ in self._by_window.get(start_us, ())}))

    def rows(self, start_us: int) -> DeferredRows | None:
        """Return which rows of a window may lack records, and how many; None if nothing is deferred of it."""
        if start_us not in self._by_window:
            return None
        batches = [self.batches[name] for name in self._by_window[start_us]]
        shares: dict[tuple[str, ...], float] = {}
        for batch in batches:
            shares[batch.keys] = min(shares.get(batch.keys, 1.0), batch.share)
        records = float(self.lacking(start_us)) if all(b.is_counted for b in batches) else None
        return DeferredRows(tuple(sorted(shares.items())), records)
