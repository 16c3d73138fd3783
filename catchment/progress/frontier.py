"""How far one site has come: which segments are in, and the marks and standings that therefore hold.

Segments may land in any order. A stated mark or standing holds only when every segment up to the one that states it is
in; the count of update rows that comes with a mark is then checked. Facts that a relay passes on are in the order of
the relay's segments, and are true of the site that they name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from catchment.errors import CenterError
from catchment.progress.events import Landed
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import (
    Backfilled,
    Backfilling,
    Closing,
    Deferred,
    Fact,
    LookedUp,
    Progress,
    QueryMark,
    Resumed,
    Shed,
    Skipped,
    Standing,
    Suspended,
)

LostSpans = tuple[tuple[int, int], ...]  # event times [low, high)
MAX_LOST_SPANS = 1_000  # per fragment; a site states 64 at most each time, and the oldest are of final windows


# Version 2 has suspended, version 3 backfilling and lost, version 4 query_marks.
@stored(version=4, migrations={1: dict, 2: dict, 3: dict})
@dataclass
class Frontier:
    """The contiguous prefix of one site's segments, and what waits beyond it."""

    next_sequence: int = 0
    ahead: dict[int, Landed] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)  # fragment -> everything before is in, for each of its queries
    rows: dict[str, int] = field(default_factory=dict)  # fragment -> update rows that are in
    first_marks: dict[str, int] = field(default_factory=dict)  # fragment -> the first mark that was stated of it
    complete_until: dict[str, int] = field(default_factory=dict)  # query -> nothing more is expected before
    closings: dict[str, dict[int, Closing]] = field(default_factory=dict)  # query -> window's end -> closing
    suspended: dict[str, Suspended] = field(default_factory=dict)  # fragments that take nothing in there, and why
    backfilling: dict[str, Backfilling] = field(default_factory=dict)  # fragments whose past is not in yet
    lost: dict[str, LostSpans] = field(default_factory=dict)  # fragment -> event times that its history lacked
    query_marks: dict[str, dict[str, int]] = field(default_factory=dict)  # fragment -> query -> a mark beyond the other
    standings: dict[str, int] = field(default_factory=dict, metadata={"stored": False})  # query -> how many were noted

    def first_mark(self, fragment: str) -> int | None:
        """Return the first mark of a fragment: where the site began, if the fragment was begun during a run."""
        return self.first_marks.get(fragment)

    def mark(self, fragment: str, query: str | None = None) -> int:
        """Return how far a fragment is in for each of its queries, or for one; empty: for those without a contract."""
        mark_us = self.marks.get(fragment, START_OF_TIME_US)
        if query is None:
            return mark_us
        return max(mark_us, self.query_marks.get(fragment, {}).get(query, START_OF_TIME_US))

    def furthest_mark(self, fragment: str) -> int:
        """Return how far a fragment is in for that of its queries which waits least."""
        return max((self.mark(fragment), *self.query_marks.get(fragment, {}).values()))

    def add(self, landed: Landed, former: Collection[str] = ()) -> list[Landed]:
        """Take a segment in; return the segments that are in order because of it, oldest first.

        Standings of `former` fragments, in whose place others compute the same windows, say nothing any more.
        """
        if self.has(landed.sequence):
            raise CenterError(f"segment {landed.sequence} of {landed.origin!r} reached the core twice")
        self.ahead[landed.sequence] = landed
        passed = []
        while self.next_sequence in self.ahead:
            passed.append(self.ahead.pop(self.next_sequence))
            self._advance(passed[-1], former)
            self.next_sequence += 1
        return passed

    def has(self, sequence: int) -> bool:
        """Return whether a segment is in."""
        return sequence < self.next_sequence or sequence in self.ahead

    def copy_for_trial(self) -> Frontier:
        """Return a frontier that segments can be added to without changing this one; closings are left out."""
        return replace(
            self,
            ahead=dict(self.ahead),
            marks=dict(self.marks),
            rows=dict(self.rows),
            first_marks=dict(self.first_marks),
            query_marks={fragment: dict(marks) for fragment, marks in self.query_marks.items()},
            complete_until=dict(self.complete_until),
            closings={},
            suspended=dict(self.suspended),
            backfilling=dict(self.backfilling),
            lost=dict(self.lost),
            standings={},
        )

    def _advance(self, landed: Landed, former: Collection[str] = ()) -> None:
        for fragment, rows in landed.updates:
            self.rows[fragment] = self.rows.get(fragment, 0) + rows
        for stated in (*landed.progress, *(r.fact for r in landed.relayed)):
            if isinstance(stated, Progress) and self.rows.get(stated.fragment, 0) != stated.updates_total:
                raise CenterError(
                    f"{landed.origin!r} states {stated.updates_total} updates of {stated.fragment!r} up to segment "
                    f"{landed.sequence}, but {self.rows.get(stated.fragment, 0)} are in"
                )
        own: tuple[Fact, ...] = (*landed.backfills, *landed.progress, *landed.standings, *landed.suspensions)
        for fact in own:
            if not _is_outdated(fact, former):
                self.note(fact)

    def note(self, fact: Fact) -> None:
        """Note a fact of this site that holds from now on."""
        if isinstance(fact, Progress):
            self.first_marks.setdefault(fact.fragment, fact.low_mark_us)
            self.marks[fact.fragment] = max(self.mark(fact.fragment), fact.low_mark_us)
            self._forget_passed(fact.fragment)
        elif isinstance(fact, QueryMark):
            known = self.query_marks.setdefault(fact.fragment, {})
            known[fact.query] = max(known.get(fact.query, START_OF_TIME_US), fact.low_mark_us)
            self._forget_passed(fact.fragment)
        elif isinstance(fact, Standing):
            self._note_standing(fact)
        elif isinstance(fact, Suspended):
            self.suspended[fact.fragment] = fact
        elif isinstance(fact, Resumed):
            self.suspended.pop(fact.fragment, None)
        elif isinstance(fact, Backfilling):
            self.backfilling[fact.fragment] = fact
        elif isinstance(fact, Backfilled):
            self.backfilling.pop(fact.fragment, None)
            if fact.lost:
                self.lost[fact.fragment] = (*self.lost.get(fact.fragment, ()), *fact.lost)[-MAX_LOST_SPANS:]

    def _forget_passed(self, fragment: str) -> None:
        """Drop the marks of single queries that the mark of all of them has reached."""
        known = self.query_marks.pop(fragment, {})
        ahead = {query: mark_us for query, mark_us in known.items() if mark_us > self.mark(fragment)}
        if ahead:
            self.query_marks[fragment] = ahead

    def _note_standing(self, standing: Standing) -> None:
        self.complete_until[standing.query] = max(self.complete_until_us(standing.query), standing.complete_until_us)
        self.closings.setdefault(standing.query, {}).update({c.end_us: c for c in standing.closings})
        self.standings[standing.query] = self.standings.get(standing.query, 0) + 1

    def complete_until_us(self, query: str) -> int:
        """Return the instant before which the site expects nothing more of a query."""
        return self.complete_until.get(query, START_OF_TIME_US)

    def forget_standing(self, query: str) -> None:
        """Forget what was stated of the windows of a query: they are computed again."""
        self.complete_until.pop(query, None)
        self.closings.pop(query, None)

    def forget_closings(self, query: str, until_us: int) -> None:
        """Drop the closings of windows that end by an instant: they are not asked for any more."""
        known = self.closings.get(query, {})
        for end_us in [end for end in known if end <= until_us]:
            del known[end_us]


