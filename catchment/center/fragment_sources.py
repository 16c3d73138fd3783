"""Which fragment each slice of a query is taken from.

A query's partials come from a shared fragment by a derivation. A query may switch to another fragment at a slice
boundary, because both yield the same partials: every slice is taken from exactly one fragment, and a window that spans
the boundary is merged of both. Where one fragment hands over to another, each site has a boundary of its own.

A query that comes during a run begins where every site has begun to compute its fragment, so that no window is
published that was seen only in part. It does not wait for a site that is away longer than its freshness: that site
counts from where it begins, and the windows before name it (`catchment.center.roster`).

Invariants: at every site, the sources of a query cover the time from its start on without gap or overlap. What lands
of a fragment before it is known where its source starts waits, and is then taken or passed over: never lost and never
taken twice.
Beyond `MAX_WAITING_BYTES` the oldest of it is passed over, and the source starts after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from catchment.aggregates.content_bytes import content_bytes
from catchment.center.query import CenterQuery
from catchment.center.roster import Roster, next_boundary
from catchment.center.shards.parts import is_parts, select_query
from catchment.optimizer.sharing.derive import Derivation, derive
from catchment.progress.frontier import Frontier
from catchment.query.fragment import SLICE_COLUMN
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing

RecordCounts = tuple[tuple[str, int, int], ...]  # (site, slice, raw records)
Arrival = tuple[pa.Table, RecordCounts]  # partials that have landed, with the raw records behind them

MAX_WAITING_BYTES = 64 * 2**20  # of arrivals of one source that wait until its start is known


# version 3 has takes_over
@stored(version=3, migrations={1: lambda fields: fields | {"heard_at_us": None, "late": ()}, 2: dict})
@dataclass
class FragmentSource:
    """The slices in [start, until) that a query takes from one fragment.

    `start_us` is unknown (None) until every site has begun to compute the fragment. One that takes over starts where
    the source before it does: each site has ended that one where it began this one, so no record of it is in both.
    """

    fragment: str
    derivation: Derivation | None  # None: the fragment's partials are the query's own
    floor_us: int = START_OF_TIME_US  # slices before it were merged before anyone listened, or are final
    waits: bool = False  # whether the first mark of each site says where it began
    start_us: int | None = None
    until_us: int = END_OF_TIME_US
    waiting: list[Arrival] = field(default_factory=list)  # arrivals that wait until the start is known
    heard_at_us: int | None = None  # when the first site had said where it began
    late: tuple[str, ...] = ()  # sites that had not said so when the source started
    takes_over: bool = False  # from the source before it, at every site where that site begins
    waiting_bytes: int = field(default=0, metadata={"stored": False})

    def find_start(
        self, query: CenterQuery, roster: Roster, frontiers: Mapping[str, Frontier], waited_us: int | None
    ) -> bool:
        """Learn where it starts, if it can be known by now; return whether that was learned just now.

        Every site says where it begins with its first mark. Those that have not said it are not waited for when the
        first one did so at `waited_us` or before.
        """
        if self.start_us is not None:
            return False
        known = {site: self.first_mark(site, frontiers) for site in roster.present} if self.waits else {}
        marks = [mark for mark in known.values() if mark is not None]
        has_waited = self.heard_at_us is not None and waited_us is not None and self.heard_at_us <= waited_us
        if len(marks) < len(known) and not has_waited:
            return False
        self.late = tuple(site for site, mark in known.items() if mark is None)
        self.start_us = next_boundary(Slicing.of([query.window]), max((self.floor_us, *marks)))
        return True

    def note_heard(self, query: CenterQuery, frontiers: Mapping[str, Frontier], now_us: int) -> None:
        """Note when the first site has said where it begins."""
        sites = filter(query.counts, frontiers)
        is_heard = self.waits and any(self.first_mark(site, frontiers) is not None for site in sites)
        if is_heard and self.heard_at_us is None:
            self.heard_at_us = now_us

    def note_late_beginners(self, query: CenterQuery, roster: Roster, frontiers: Mapping[str, Frontier]) -> None:
        """Let the sites that were not waited for count from where they have begun; what they had before never comes."""
        for site in self.late:
            mark = self.first_mark(site, frontiers)
            if site not in roster.present:
                self.late = tuple(s for s in self.late if s != site)
            elif mark is not None and self.start_us is not None:
                self.late = tuple(s for s in self.late if s != site)
                begin_us = next_boundary(Slicing.of([query.window]), mark)
                if begin_us > max(self.start_us, roster.from_us(site)):
                    roster.end(site, begin_us, self.start_us)
                    roster.begin(site, begin_us)

    def hold(self, arrival: Arrival) -> None:
        """Let an arrival wait until the start is known; beyond the bound the source starts after the oldest."""
        if self.waiting_bytes == 0:  # it is not stored
            self.waiting_bytes = sum(content_bytes(table) for table, _ in self.waiting)
        self.waiting.append(arrival)
        self.waiting_bytes += content_bytes(arrival[0])
        while self.waiting_bytes > MAX_WAITING_BYTES and len(self.waiting) > 1:
            table, _ = self.waiting.pop(0)
            self.waiting_bytes -= content_bytes(table)
            self.start_after(table)

    def start_after(self, passed_over: pa.Table) -> None:
        """Start after every slice of partials that are not taken."""
        if self.start_us is None and passed_over.num_rows:
            self.floor_us = max(self.floor_us, pc.max(passed_over[SLICE_COLUMN]).as_py() + 1)

    def first_mark(self, site: str, frontiers: Mapping[str, Frontier]) -> int | None:
        return frontiers[site].first_mark(self.fragment) if site in frontiers else None

    def own_keys(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Return what the query calls these keys of the fragment; nothing where it does not group by all of them."""
        if self.derivation is None:
            return tuple(keys)
        own = dict(self.derivation.keys)
        return tuple(own[key] for key in keys) if all(key in own for key in keys) else ()

    def may_take(self, slice_us: int) -> bool:
        """Return whether a slice of the fragment is the query's, as far as that is known."""
        return (self.start_us is None or max(self.start_us, self.floor_us) <= slice_us) and slice_us < self.until_us

    def derive(self, table: pa.Table) -> pa.Table:
        """Derive the query's own partials from the fragment's."""
        return derive(table, self.derivation) if self.derivation is not None else table

    def restrict(self, arrival: Arrival) -> Arrival:
        """Return the part of some partials that lies in its slices."""
        table, records = arrival
        assert self.start_us is not None
        from_us = max(self.start_us, self.floor_us)
        if from_us > START_OF_TIME_US or self.until_us < END_OF_TIME_US:
            slices = table[SLICE_COLUMN]
            inside = pc.and_(pc.greater_equal(slices, from_us), pc.less(slices, self.until_us))
            table = table.filter(inside)
            records = tuple(r for r in records if from_us <= r[1] < self.until_us)
        return table, records

    def take_waiting(self) -> list[Arrival]:
        """Return what has waited for its start, once."""
        waiting = self.waiting
        self.waiting = []
        return [self.restrict(arrival) for arrival in waiting]


