"""What is remembered of a published window until it is final, and what its sites have stated of it.

Invariant: the status follows from what is known. It is `suspended` where a suspended fragment has skipped records of
the window. Else it is `on_time` while a site is missing, expects more or has shed records of the window, and forever
where the query asks for no repair or late records are left out; otherwise it is `exact`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from catchment.center.roster import Lost
from catchment.center.statuses import EXACT, ON_TIME, SUSPENDED
from catchment.quality.contract import WatchedQuantity
from catchment.quality.merge_sites import ColumnLateness, Lateness, SiteEstimate, expected_count, merge_lateness
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import Closing

MissingShares = tuple[tuple[str, str, float], ...]  # (site, source, the share of its window that is missing)


@dataclass(frozen=True)
class SiteMarks:
    """How far the sites of a query have come.

    `marks`: everything before is normally sent, or does not count. `complete_until`: nothing more is expected before.
    `closings`: what each site lacked of the windows that it has closed, by the window's end. `furthest_us`: the mark of
    the furthest site. `lost`: the event times of sites of which nothing more comes. `backfilling`: the event times of
    sites of which records that were read long ago are yet to come from history, whatever the mark says. `standings`:
    how often each site has stated something, since the start; what `closings` holds is another thing after one more.
    """

    marks: Mapping[str, int]
    complete_until: Mapping[str, int]
    closings: Mapping[str, Mapping[int, Closing]]
    furthest_us: int = START_OF_TIME_US
    lost: tuple[Lost, ...] = ()
    backfilling: tuple[Lost, ...] = ()
    standings: Mapping[str, int] = field(default_factory=dict)

    def has_passed(self, site: str, end_us: int) -> bool:
        return self.marks.get(site, START_OF_TIME_US) >= end_us

    def is_complete(self, site: str, end_us: int) -> bool:
        return self.complete_until.get(site, START_OF_TIME_US) >= end_us

    def closing(self, site: str, end_us: int) -> Closing | None:
        """Return what a site lacked of the window that ends at an instant."""
        return self.closings.get(site, {}).get(end_us)


def _without_errors(fields: dict[str, Any]) -> dict[str, Any]:
    """Make the fields of version 3: what late records may change is not known until sites are heard again."""
    errors = fields.pop("errors")
    return {**fields, "late": Lateness(None, 0.0) if errors else None}


def _with_left_out(fields: dict[str, Any]) -> dict[str, Any]:
    """Make version 5 of version 4, in which every late record that was counted was taken for one of the query's."""
    return fields | {"are_left_out": fields["unmerged"] > 0}


