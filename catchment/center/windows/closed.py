"""What is remembered of a published window until it is final, and what its sites said of it.

Invariant: the status follows from what is known: `on_time` while a site is missing, expects more or has shed records of
it, and for ever where the query asks for no repair; else `exact`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from catchment.center.events import EXACT, ON_TIME
from catchment.quality.contract import WatchedQuantity
from catchment.quality.merge_sites import SiteEstimate, expected_count, whole_bound
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import Closing

Errors = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class SitesSay:
    """How far the sites of a query have come: marks, up to where nothing more is expected, windows they let go."""

    marks: Mapping[str, int]
    overs: Mapping[str, int]
    closings: Mapping[str, Mapping[int, Closing]]

    def passed(self, site: str, end_us: int) -> bool:
        return self.marks.get(site, START_OF_TIME_US) >= end_us

    def is_over(self, site: str, end_us: int) -> bool:
        return self.overs.get(site, START_OF_TIME_US) >= end_us


@dataclass
class ClosedWindow:
    """A published window that may still change."""

    revision: int
    counts: dict[str, int]
    missing: dict[str, int | None] = field(default_factory=dict)  # site -> records expected of it, if known
    awaited: tuple[str, ...] = ()  # sites that are in, and expect more
    expected: float | None = None  # records that are expected in all, by the sites that are in
    errors: Errors = ()  # what the awaited records may change of each column, relative
    sources: tuple[tuple[str, str, float], ...] = ()  # site, source, the share of its window that is missing
    repaired: bool = True  # whether late records are merged in the end
    unmerged: int = 0  # late records that no repair merges
    owed: bool = False  # whether a site has shed records of it
    shed: int = 0  # about how many

    @property
    def status(self) -> str:
        lacks = self.missing or self.awaited or self.owed
        return ON_TIME if lacks or not self.repaired else EXACT

    @property
    def coverage(self) -> float:
        """The share of the window's records that are in: counted where known, else by the share of sites."""
        got, lacking = sum(self.counts.values()), float(self.shed + self.unmerged)
        if any(e is None for e in self.missing.values()):
            sites = len(self.counts.keys() | self.missing.keys())
            return (sites - len(self.missing)) / sites * (got / (got + lacking) if got else 1.0)
        lacking += sum(e or 0 for e in self.missing.values())
        if self.awaited and self.expected is not None:
            lacking += max(self.expected - got, 0.0)
        return got / (got + lacking) if got + lacking else 1.0

    def assess(self, end_us: int, measured: Sequence[WatchedQuantity], say: SitesSay, controlled: bool) -> None:
        """Take in what sites have said since."""
        for site in [s for s in self.missing if say.passed(s, end_us)]:
            del self.missing[site]
            self.expected = None
        if controlled:
            inside = [s for s in say.marks if s not in self.missing]
            self.awaited = tuple(s for s in inside if not say.is_over(s, end_us))
            self._estimate(end_us, measured, say, inside)

    def _estimate(self, end_us: int, measured: Sequence[WatchedQuantity], say: SitesSay, inside: Sequence[str]) -> None:
        told = {s: c for s in inside if (c := say.closings.get(s, {}).get(end_us)) is not None}
        if not self.awaited:
            self.expected, self.errors, self.sources = None, (), ()
        elif told:
            parts = [[_part(c.estimates[i], s in self.awaited) for s, c in told.items()] for i in range(len(measured))]
            inside_count = sum(part.count for part in parts[0])
            if self.expected is None and inside_count:
                self.expected = sum(self.counts.values()) * expected_count(parts[0]) / inside_count
            self.errors = tuple((column, whole_bound(m.measure, parts[i]) if m.bounded else None)
                                for i, m in enumerate(measured) for column in m.columns)  # fmt: skip
            owing = {s: c for s, c in told.items() if s in self.awaited}
            self.sources = tuple((site, name, share) for site, c in owing.items() for name, share in c.sources)

    def to_list(self) -> list[Any]:
        return [self.revision, self.counts, self.missing, list(self.awaited), self.expected,
                [list(e) for e in self.errors], [list(s) for s in self.sources],
                self.repaired, self.unmerged, self.owed, self.shed]  # fmt: skip

    @classmethod
    def from_list(cls, state: Sequence[Any]) -> ClosedWindow:
        revision, counts, missing, awaited, expected, errors, sources, *rest = state
        return cls(revision, dict(counts), dict(missing), tuple(awaited), expected,
                   tuple((c, e) for c, e in errors), tuple((a, b, c) for a, b, c in sources),
                   *rest)  # fmt: skip


def _part(estimate: SiteEstimate, awaited: bool) -> SiteEstimate:
    """A site that expects no more has its part whole."""
    return estimate if awaited else SiteEstimate(1.0, 0.0, estimate.count, estimate.total)
