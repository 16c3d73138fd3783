"""The bound of what the center holds for open windows, and who is held back beyond it.

Beyond the bound the center takes segments only from senders that it needs to close its oldest window: at least one site
behind such a sender has not passed the end of the oldest open window of some view. The others keep what they have in
their outboxes, which are bounded too.

It always goes on: every site that has not passed the end of an oldest window is taken until it has, so that window
closes as it would without the bound, when all have passed it or `freshness` after the first one did; and then the next
window is the oldest. A view that has not begun waits for the first word of each of its sites, so these are taken too.
So what is held is at most the bound, and what the inbox holds, and what the sites that are needed send until they have
passed the oldest window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from catchment.center.core import CenterCore
from catchment.project.routings import Routings
from catchment.timeline import SECOND_US, Clock

MEASURE_EVERY_US = SECOND_US  # measuring looks at every open slice


@dataclass
class OpenState:
    """Measures what a core holds for open windows; `limit_bytes` None is no bound."""

    core: CenterCore
    routings: Routings
    clock: Clock
    limit_bytes: int | None
    size_bytes: int = field(default=0, init=False)
    held_back: frozenset[str] = field(default=frozenset(), init=False)  # senders
    times_held: int = field(default=0, init=False)  # how often senders came to be held back
    _measured_us: int | None = field(default=None, init=False)

    def follow(self) -> bool:
        """Measure, if it is time; return whether other senders are held back than before."""
        now_us = self.clock.now_us()
        if self._measured_us is not None and 0 <= now_us - self._measured_us < MEASURE_EVERY_US:
            return False
        self._measured_us = now_us
        self.size_bytes = measure(self.core)
        is_beyond = self.limit_bytes is not None and self.size_bytes > self.limit_bytes
        held_back = find_unneeded(self.core, self.routings) if is_beyond else frozenset()
        has_changed = held_back != self.held_back
        self.times_held += bool(held_back - self.held_back)
        self.held_back = held_back
        return has_changed

    def reason(self) -> str:
        """Return why senders are held back, for them and for the operator."""
        return f"the center holds {self.size_bytes} bytes for open windows; what closes the oldest comes first"

    def status(self) -> dict[str, Any]:
        """Return how much is held, and who is held back, as plain JSON."""
        return {
            "size_bytes": self.size_bytes,
            "limit_bytes": self.limit_bytes,
            "held_back": sorted(self.held_back),
            "times_held": self.times_held,
        }


def measure(core: CenterCore) -> int:
    """Return the bytes of partials that open windows of all queries hold."""
    slices = (s for running in list(core.queries.values()) for s in list(running.windows.state.slices.values()))
    return sum(table.nbytes for tables in slices for table in tables)


def find_unneeded(core: CenterCore, routings: Routings) -> frozenset[str]:
    """Return the senders behind which every site has passed the oldest open window of each view that it counts for."""
    senders: dict[str, set[str]] = {}  # of each site: several, if it was moved
    for routes in routings.every:
        for site in routes.hops:
            senders.setdefault(site, set()).add(routes.sites_on_route(site)[-1])
    needed = {sender for site in _needed_sites(core) for sender in senders.get(site, ())}
    counted = {site for running in core.queries.values() for site in running.sites}
    known = {sender for site in counted for sender in senders.get(site, ())}
    return frozenset(known - needed)


def _needed_sites(core: CenterCore) -> Iterator[str]:
    for running in core.queries.values():
        oldest = running.windows.open.first_window() if running.has_begun else None
        for site, mark_us in running.marks(core.frontiers).items():
            if not running.has_begun or (oldest is not None and mark_us < oldest.end_us):
                yield site
