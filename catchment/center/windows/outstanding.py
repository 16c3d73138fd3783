"""What the windows of one query still lack: records that sites have shed and not repaired yet, and deferred ones.

A window that lacks records is not exact. `Shed` counts as soon as it lands; `Repaired` only when everything that its
site sent before it is in. What a site gave up never comes: such a window is never exact and waits for nothing. What
was deferred on its way (`catchment.center.windows.deferred`) counts beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from catchment.center.events import GroupLowest
from catchment.center.windows.deferred import DeferralName, DeferredBatch, DeferredGroups
from catchment.storage.codec import stored
from catchment.timeline import WindowSpec
from catchment.wire.messages import Repaired, Shed

SiteBatch = tuple[str, int]  # a site, and the number of a batch there


@stored(version=2, migrations={1: dict})  # version 2 has fragments
@dataclass
class OutstandingBatch:
    """What is outstanding of one shed batch.

    `lacking` says about how many records each window lacks. With `group_rates` the rate of a row is that of its group,
    and 1 for groups that are not named. `fragments` are those whose rest its site will send.
    """

    rate: float
    lacking: dict[int, int] = field(default_factory=dict)  # window start -> records
    gave_up: bool = False
    group_rates: dict[str, float] = field(default_factory=dict)
    fragments: tuple[str, ...] = ()


@dataclass
class Outstanding:
    """What is outstanding of one query, by batch; `by_group`: its rows are the groups that rates may be by."""

    window: WindowSpec
    by_group: bool = False
    batches: dict[SiteBatch, OutstandingBatch] = field(default_factory=dict)
    deferred_batches: dict[DeferralName, DeferredBatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deferred = DeferredGroups(self.window, self.deferred_batches)
        self._by_window: dict[int, set[SiteBatch]] = {}
        self._changed: set[int] = set()
        for key, batch in self.batches.items():
            for start_us in batch.lacking:
                self._by_window.setdefault(start_us, set()).add(key)

    def add_shed(self, site: str, fact: Shed) -> None:
        """Add the records that a site has left out of a batch."""
        key = site, fact.batch
        group_rates = dict(fact.groups) if self.by_group else {}
        batch = self.batches.setdefault(key, OutstandingBatch(fact.rate, group_rates=group_rates))
        batch.fragments = tuple(sorted({*batch.fragments, fact.fragment}))
        for slice_us, records in fact.lacking:
            for window in self.window.containing(slice_us):
                batch.lacking[window.start_us] = batch.lacking.get(window.start_us, 0) + records
                self._by_window.setdefault(window.start_us, set()).add(key)
                self._changed.add(window.start_us)

    def defer(self, name: DeferralName, batch: DeferredBatch, lacking: Iterable[tuple[int, int]]) -> None:
        """Add a deferral that leaves out so many records per slice."""
        self._changed |= self.deferred.add(name, batch, lacking)

    def settle_deferred(self, name: DeferralName) -> None:
        """Settle a deferral whose partials have come."""
        self._changed |= self.deferred.settle(name)

    def take_changed(self) -> set[int]:
        """Return the windows of which something was shed, deferred or settled since this was last asked."""
        changed = self._changed
        self._changed = set()
        return changed

    def settle_repaired(self, site: str, fact: Repaired) -> None:
        """Settle a batch whose rest a site has sent, or says that it never will."""
        key = site, fact.batch
        batch = self.batches.get(key)
        if batch is None:
            return
        batch.gave_up = fact.gave_up
        self._changed.update(batch.lacking)
        if not fact.gave_up:
            for start_us in list(batch.lacking):
                self._drop(start_us, key)
        if not batch.lacking:
            del self.batches[key]

    def give_up(self, site: str) -> None:
        """Expect no repair of a site any more: nothing comes of it.

        Its batches get numbers below 0, because a new life of the site begins to number its own at 0.
        """
        ended = [key for key in self.batches if key[0] == site and key[1] >= 0]
        lowest = min((number for origin, number in self.batches if origin == site), default=0)
        for below, key in enumerate(ended, start=1):
            batch = self.batches.pop(key)
            if not batch.lacking:
                continue
            batch.gave_up = True
            renamed = site, min(lowest, 0) - below
            self.batches[renamed] = batch
            for start_us in batch.lacking:
                self._by_window[start_us].remove(key)
                self._by_window[start_us].add(renamed)
                self._changed.add(start_us)

    def forget(self, window_start_us: int) -> None:
        """Stop following a window; that a site will send more of it is remembered until it has."""
        self.deferred.forget(window_start_us)
        for key in list(self._by_window.get(window_start_us, ())):
            self._drop(window_start_us, key)
            if self.batches[key].gave_up and not self.batches[key].lacking:
                del self.batches[key]

    def awaited_fragments(self, sites: Collection[str]) -> set[str]:
        """Return the fragments of which one of these sites has yet to send something that was shed or deferred."""
        shed = (b.fragments for (site, _), b in self.batches.items() if site in sites and not b.gave_up)
        return {fragment for fragments in shed for fragment in fragments} | self.deferred.awaited_fragments(sites)

    def lacks_records(self, window_start_us: int) -> bool:
        return window_start_us in self._by_window or window_start_us in self.deferred

    def lowest_rate(self, window_start_us: int) -> float:
        return min((batch.rate for batch in self._batches_of(window_start_us)), default=1.0)

    def group_rates(self, window_start_us: int) -> GroupLowest | None:
        """Return the lowest rate of each group, where any batch was sampled by group."""
        batches = self._batches_of(window_start_us)
        by_group = [batch.group_rates for batch in batches if batch.group_rates]
        if not by_group:
            return None
        others = min((batch.rate for batch in batches if not batch.group_rates), default=1.0)
        named = sorted({group for rates in by_group for group in rates})
        lowest = {group: min(others, *(rates.get(group, 1.0) for rates in by_group)) for group in named}
        return others, tuple(lowest.items())

    def lacking(self, window_start_us: int) -> int:
        """Return about how many records the window lacks."""
        shed = sum(batch.lacking[window_start_us] for batch in self._batches_of(window_start_us))
        return shed + self.deferred.lacking(window_start_us)

    def sites(self, window_start_us: int) -> tuple[str, ...]:
        """Return the sites that the window lacks records of."""
        return tuple(sorted({site for site, _ in self._by_window.get(window_start_us, ())}))

    def earliest_awaited_us(self, away: Collection[str] = ()) -> int | None:
        """Return the start of the earliest window that may still be repaired by a site that is not away."""
        awaited = [
            min(batch.lacking)
            for (site, _), batch in self.batches.items()
            if batch.lacking and not batch.gave_up and site not in away
        ]
        deferred_us = self.deferred.earliest_awaited_us(away)
        return min(awaited if deferred_us is None else [*awaited, deferred_us], default=None)

    def __len__(self) -> int:
        return len(self._by_window)

    def _batches_of(self, window_start_us: int) -> list[OutstandingBatch]:
        return [self.batches[key] for key in self._by_window.get(window_start_us, ())]

    def _drop(self, window_start_us: int, key: SiteBatch) -> None:
        keys = self._by_window[window_start_us]
        keys.discard(key)
        if not keys:
            del self._by_window[window_start_us]
        self.batches[key].lacking.pop(window_start_us, None)