def apply_landed(
    frontiers: dict[str, Frontier], landed: Landed, former: Collection[str] = ()
) -> list[tuple[str, Fact]]:
    """Take a segment in; return the facts that hold from now on, each with the site that it is true of."""
    passed = frontiers.setdefault(landed.origin, Frontier()).add(landed, former)
    for relayed in (r for segment in passed for r in segment.relayed):
        if not _is_outdated(relayed.fact, former):
            frontiers.setdefault(relayed.origin, Frontier()).note(relayed.fact)
    return [fact for segment in passed for fact in _facts(segment)]


def _is_outdated(fact: Fact, former: Collection[str]) -> bool:
    return isinstance(fact, Standing) and fact.fragment in former


def _facts(landed: Landed) -> list[tuple[str, Fact]]:
    own: tuple[Fact, ...] = (
        *landed.backfills,
        *landed.progress,
        *landed.shed,
        *landed.standings,
        *landed.suspensions,
        *landed.looked_up,
    )
    return [*((landed.origin, fact) for fact in own), *((r.origin, r.fact) for r in landed.relayed)]


def instant_facts(landed: Landed) -> list[tuple[str, Shed | Skipped | Deferred | LookedUp]]:
    """Return what a segment states of records that were left out, or looked up, whatever is missing before it."""
    return [(origin, fact) for origin, fact in _facts(landed) if isinstance(fact, Shed | Skipped | Deferred | LookedUp)]
