"""Events that the cores of relays and of the center have in common: segments have landed, and time has passed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from catchment.errors import CenterError
from catchment.storage.codec import stored
from catchment.wire.messages import (
    BackfillFact,
    LookedUp,
    MarkFact,
    Relayed,
    Repaired,
    Segment,
    Shed,
    Standing,
    SuspensionFact,
)


@stored(version=2, migrations={1: dict})  # version 2 has sites
@dataclass(frozen=True, slots=True)
class Gathered:
    """Partials of one fragment from any number of segments, merged per (slice, keys).

    `records` = raw records per (site, slice); `senders` = whose segments they came in, with the slices of those. Where
    some query of the fragment leaves out sites, `sites` are those that the partials may be of.
    """

    fragment: str
    partials: pa.Table = field(repr=False)
    records: tuple[tuple[str, int, int], ...] = ()
    senders: tuple[tuple[str, int], ...] = ()
    sites: tuple[str, ...] = ()


@stored()
@dataclass(frozen=True, slots=True)
class LeftOut:
    """Raw records of a site that were not merged, because the site does not count for their event times."""

    fragment: str
    site: str
    records: int


@stored()
@dataclass(frozen=True, slots=True)
class PartialsDeferred:
    """Partials of one fragment were not merged but wait on disk, under the fragment and a number.

    They are those of groups whose `keys` have a place beyond `share` (`catchment.progress.deferred`). `lacking` has
    their slices, each with the raw records behind them: counted where `is_counted`, else about as many.
    """

    fragment: str
    number: int
    share: float
    keys: tuple[str, ...]
    lacking: tuple[tuple[int, int], ...]
    is_counted: bool

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0 or not self.keys or not self.lacking:
            raise CenterError(
                f"partials of {self.fragment!r} are deferred beyond a share of {self.share} of the keys {self.keys} in "
                f"the slices {self.lacking}; a share is in (0, 1), and there must be keys and slices"
            )


@stored()
@dataclass(frozen=True, slots=True)
class DeferredMerged:
    """What was deferred of a fragment under a number has been merged: it is in the entry before this event."""

    fragment: str
    number: int


# Version 2 has suspensions, version 3 backfills, version 4 looked_up.
@stored(version=4, migrations={1: dict, 2: dict, 3: dict})
@dataclass(frozen=True, slots=True)
class Landed:
    """A segment is in: how many update rows it held per fragment, and what it states: progress, shedding, standings,
    suspensions, backfills, look-ups, and where its sender is a relay the facts of other sites."""

    origin: str
    sequence: int
    updates: tuple[tuple[str, int], ...] = ()
    progress: tuple[MarkFact, ...] = ()
    shed: tuple[Shed | Repaired, ...] = ()
    standings: tuple[Standing, ...] = ()
    relayed: tuple[Relayed, ...] = ()
    suspensions: tuple[SuspensionFact, ...] = ()
    backfills: tuple[BackfillFact, ...] = ()
    looked_up: tuple[LookedUp, ...] = ()

    @classmethod
    def of(cls, segment: Segment) -> Landed:
        """Return everything that a segment holds except its partials."""
        rows: dict[str, int] = {}
        for update in segment.updates():
            rows[update.fragment] = rows.get(update.fragment, 0) + update.rows
        return cls(
            segment.origin,
            segment.sequence,
            tuple(rows.items()),
            tuple(segment.marks()),
            tuple(segment.shed()),
            tuple(segment.standings()),
            tuple(segment.relayed()),
            tuple(segment.suspensions()),
            tuple(segment.backfills()),
            tuple(segment.looked_up()),
        )


@stored()
@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""
