"""Events that the cores of relays and of the center have in common: segments have landed, and time has passed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from catchment.storage.codec import stored
from catchment.wire.messages import Progress, Relayed, Repaired, Segment, Shed, Standing, SuspensionFact


@stored()
@dataclass(frozen=True, slots=True)
class Gathered:
    """Partials of one fragment from any number of segments, merged per (slice, keys).

    `records` = raw records per (site, slice); `senders` = whose segments they came in, with the slices of those.
    """

    fragment: str
    partials: pa.Table = field(repr=False)
    records: tuple[tuple[str, int, int], ...] = ()
    senders: tuple[tuple[str, int], ...] = ()


@stored()
@dataclass(frozen=True, slots=True)
class LeftOut:
    """Raw records of a site that were not merged, because the site does not count for their event times."""

    fragment: str
    site: str
    records: int


@stored(version=2, migrations={1: dict})  # version 2 has suspensions
@dataclass(frozen=True, slots=True)
class Landed:
    """A segment is in: how many update rows it held per fragment, and what it states: progress, shedding, standings,
    suspensions, and where its sender is a relay the facts of other sites."""

    origin: str
    sequence: int
    updates: tuple[tuple[str, int], ...] = ()
    progress: tuple[Progress, ...] = ()
    shed: tuple[Shed | Repaired, ...] = ()
    standings: tuple[Standing, ...] = ()
    relayed: tuple[Relayed, ...] = ()
    suspensions: tuple[SuspensionFact, ...] = ()

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
            tuple(segment.progress()),
            tuple(segment.shed()),
            tuple(segment.standings()),
            tuple(segment.relayed()),
            tuple(segment.suspensions()),
        )


@stored()
@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""