class FragmentSources:
    """The sources of one query over one stream, oldest first."""

    def __init__(self, query: CenterQuery, sources: list[FragmentSource], roster: Roster | None = None) -> None:
        self.query = query
        self.sources = sources
        self.roster = roster or Roster.of(query.sites)

    @classmethod
    def begin(cls, query: CenterQuery, floor_us: int = START_OF_TIME_US, waits: bool = False) -> FragmentSources:
        """Begin a query; `floor_us` is behind what of its fragment was merged before anyone listened."""
        start_us = START_OF_TIME_US if floor_us == START_OF_TIME_US and not waits else None
        return cls(query, [FragmentSource(query.source_fragment, query.derivation, floor_us, waits, start_us)])

    @property
    def parts(self) -> tuple[FragmentSources, ...]:
        """What it is made of over one stream each: itself."""
        return (self,)

    @property
    def fragments(self) -> tuple[str, ...]:
        return tuple(source.fragment for source in self.sources)

    @property
    def start_us(self) -> int | None:
        """From when on windows are answered, if that is known."""
        return self.sources[0].start_us

    @property
    def taken_from_us(self) -> int | None:
        """From when on slices are taken: later than the start, where windows are computed again."""
        first = self.sources[0]
        return None if first.start_us is None else max(first.start_us, first.floor_us)

    def newest_fragment(self, query: str) -> str:
        """Return the fragment that a query, or a side of one, takes its newest slices from."""
        assert query == self.query.name
        return self.sources[-1].fragment

    def move(self, derivation: Derivation, floor_us: int, waits: bool, takes_over: bool = False) -> None:
        """Take the slices from another fragment, from where that is possible on. One move at a time."""
        if self.sources[-1].fragment != derivation.fragment:
            self.sources.append(FragmentSource(derivation.fragment, derivation, floor_us, waits, takes_over=takes_over))

    def take(
        self, fragment: str, table: pa.Table, records: RecordCounts, sites: Sequence[str] = ()
    ) -> Iterator[Arrival]:
        """Yield the query's own partials in what landed of a fragment; they wait where the start is not known.

        Where sites are told apart, `sites` are those that the partials may be of.
        """
        if sites and not any(map(self.query.counts, sites)):
            return
        for source in (s for s in self.sources if s.fragment == fragment):
            own = select_query(table, self.query.name) if is_parts(table) else source.derive(table)
            arrival = own, records
            if source.start_us is None:
                source.hold(arrival)
            else:
                yield source.restrict(arrival)

    def find_starts(
        self, frontiers: Mapping[str, Frontier], newest: Mapping[str, int], now_us: int
    ) -> Iterator[Arrival]:
        """Learn where sources start; yield what has waited for that. `newest`: the newest slice of each fragment."""
        for source, heir in zip(self.sources, self.sources[1:], strict=False):
            if heir.takes_over and source.start_us is None:  # what was passed over of one is missing in both
                source.floor_us = max(source.floor_us, heir.floor_us)
        before: FragmentSource | None = None
        for place, source in enumerate(self.sources):
            if before is not None and source.takes_over:
                if before.start_us is None:
                    return
                yield from self._take_over(before, source, frontiers)
                before = source
                continue
            if before is not None and source.start_us is None:
                # Sites may have handed over to the one before at an instant that is still ahead: until then they send
                # what is before that one.
                ended_us = max((s.until_us for s in self.sources[: place - 1]), default=START_OF_TIME_US)
                if before.start_us is None or ended_us == END_OF_TIME_US:
                    return
                # What was taken of the fragment before stays taken: the next one starts after it.
                taken_us = newest.get(before.fragment, START_OF_TIME_US) + 1
                source.floor_us = max(source.floor_us, before.start_us, taken_us, ended_us)
            source.note_heard(self.query, frontiers, now_us)
            # A query that moves has another source meanwhile, and can wait for every site.
            waited_us = (
                None if before is not None or self.query.freshness_us is None else now_us - self.query.freshness_us
            )
            if source.find_start(self.query, self.roster, frontiers, waited_us):
                if before is not None and source.start_us is not None:
                    before.until_us = source.start_us
                yield from source.take_waiting()
            if source.late:
                source.note_late_beginners(self.query, self.roster, frontiers)
            before = source

    def _take_over(
        self, before: FragmentSource, source: FragmentSource, frontiers: Mapping[str, Frontier]
    ) -> list[Arrival]:
        """Let a source take over from the one before it; return what has waited for that.

        The one before ends when every site has said where it began the other: behind the last of these instants.
        """
        begins = [source.first_mark(site, frontiers) for site in self.roster.present]
        known = [begin_us for begin_us in begins if begin_us is not None]
        if len(known) == len(begins) and before.until_us == END_OF_TIME_US:
            before.until_us = max([before.start_us or START_OF_TIME_US, *known])
        if source.start_us is not None:
            return []
        source.start_us, source.floor_us = before.start_us, before.floor_us
        return source.take_waiting()

    def forget_final(self, final_us: int, frontiers: Mapping[str, Frontier], awaited: Collection[str] = ()) -> None:
        """Drop sources, and lives of sites, whose windows are all final.

        Windows may be final without a site that is away. What it has yet to send of a source is registered when it
        comes, so the source stays until every site has passed it, and while its fragment is `awaited`: the rest of what
        was shed of it, or deferred on its way, may come after a mark that passes it.
        """
        self.roster.forget_final(final_us - self.query.window.size_us)
        while len(self.sources) > 1 and self.sources[1].start_us is not None:
            first = self.sources[0]
            if final_us < first.until_us + self.query.window.size_us or not self._is_passed(first, frontiers):
                return
            if first.fragment in awaited:
                return
            del self.sources[0]
            # What comes for the windows before is registered as too late.
            self.sources[0].start_us, self.sources[0].floor_us = first.start_us, first.floor_us

    def _is_passed(self, source: FragmentSource, frontiers: Mapping[str, Frontier]) -> bool:
        """Return whether every site that counts in a source has sent everything of it."""
        sites = (site for site in self.roster.present if self.roster.from_us(site) < source.until_us)
        return all(site in frontiers and self._mark(frontiers[site], source) >= source.until_us for site in sites)

    def mark(self, frontier: Frontier) -> int:
        """Return how far a site has come with the query's slices."""
        mark = self._mark(frontier, self.sources[0])
        reached_us = START_OF_TIME_US  # where the source begins at this site that the mark is one of
        for before, after in zip(self.sources, self.sources[1:], strict=False):
            until_us = frontier.first_mark(after.fragment) if after.takes_over else before.until_us
            if after.start_us is None or until_us is None or mark < until_us:
                return mark
            reached_us = max(reached_us, until_us)
            mark = max(reached_us, self._mark(frontier, after))
        return mark

    def newest_mark(self, frontier: Frontier) -> int:
        """Return how far a site has come with any of its sources: one that it has left may wait for a relay."""
        begun = (self._mark(frontier, source) for source in self.sources if source.start_us is not None)
        return max([self.mark(frontier), *begun])

    def _mark(self, frontier: Frontier, source: FragmentSource) -> int:
        """Return how far a site has come with a fragment, as far as this query waits for it."""
        return frontier.mark(source.fragment, "" if self.query.contract is None else self.query.name)
