"""How far one site has come: which segments are in, and the marks and standings that therefore hold.

Segments may land in any order. A stated mark or standing holds only when every segment up to the one that states it is
in; the count of update rows that comes with a mark is then checked. Facts that a relay passes on are in the order of
the relay's segments, and are true of the site that they name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from catchment.errors import CenterError
from catchment.progress.events import Landed
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import Closing, Fact, Progress, Repaired, Shed, Standing


@dataclass
class Frontier:
    """The contiguous prefix of one site's segments, and what waits beyond it."""

    next_sequence: int = 0
    ahead: dict[int, Landed] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)  # fragment -> the first mark that was stated of it
    overs: dict[str, int] = field(default_factory=dict)  # query -> nothing more is expected before
    closings: dict[str, dict[int, Closing]] = field(default_factory=dict)  # query -> window's end -> how it was let go

    def first(self, fragment: str) -> int | None:
        """The first mark of a fragment: where the site began, if the fragment was begun during a run."""
        return self.firsts.get(fragment)

    def mark(self, fragment: str) -> int:
        return self.marks.get(fragment, START_OF_TIME_US)

    def land(self, landed: Landed) -> list[Landed]:
        """Take a segment in; advance over every segment that is now in order, and give those."""
        if landed.sequence < self.next_sequence or landed.sequence in self.ahead:
            raise CenterError(f"segment {landed.sequence} of {landed.origin!r} reached the core twice")
        self.ahead[landed.sequence] = landed
        passed = []
        while self.next_sequence in self.ahead:
            passed.append(self.ahead.pop(self.next_sequence))
            self._advance(passed[-1])
            self.next_sequence += 1
        return passed

    def _advance(self, landed: Landed) -> None:
        for fragment, rows in landed.updates:
            self.rows[fragment] = self.rows.get(fragment, 0) + rows
        for stated in (*landed.progress, *(r.fact for r in landed.relayed)):
            if isinstance(stated, Progress) and self.rows.get(stated.fragment, 0) != stated.updates_total:
                raise CenterError(
                    f"{landed.origin!r} states {stated.updates_total} updates of {stated.fragment!r} up to segment "
                    f"{landed.sequence}, but {self.rows.get(stated.fragment, 0)} are in"
                )
        own: tuple[Fact, ...] = (*landed.progress, *landed.standings)
        for fact in own:
            self.hear(fact)

    def hear(self, fact: Fact) -> None:
        """A fact of this site that holds from now on."""
        if isinstance(fact, Progress):
            self.firsts.setdefault(fact.fragment, fact.low_mark_us)
            self.marks[fact.fragment] = max(self.mark(fact.fragment), fact.low_mark_us)
        elif isinstance(fact, Standing):
            self._stand(fact)

    def _stand(self, standing: Standing) -> None:
        self.overs[standing.query] = max(self.over(standing.query), standing.over_us)
        self.closings.setdefault(standing.query, {}).update({c.end_us: c for c in standing.closings})

    def over(self, query: str) -> int:
        return self.overs.get(query, START_OF_TIME_US)

    def forget(self, query: str, closed_us: int) -> None:
        """Closings of windows that are closed and over are of no more use."""
        known, until = self.closings.get(query, {}), min(closed_us, self.over(query))
        for end in [e for e in known if e <= until]:
            del known[end]

    def to_dict(self) -> dict[str, Any]:
        ahead = [
            [
                a.origin,
                a.sequence,
                [*a.updates],
                [(p.fragment, p.low_mark_us, p.updates_total) for p in a.progress],
                [(r.fragment, r.batch, r.gave_up) for r in a.shed if isinstance(r, Repaired)],
                list(a.standings),
                list(a.relayed),
            ]
            for a in self.ahead.values()
        ]
        return {
            "next": self.next_sequence,
            "ahead": ahead,
            "marks": dict(self.marks),
            "rows": dict(self.rows),
            "firsts": dict(self.firsts),
            "standings": [
                Standing("-", query, self.over(query), tuple(self.closings.get(query, {}).values()))
                for query in self.overs
            ],
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Frontier:
        ahead = {
            seq: Landed(origin, seq, tuple((f, n) for f, n in updates), tuple(Progress(*p) for p in progress),
                        tuple(Repaired(*r) for r in repaired), tuple(standings),
                        tuple(relayed[0]) if relayed else ())
            for origin, seq, updates, progress, repaired, standings, *relayed in state["ahead"]
        }  # fmt: skip
        frontier = cls(state["next"], ahead, dict(state["marks"]), dict(state["rows"]), dict(state["firsts"]))
        for standing in state["standings"]:
            frontier._stand(standing)
        return frontier


def land(frontiers: dict[str, Frontier], landed: Landed) -> list[tuple[str, Fact]]:
    """Take a segment in; the facts, each with the site that it is true of, which hold from now on."""
    passed = frontiers.setdefault(landed.origin, Frontier()).land(landed)
    for relayed in (r for segment in passed for r in segment.relayed):
        frontiers.setdefault(relayed.origin, Frontier()).hear(relayed.fact)
    return [fact for segment in passed for fact in _facts(segment)]


def _facts(landed: Landed) -> list[tuple[str, Fact]]:
    own: tuple[Fact, ...] = (*landed.progress, *landed.shed, *landed.standings)
    return [*((landed.origin, fact) for fact in own), *((r.origin, r.fact) for r in landed.relayed)]


def shed_in(landed: Landed) -> list[tuple[str, Shed]]:
    """What a segment says of shedding, whatever is still missing before it."""
    return [(origin, fact) for origin, fact in _facts(landed) if isinstance(fact, Shed)]
