"""Events that cores have in common: time has passed, and a segment has landed."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.storage.codec import stored
from catchment.wire.messages import Progress, Relayed, Repaired, Segment, Shed, Standing


@stored()
@dataclass(frozen=True, slots=True)
class Landed:
    """A segment is in: how many update rows it held per fragment, and what it states: progress, shedding, standings,
    and where its sender is a relay the facts of other sites."""

    origin: str
    sequence: int
    updates: tuple[tuple[str, int], ...] = ()
    progress: tuple[Progress, ...] = ()
    shed: tuple[Shed | Repaired, ...] = ()
    standings: tuple[Standing, ...] = ()
    relayed: tuple[Relayed, ...] = ()

    @classmethod
    def of(cls, segment: Segment) -> Landed:
        """All of a segment but its partials."""
        rows: dict[str, int] = {}
        for update in segment.updates():
            rows[update.fragment] = rows.get(update.fragment, 0) + update.rows
        facts = tuple(segment.progress()), tuple(segment.shed()), tuple(segment.standings()), tuple(segment.relayed())
        return cls(segment.origin, segment.sequence, tuple(rows.items()), *facts)


@stored()
@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""
