"""What the windows of one query are owed: records that sites have shed and not repaired yet.

A window that is owed anything is not exact. `Shed` counts as soon as it lands; `Repaired` only when everything that its
site sent before it is in. What a site gave up will never come: such a window is never exact, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from catchment.center.events import GroupLowest
from catchment.timeline import WindowSpec
from catchment.wire.messages import Repaired, Shed

Batch = tuple[str, int]  # site, number


@dataclass
class Owed:
    """What one shed batch owes: its rate, about how many records each window lacks, and whether they are given up. With
    `groups` the rate is that of a row's group, and 1 for groups that are not named."""

    rate: float
    lacking: dict[int, int] = field(default_factory=dict)  # window start -> records
    gave_up: bool = False
    groups: dict[str, float] = field(default_factory=dict)


class Debts:
    """Debts of one query, by window. `by_group`: its rows are the groups that rates may be by."""

    def __init__(self, window: WindowSpec, by_group: bool = False) -> None:
        self._window, self._by_group = window, by_group
        self._owed: dict[Batch, Owed] = {}
        self._by_window: dict[int, set[Batch]] = {}

    def shed(self, site: str, fact: Shed) -> None:
        """A site has taken only a sample of a batch."""
        groups = dict(fact.groups) if self._by_group else {}
        owed = self._owed.setdefault((site, fact.batch), Owed(fact.rate, groups=groups))
        for slice_us, records in fact.lacking:
            for window in self._window.containing(slice_us):
                owed.lacking[window.start_us] = owed.lacking.get(window.start_us, 0) + records
                self._by_window.setdefault(window.start_us, set()).add((site, fact.batch))

    def repaired(self, site: str, fact: Repaired) -> None:
        """A site has sent the rest of a batch, or says that it never will."""
        owed = self._owed.get((site, fact.batch))
        if owed is None:
            return
        owed.gave_up = fact.gave_up
        if not fact.gave_up:
            for start in list(owed.lacking):
                self._drop(start, (site, fact.batch))
            self._owed.pop((site, fact.batch), None)

    def forget(self, window_start_us: int) -> None:
        """A window is no longer followed."""
        for batch in list(self._by_window.get(window_start_us, ())):
            self._drop(window_start_us, batch)

    def owes(self, window_start_us: int) -> bool:
        return window_start_us in self._by_window

    def waits(self, window_start_us: int) -> bool:
        """Whether something that the window is owed may still come."""
        return any(not self._owed[b].gave_up for b in self._by_window.get(window_start_us, ()))

    def lowest_rate(self, window_start_us: int) -> float:
        return min((self._owed[b].rate for b in self._by_window.get(window_start_us, ())), default=1.0)

    def group_rates(self, window_start_us: int) -> GroupLowest | None:
        """The lowest rates by group, where any batch was sampled so."""
        owed = [self._owed[b] for b in self._by_window.get(window_start_us, ())]
        if not any(one.groups for one in owed):
            return None
        others = min((one.rate for one in owed if not one.groups), default=1.0)
        named = {group for one in owed for group in one.groups}
        found = {g: min(others, *(one.groups.get(g, 1.0) for one in owed if one.groups)) for g in sorted(named)}
        return others, tuple(found.items())

    def lacking(self, window_start_us: int) -> int:
        """About how many records the window lacks."""
        return sum(self._owed[b].lacking[window_start_us] for b in self._by_window.get(window_start_us, ()))

    def sites(self, window_start_us: int) -> tuple[str, ...]:
        return tuple(sorted({site for site, _ in self._by_window.get(window_start_us, ())}))

    def earliest_waiting_us(self) -> int | None:
        """The start of the earliest window that may still be repaired."""
        return min((start for start in self._by_window if self.waits(start)), default=None)

    def __len__(self) -> int:
        return len(self._by_window)

    def _drop(self, window_start_us: int, batch: Batch) -> None:
        batches = self._by_window[window_start_us]
        batches.discard(batch)
        if not batches:
            del self._by_window[window_start_us]
        lacking = self._owed[batch].lacking
        lacking.pop(window_start_us, None)
        if not lacking:
            del self._owed[batch]

    def dump(self) -> list[Any]:
        return [[s, n, o.rate, o.gave_up, [list(i) for i in o.lacking.items()], [list(i) for i in o.groups.items()]]
                for (s, n), o in self._owed.items()]  # fmt: skip

    def load(self, saved: Any) -> None:
        self._owed = {
            (s, n): Owed(rate, dict(lacking), gave_up, dict(*more)) for s, n, rate, gave_up, lacking, *more in saved
        }
        self._by_window = {}
        for batch, start in self._pairs(self._owed):
            self._by_window.setdefault(start, set()).add(batch)

    @staticmethod
    def _pairs(owed: Mapping[Batch, Owed]) -> Iterator[tuple[Batch, int]]:
        return ((batch, start) for batch, one in owed.items() for start in one.lacking)
