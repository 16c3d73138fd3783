"""How the rosters of all queries change when a site joins, retires, goes on with an empty disk, or is healed.

One instant, the boundary, holds for every query of a stream: before it a site that joins does not count, after it a
site that retires does not. It lies where a slice of every one of these queries starts, so that each slice of the site
counts as a whole or not at all; the consumer of the inbox leaves the others out (`catchment.progress.spans`).

Invariants: a boundary takes back nothing that was published: a site joins no window that is closed, and a site that
retires counts for all that was merged of it. What a new life of a site sends for event times that the old one has sent
is left out, so nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from catchment.center.events import RosterChange, SiteHealed, SiteJoined, SiteReplaced, SiteRetired
from catchment.center.fragment_sources import FragmentSources
from catchment.center.roster import Roster, Stay, next_common_boundary
from catchment.center.running_query import RunningQuery
from catchment.errors import CenterError
from catchment.progress.events import Gathered
from catchment.progress.frontier import Frontier
from catchment.progress.spans import ALL_OF_TIME, Span
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, Slicing


@stored(version=2, migrations={1: dict})  # version 2 has healed
@dataclass
class SiteRecords:
    """What a center remembers of each site, whatever queries come and go."""

    spans: dict[tuple[str, str], Span] = field(default_factory=dict)  # (stream, site) -> the slices that count
    newest: dict[tuple[str, str], int] = field(default_factory=dict)  # (fragment, sender) -> newest slice merged
    lives: dict[str, int] = field(default_factory=dict)  # site -> how often it was replaced or healed
    left_out: dict[str, int] = field(default_factory=dict)  # site -> raw records outside of its spans
    version: int = 0  # grows with every change of a roster
    healed: dict[str, int] = field(default_factory=dict)  # site -> the newest life that it began by being healed

    def span(self, stream: str, site: str) -> Span:
        """Return the slices of a stream for which a site counts."""
        return self.spans.get((stream, site), ALL_OF_TIME)

    def restrict(self, stream: str, roster: Roster) -> None:
        """Let sites count in the roster of a new query as they do for others, from their boundaries on.

        What a site had before it was replaced is lost; one that joined had nothing that counts.
        """
        for site in roster.present:
            from_us, _ = self.span(stream, site)
            if from_us > roster.from_us(site):
                is_replaced = self.lives.get(site, 0) > 0
                roster.stays[site] = [Stay(until_us=from_us, passed_us=START_OF_TIME_US)] if is_replaced else []
                roster.begin(site, from_us)

    def note_merged(self, event: Gathered) -> None:
        """Note how far the partials of each sender reach."""
        for sender, slice_us in event.senders:
            known_us = self.newest.get((event.fragment, sender), START_OF_TIME_US)
            self.newest[event.fragment, sender] = max(known_us, slice_us)


@dataclass(frozen=True)
class _Part:
    """A query over one stream, or a side of a join, and what it belongs to."""

    running: RunningQuery
    sources: FragmentSources

    @property
    def stream(self) -> str:
        return self.sources.query.fragment.stream

    @property
    def slicing(self) -> Slicing:
        return Slicing.of([self.sources.query.window])


@dataclass(frozen=True)
class RosterChanges:
    """Changes the rosters of the queries of a center core."""

    queries: Mapping[str, RunningQuery]
    frontiers: dict[str, Frontier]
    records: SiteRecords

    def change(self, event: RosterChange) -> None:
        """Let a site come or go."""
        self.records.version += 1
        match event:
            case SiteJoined():
                self._join(event)
            case SiteRetired():
                self._retire(event)
            case SiteReplaced():
                self._replace(event)
            case SiteHealed():
                self._heal(event)

    def has_completed(self, site: str, until_us: int) -> bool:
        """Return whether everything of a site before an instant is in, for every query: late, past and shed too."""
        parts = [part for part in self._parts() if site in part.sources.roster.present]
        return bool(parts) and all(self._has_passed(part, site, until_us) for part in parts)

    def _has_passed(self, part: _Part, site: str, until_us: int) -> bool:
        past = part.running.site_marks(self.frontiers).backfilling
        outstanding = part.running.windows.outstanding.batches.items()
        is_owed = any(
            name == site and not batch.gave_up and any(start_us < until_us for start_us in batch.lacking)
            for (name, _), batch in outstanding
        )
        reads_past = any(name == site for name, _, _ in past)
        return not is_owed and not reads_past and self._passed_us(part, site) >= until_us

    def _join(self, event: SiteJoined) -> None:
        """Let a site count from a boundary on."""
        parts = self._parts(event.queries)
        asked_us = self._heard_until_us(parts) if event.from_us is None else event.from_us
        from_us = self._align(parts, max([asked_us, *(p.running.windows.state.closed_us for p in parts)]))
        for part in parts:
            if event.site in part.sources.roster.present:
                raise CenterError(f"site {event.site!r} already counts for {part.sources.query.name!r}")
            part.sources.roster.begin(event.site, from_us)
            self._set_span(part.stream, event.site, (from_us, END_OF_TIME_US))

    def _retire(self, event: SiteRetired) -> None:
        """Let a site count no longer than until a boundary; what it has not passed of that is lost."""
        parts = [p for p in self._parts(event.queries) if event.site in p.sources.roster.present]
        until_us = self._end_us(parts, event.site, event.until_us)
        for part in parts:
            self._end_stay(part, event.site, until_us)
            low_us, _ = self.records.span(part.stream, event.site)
            self._set_span(part.stream, event.site, (low_us, until_us))

    def _replace(self, event: SiteReplaced) -> None:
        """End the present life of a site at a boundary, and let another one count from there on."""
        site = event.site
        parts = [p for p in self._parts() if site in p.sources.roster.present]
        from_us = self._end_us(parts, site, event.from_us)
        for part in parts:
            self._end_stay(part, site, from_us)
            part.sources.roster.begin(site, from_us)
            self._set_span(part.stream, site, (from_us, END_OF_TIME_US))
        self._begin_life(site, event.life)

    def _heal(self, event: SiteHealed) -> None:
        """Let a site count for what its former lives have lost; the queries compute it again."""
        site = event.site
        for part in self._parts():
            if site in part.sources.roster.present:
                part.sources.roster.heal(site)
                self._set_span(part.stream, site, (part.sources.roster.from_us(site), END_OF_TIME_US))
        if event.is_direct:
            self._begin_life(site, event.life)
        self.records.lives[site] = event.life
        self.records.healed[site] = event.life

    def _begin_life(self, site: str, life: int) -> None:
        """Forget how far the former life of a site had come with its segments."""
        self.frontiers.pop(site, None)
        for known in [k for k in self.records.newest if k[1] == site]:
            del self.records.newest[known]
        self.records.lives[site] = life

    def _end_us(self, parts: Iterable[_Part], site: str, asked_us: int | None) -> int:
        """Return the boundary at which a life ends: as asked, but not before it began or before what was merged."""
        least_us = START_OF_TIME_US
        for part in parts:  # until it began, the life before it counts
            least_us = max(least_us, part.sources.roster.from_us(site), self._merged_until_us(part, site))
        return self._align(parts, max(least_us, self._heard_until_us(parts) if asked_us is None else asked_us))

    def _end_stay(self, part: _Part, site: str, until_us: int) -> None:
        part.sources.roster.end(site, until_us, self._passed_us(part, site))
        if site not in part.running.sites:
            part.running.windows.outstanding.give_up(site)

    def _passed_us(self, part: _Part, site: str) -> int:
        """Return up to where everything of a site is in, late records too where it says when those are."""
        frontier = self.frontiers.get(site, Frontier())
        passed_us = part.sources.mark(frontier)
        if part.sources.query.contract is not None:
            passed_us = min(passed_us, frontier.complete_until_us(part.sources.query.name))
        return passed_us

    def _merged_until_us(self, part: _Part, site: str) -> int:
        """Return an instant behind everything that was merged of a site."""
        newest = (self.records.newest.get((f, site), START_OF_TIME_US) for f in part.sources.fragments)
        passed_us = self._passed_us(part, site)
        merged_us = START_OF_TIME_US if passed_us == END_OF_TIME_US else passed_us
        return max([merged_us, *(slice_us + 1 for slice_us in newest if slice_us > START_OF_TIME_US)])

    def _heard_until_us(self, parts: Iterable[_Part]) -> int:
        """Return an instant behind all that any site has stated or sent."""
        heard_us = START_OF_TIME_US
        for part in parts:
            fragments = part.sources.fragments
            newest = (slice_us + 1 for (fragment, _), slice_us in self.records.newest.items() if fragment in fragments)
            marks = (part.sources.mark(self.frontiers.get(s, Frontier())) for s in part.sources.roster.present)
            heard_us = max([heard_us, *newest, *(mark for mark in marks if mark < END_OF_TIME_US)])
        return heard_us

    def _align(self, parts: Iterable[_Part], at_us: int) -> int:
        return next_common_boundary([part.slicing for part in parts], at_us)

    def _set_span(self, stream: str, site: str, span: Span) -> None:
        self.records.spans[stream, site] = span

    def _parts(self, names: Iterable[str] | None = None) -> list[_Part]:
        """Return the queries over one stream that have these names, or all."""
        wanted = None if names is None else set(names)
        return [
            _Part(running, sources)
            for running in self.queries.values()
            for sources in running.sources.parts
            if wanted is None or sources.query.name in wanted
        ]
