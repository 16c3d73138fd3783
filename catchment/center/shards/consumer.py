"""The consumer of the inbox of a center with shards: tasks read the segments, and the journal gets parts, not rows.

A run is read by tasks, each of which has some of its segments (`catchment.center.shards.gather`); what they state is
then looked at here, in the order in which it landed, as the consumer of a plain center does. If a segment cannot be
taken, the run is read again without it: what tasks have written of it is not named by anything, and is removed.

Fragments that a join takes are merged here: pairs are made of the rows of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from catchment.center.core import CenterCore
from catchment.center.shards.folder import PartFolder
from catchment.center.shards.gather import (
    GatherFindings,
    GatherOrder,
    PartGroup,
    SegmentFacts,
    SegmentToRead,
    TakenFragment,
    share_segments,
)
from catchment.center.shards.parts import concat_rows, make_parts
from catchment.center.shards.runner import TaskRunner
from catchment.errors import CenterError, EngineError
from catchment.progress.blocking import SegmentSieve
from catchment.progress.consumer import (
    NOTHING_DEFERRABLE,
    SEGMENTS_PER_ENTRY,
    FindAlike,
    InboxConsumer,
    LandedEvent,
    LandedRun,
    Merge,
    without_poison,
)
from catchment.progress.events import Gathered, Landed, LeftOut
from catchment.progress.spans import ALL_OF_TIME, FindSpan
from catchment.query.fragment import Fragment
from catchment.shedding.group_shares import DeferrableFragment
from catchment.storage.host import Host
from catchment.wire.receiving.inbox import Inbox

TASK_BYTES = 1 << 18  # a task reads about so many bytes of segments at least; fewer are read here


@dataclass(frozen=True)
class ShardedCenter:
    """How a center spreads its rows: into so many shards, by whoever runs its tasks."""

    shards: int
    runner: TaskRunner
    folder: PartFolder


class ShardedConsumer(InboxConsumer):
    """Reads what has landed in tasks, and commits it to the host of a center."""

    def __init__(
        self,
        inbox: Inbox,
        host: Host[Any, Any],
        merge: Merge,
        find_span: FindSpan,
        stopwatch: Callable[[], float],
        find_alike: FindAlike,
        spread: ShardedCenter,
    ) -> None:
        super().__init__(inbox, host, merge, find_span, stopwatch, find_alike)
        self.spread = spread
        self._taken_by_run: tuple[int, tuple[TakenFragment, ...]] = (-1, ())

    def read(
        self, fragments: Mapping[str, Fragment], deferrable: Mapping[str, DeferrableFragment] = NOTHING_DEFERRABLE
    ) -> LandedRun | None:
        """Return the next run of landed segments, with parts of these fragments; None if nothing has landed."""
        self._began_s = self._stopwatch()
        start = self.position
        end = min(self.inbox.last_position + 1, start + SEGMENTS_PER_ENTRY)
        if end <= start:
            return None
        taken, joined = self.host.look(partial(find_taken, self._center_core))
        self._taken_by_run = start, taken
        spread = {name: fragment for name, fragment in fragments.items() if name not in joined}
        folder = self.spread.folder.begin_run(end)
        order = GatherOrder(folder, self.spread.shards, spread, taken, self.inbox.limits)
        positions = list(range(start, end))
        sieve = SegmentSieve(self._core, fragments)
        found = self._run(order, positions)
        facts = {fact.position: fact for findings in found for fact in findings.facts}
        kept = self._sift(sieve, facts)
        problem = next((findings.problem for findings in found if findings.problem), "")
        if problem:
            landed = {position: self.inbox.read_segments(position, position + 1)[0] for position in kept}
            kept = list(without_poison(landed, fragments, sieve, CenterError(f"partials are not merged: {problem}")))
        if kept != positions:
            positions = kept
            found = self._run(order, positions)
            facts = {fact.position: fact for findings in found for fact in findings.facts}
        events: list[LandedEvent] = list(_gathered(found))
        here = {name: fragment for name, fragment in fragments.items() if name in joined}
        if here:
            events += self._gather_here(positions, here)
        ordered = [facts[position] for position in positions]
        events += [left_out for fact in ordered for left_out in fact.left_out]
        events += [fact.landed for fact in ordered if fact.landed is not None]
        set_aside = tuple(position for position in range(start, end) if position not in facts)
        merged_rows = sum(findings.rows for findings in found)
        return LandedRun(start, end, (*events, *sieve.newly_blocked), set_aside, merged_rows=merged_rows)

    def is_outdated(self, run: LandedRun) -> bool:
        """Return whether something was committed meanwhile, or queries take other fragments than it was read for."""
        taken, _ = find_taken(self._center_core)
        return super().is_outdated(run) or self._taken_by_run != (run.start, taken)

    def _run(self, order: GatherOrder, positions: Sequence[int]) -> list[GatherFindings]:
        segments = [self._describe(position, order.fragments) for position in positions]
        size_bytes = sum(segment.size_bytes for segment in segments)
        tasks = min(self.spread.runner.cores, size_bytes // TASK_BYTES)
        shares = share_segments(segments, tasks)
        if len(shares) <= 1:
            found = [order.run(share) for share in shares]
        else:
            found = self.spread.runner.run(partial(GatherOrder.run, order), shares)
        outage = next((findings.outage for findings in found if findings.outage), "")
        if outage:
            raise EngineError(
                f"a task could not read what has landed: {outage}",
                hint="let every worker see the state folder of the center under one path: docs/guides/clusters.md",
            )
        return found

    def _describe(self, position: int, fragments: Mapping[str, Fragment]) -> SegmentToRead:
        path, head = self.inbox.locate(position)
        path = path.resolve()  # tasks run in folders of their own
        origin = head.header.origin
        spans = {name: self.find_span(name, origin) for name in fragments}
        alike = {name: self.find_alike(name, origin) for name in fragments}
        return SegmentToRead(
            position,
            path,
            head.size_bytes,
            head.digest,
            self._was_checked(position),
            {name: span for name, span in spans.items() if span != ALL_OF_TIME},
            {name: sites for name, sites in alike.items() if sites},
        )

    def _sift(self, sieve: SegmentSieve, facts: Mapping[int, SegmentFacts]) -> list[int]:
        """Return the positions of the segments that can be taken."""
        kept = []
        for position in sorted(facts):
            fact = facts[position]
            if fact.landed is not None:
                if sieve.takes_landed(fact.landed):
                    kept.append(position)
                continue
            header = self.inbox.locate(position)[1].header
            if not sieve.is_blocked(header.origin):
                sieve.block(Landed(header.origin, header.sequence), CenterError(fact.problem))
        return kept

    def _gather_here(self, positions: Sequence[int], fragments: Mapping[str, Fragment]) -> list[LandedEvent]:
        segments = [self.inbox.read_segments(position, position + 1)[0] for position in positions]
        run = self._gather(0, 0, segments, fragments, {})
        return [
            event
            for event in run.events
            if isinstance(event, Gathered) or (isinstance(event, LeftOut) and event.fragment in fragments)
        ]

    @property
    def _center_core(self) -> CenterCore:
        return cast(CenterCore, self.host.core)


def find_taken(core: CenterCore) -> tuple[tuple[TakenFragment, ...], frozenset[str]]:
    """Return which queries take which fragments, and the fragments that a join takes."""
    taken: dict[tuple[str, str], TakenFragment] = {}
    joined: set[str] = set()
    for running in core.queries.values():
        for part in running.sources.parts:
            for source in part.sources:
                if running.query.join is not None:
                    joined.add(source.fragment)
                else:
                    own = TakenFragment(part.query.name, source.fragment, source.derivation, part.query.fragment)
                    taken[own.query, own.fragment] = own
    return tuple(own for own in taken.values() if own.fragment not in joined), frozenset(joined)


def _gathered(found: Sequence[GatherFindings]) -> list[Gathered]:
    """Return what tasks have found as one event per fragment, in the order in which fragments landed."""
    facts = sorted((fact for findings in found for fact in findings.facts), key=lambda fact: fact.position)
    records: dict[PartGroup, list[tuple[str, int, int]]] = {}
    senders: dict[PartGroup, set[tuple[str, int]]] = {}
    for fact in facts:
        for group, origin, slice_us in fact.senders:
            senders.setdefault(group, set()).add((origin, slice_us))
        for group, origin, slice_us, count in fact.records:
            records.setdefault(group, []).append((origin, slice_us, count))
    events = []
    for group in senders:
        tables = [findings.parts[group] for findings in found if group in findings.parts]
        parts = concat_rows(tables) if tables else make_parts([])
        events.append(Gathered(group[0], parts, tuple(records.get(group, ())), tuple(sorted(senders[group])), group[1]))
    return events
