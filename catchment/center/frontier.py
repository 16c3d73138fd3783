"""How far one site has come: which segments are in, and the marks that therefore hold.

Segments may land in any order. A stated mark holds only when every segment up to the one that states it is in;
the count of update rows that comes with it is then checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from catchment.center.events import Landed
from catchment.errors import CenterError
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import Progress, Repaired


@dataclass
class Frontier:
    """The contiguous prefix of one site's segments, and what waits beyond it."""

    next_sequence: int = 0
    ahead: dict[int, Landed] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)  # fragment -> the first mark that was stated of it

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
        for fact in landed.progress:
            if self.rows.get(fact.fragment, 0) != fact.updates_total:
                raise CenterError(
                    f"{landed.origin!r} states {fact.updates_total} updates of {fact.fragment!r} up to segment "
                    f"{landed.sequence}, but {self.rows.get(fact.fragment, 0)} are in"
                )
            self.firsts.setdefault(fact.fragment, fact.low_mark_us)
            self.marks[fact.fragment] = max(self.mark(fact.fragment), fact.low_mark_us)

    def to_dict(self) -> dict[str, Any]:
        ahead = [
            [
                a.origin,
                a.sequence,
                [*a.updates],
                [(p.fragment, p.low_mark_us, p.updates_total) for p in a.progress],
                [(r.fragment, r.batch, r.gave_up) for r in a.shed if isinstance(r, Repaired)],
            ]
            for a in self.ahead.values()
        ]
        return {
            "next": self.next_sequence,
            "ahead": ahead,
            "marks": dict(self.marks),
            "rows": dict(self.rows),
            "firsts": dict(self.firsts),
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Frontier:
        ahead = {
            seq: Landed(
                origin,
                seq,
                tuple((f, n) for f, n in updates),
                tuple(Progress(*p) for p in progress),
                tuple(Repaired(*r) for r in repaired),
            )
            for origin, seq, updates, progress, repaired in state["ahead"]
        }
        return cls(state["next"], ahead, dict(state["marks"]), dict(state["rows"]), dict(state["firsts"]))