# version 4 has is_published, version 5 are_left_out
@stored(
    5,
    {
        1: lambda fields: fields | {"closed_at_us": None, "skipped": {}, "lost": {}},
        2: _without_errors,
        3: dict,
        4: _with_left_out,
    },
)
@dataclass
class ClosedWindow:
    """A published window that may still change, or one that closed without records and has late ones that wait."""

    revision: int
    counts: dict[str, int]
    missing: dict[str, int | None] = field(default_factory=dict)  # site -> records expected of it, if known
    awaited: tuple[str, ...] = ()  # sites that are in, and expect more
    expected: float | None = None  # records that are expected in all, by the sites that are in
    late: Lateness | None = None  # what the awaited records may change; None if none is awaited
    sources: MissingShares = ()
    repaired: bool = True  # whether late records are merged in the end
    unmerged: int = 0  # late records of its fragments that came when no repair would merge them
    owed: bool = False  # whether a site has shed records of it
    shed: int = 0  # about how many
    closed_at_us: int | None = None  # when it was published first; None if it is not known yet
    skipped: dict[str, int] = field(default_factory=dict)  # site -> its records that a suspended fragment has skipped
    lost: dict[str, int | None] = field(default_factory=dict)  # sites of which something never comes, as in `missing`
    is_published: bool = True  # False until its first late records are merged, where it closed without any
    are_left_out: bool = False  # whether some of those that are unmerged are the query's own

    @property
    def is_lacking(self) -> bool:
        """Whether something that belongs to it is not in yet, and may come."""
        return bool(self.missing or self.awaited or self.owed or self.skipped)

    @property
    def absent_sites(self) -> tuple[str, ...]:
        """The sites that it was published without, or without a part of their records."""
        return tuple(sorted({*self.missing, *self.skipped, *self.lost}))

    @property
    def status(self) -> str:
        if self.skipped:
            return SUSPENDED
        return ON_TIME if self.is_lacking or self.lost or self.left_out or not self.repaired else EXACT

    @property
    def left_out(self) -> int:
        """How many late records no repair merges, about: a shared fragment counts records that are not the query's.

        They are known to lack only once partials of them have come: counts alone may be of records of others, or of
        some that were merged before their counts came.
        """
        return max(self.unmerged, 1) if self.are_left_out else 0

    @property
    def lateness(self) -> Lateness | None:
        """What late records may change: those that are awaited, and those that are registered and never merged."""
        if not self.left_out:
            return self.late
        if self.late is None:
            received = float(sum(self.counts.values()) + self.shed)
            return Lateness(float(self.left_out), received, is_counted=True)
        records = None if self.late.records is None else self.late.records + self.left_out
        columns = tuple(ColumnLateness(c.column, None) for c in self.late.columns)
        return replace(self.late, records=records, columns=columns)

    @property
    def coverage(self) -> float:
        """The share of the window's records that are in: counted where known, else by the share of sites."""
        got = sum(self.counts.values())
        lacking = float(self.shed + self.left_out + sum(self.skipped.values()))
        missing = {**self.lost, **self.missing}
        if any(expected is None for expected in missing.values()):
            sites = len(self.counts.keys() | missing.keys())
            return (sites - len(missing)) / sites * (got / (got + lacking) if got else 1.0)
        lacking += sum(expected or 0 for expected in missing.values())
        if self.awaited and self.expected is not None:
            lacking += max(self.expected - got - self.shed, 0.0)
        return got / (got + lacking) if got + lacking else 1.0

    def count_late(self, site: str, count: int, merged: bool) -> None:
        """Count late records of a site, which a repair will merge or which stay unmerged."""
        if not merged:
            self.unmerged += count
            return
        self.counts[site] = self.counts.get(site, 0) + count
        for missing in (self.missing, self.lost):
            expected = missing.get(site)
            if expected is not None:
                missing[site] = max(expected - count, 0)

    def assess(
        self,
        end_us: int,
        watched: Sequence[WatchedQuantity],
        marks: SiteMarks,
        has_contract: bool,
        backfilling: Collection[str] = (),
    ) -> None:
        """Take in what sites have stated since; of those that are `backfilling` it lacks records of the past."""
        for site in list(self.missing):
            if site not in marks.marks or (marks.has_passed(site, end_us) and site not in backfilling):
                del self.missing[site]
                self.expected = None
        if has_contract:
            inside = [s for s in marks.marks if s not in self.missing]
            self.awaited = tuple(s for s in inside if not marks.is_complete(s, end_us))
            self._estimate(end_us, watched, marks, inside)

    def _estimate(
        self, end_us: int, watched: Sequence[WatchedQuantity], marks: SiteMarks, inside: Sequence[str]
    ) -> None:
        stated = {s: marks.closing(s, end_us) for s in inside}
        closings = {s: c for s, c in stated.items() if c is not None and len(c.estimates) >= len(watched)}
        if not self.awaited:
            self.stop_awaiting()
            self.expected = None
        elif not closings:
            self.late = Lateness(None, 0.0)
        else:
            parts = [
                [_part(closing.estimates[i], site in self.awaited) for site, closing in closings.items()]
                for i in range(len(watched))
            ]
            inside_count = sum(part.count for part in parts[0])
            if self.expected is None and inside_count:
                received = sum(self.counts.values()) + self.shed  # sites count what arrives, before they sample it
                self.expected = received * expected_count(parts[0]) / inside_count
            is_told = all(site in closings for site in self.awaited)
            self.late = merge_lateness(watched, parts) if is_told else Lateness(None, 0.0)
            owing = {site: closing for site, closing in closings.items() if site in self.awaited}
            self.sources = tuple((site, name, share) for site, c in owing.items() for name, share in c.sources)

    def stop_awaiting(self) -> None:
        """Expect nothing more of the sites that are in."""
        self.awaited = ()
        self.late = None
        self.sources = ()


def _part(estimate: SiteEstimate, awaited: bool) -> SiteEstimate:
    """Return a site's part; it is whole where the site expects no more."""
    return estimate if awaited else SiteEstimate(1.0, 0.0, estimate.count, estimate.total)
