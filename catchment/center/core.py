"""The center core: open slices, progress, closing, revisions. Pure: events in, actions out.

A core holds one shard of the keys. It keeps partials of open slices only; a closed window's states live in the
result table and are recalled when late partials touch them, so that memory is bounded by what is open and the
cost of a repair by what was late.

Invariants:
- A partial is merged into each window that contains its slice exactly once.
- A window closes when the mark of every site has passed its end, or, `freshness` after the first site passed it,
  without the sites that are missing. A site's mark counts only when every segment up to the one that states it is in.
- A query that comes or goes changes nothing of another (`catchment.center.fragment_sources` says where it begins).
- A window's status never goes back: early (still open), on_time (a site is missing, expects more, or has shed records
  of it), exact (nothing outstanding), final (the horizon has passed too). Revisions of a window count 1, 2, 3, ...
- A record is of one of three classes (Yang et al., HPM, section 2): its window is open, and it is merged; closed, and
  it is registered until a repair merges it; or final, and it is registered for good. None is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catchment.center.events import (
    Action,
    Event,
    QueryAdded,
    QueryDropped,
    QueryMoved,
    Recalled,
)
from catchment.center.fragment_sources import Intake, LaterWindows
from catchment.center.join.windows import JoinedIntake, make_intake, make_windows
from catchment.center.windows.closed import SitesSay
from catchment.center.windows.open import QueryWindows
from catchment.errors import CenterError
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.progress.frontier import Frontier, land, shed_in
from catchment.query.fragment import SLICE_COLUMN
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import Repaired

Snapshot = tuple[dict[str, Any], dict[str, pa.Table]]


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that is due: of which windows, which published rows it changes (window_start_us, keys...), and why."""

    query: str
    windows: tuple[int, ...]
    wanted: pa.Table
    reason: str


class CenterCore:
    """Drives the windows of every query by what lands from every site."""

    def __init__(self) -> None:
        self.frontiers: dict[str, Frontier] = {}
        self.queries: dict[str, QueryWindows] = {}
        self.intakes: dict[str, Intake | JoinedIntake] = {}
        self.newest: dict[str, int] = {}  # fragment -> the newest slice that was merged of it

    def handle_all(self, events: Sequence[Event], now_us: int) -> tuple[Action, ...]:
        """Take the events of one entry in; return the actions that follow from them, in order."""
        return tuple(action for event in events for action in self.handle(event, now_us))

    def handle(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Take one event; the actions that follow from it, in order."""
        match event:
            case QueryAdded():
                self._add(event)
            case QueryDropped(name):
                self.queries.pop(name, None)
                self.intakes.pop(name, None)
            case QueryMoved(name, derivation, waits):
                self._query(name)
                self.intakes[name].move(derivation, self._floor_us(derivation.fragment), waits)
            case Recalled(query, starts, states, reason):
                if query in self.queries:  # else it was dropped meanwhile
                    return tuple(self.queries[query].repair(starts, states, reason, self._say(query), now_us))
            case Gathered():
                self._merge(event, now_us)
            case Landed():
                self._land(event)
            case Ticked():
                return tuple(a for name in self.queries for a in self._settle(name, now_us))
        return ()

    def _land(self, landed: Landed) -> None:
        """What was shed counts at once; what was repaired, when everything sent before it is in too."""
        for origin, shed in shed_in(landed):
            for windows in self._fed_by(shed.fragment):
                windows.outstanding.shed(origin, shed)
        for origin, fact in land(self.frontiers, landed):
            if isinstance(fact, Repaired):
                for windows in self._fed_by(fact.fragment):
                    windows.outstanding.repaired(origin, fact)

    def repairs(self, now_us: int, everything: bool = False) -> Iterator[Repair]:
        """The repairs that are due, or all that there could be: each becomes a `Recalled` when the published states
        that it wants have been fetched. Nothing else may reach the core between the question and that event."""
        for name, windows in self.queries.items():
            if windows.late:
                for reason, starts in windows.due(self._say(name), now_us, everything).items():
                    yield Repair(name, starts, windows.wanted(starts), reason)

    @property
    def outstanding(self) -> int:
        """Registered late records that no repair has merged yet."""
        return sum(q.late.records for q in self.queries.values())

    def is_waiting(self, now_us: int) -> bool:
        """Whether a `Ticked` would publish though nothing landed: a window has waited long enough, or early answers are
        due."""
        return any(self._begun(n) and q.is_due(self.marks(n), now_us) for n, q in self.queries.items())

    def marks(self, name: str) -> Mapping[str, int]:
        """How far each site of a query has come."""
        none, intake = Frontier(), self.intakes[self._query(name).query.name]
        return {
            s: min(p.mark(self.frontiers.get(s, none)) for p in intake.parts if s in p.query.sites)
            for s in intake.query.sites
        }

    @property
    def fragments(self) -> frozenset[str]:
        """The fragments that some query takes something from."""
        return frozenset(f for intake in self.intakes.values() for f in intake.fragments)

    def bounds(self) -> dict[str, int]:
        """Fragments that no query takes anything from after an instant, with that instant."""
        parts = [p for intake in self.intakes.values() for p in intake.parts]
        open_ended = {p.inflows[-1].fragment for p in parts}
        ends: dict[str, int] = {}
        for part in parts:
            for inflow in part.inflows[:-1]:
                ends[inflow.fragment] = max(ends.get(inflow.fragment, START_OF_TIME_US), inflow.until_us)
        return {f: end for f, end in ends.items() if f not in open_ended}

    def _settle(self, name: str, now_us: int) -> Iterator[Action]:
        windows, intake = self.queries[name], self.intakes[name]
        for own, records in intake.settle(self.frontiers, self.newest):
            self._begin(name)
            windows.merge(own, records, now_us)
        if self._begun(name):
            self._begin(name)
            yield from windows.settle(self._say(name), now_us)
            intake.forget(windows.final_us)
            for frontier in self.frontiers.values():
                frontier.forget(name, windows.closed_us)

    def _say(self, name: str) -> SitesSay:
        none, marks, query = Frontier(), self.marks(name), self.queries[name].query
        known = {s: self.frontiers.get(s, none) for s in query.sites}
        overs = {s: f.over(name) for s, f in known.items()} if query.contract else marks
        return SitesSay(marks, overs, {s: f.closings.get(name, {}) for s, f in known.items()})

    def _begun(self, name: str) -> bool:
        return self.intakes[name].start_us is not None

    def _begin(self, name: str) -> None:
        """Answer from the first window on that is wholly seen."""
        start, windows = self.intakes[name].start_us, self.queries[name]
        if start is not None and start > START_OF_TIME_US and not isinstance(windows.query.window, LaterWindows):
            spec = windows.query.window
            later = LaterWindows(spec.size_us, spec.slide_us, spec.offset_us, start)
            windows.query = replace(windows.query, window=later)

    def _merge(self, event: Gathered, now_us: int) -> None:
        for name, windows in self.queries.items():
            for own, records in self.intakes[name].take(event.fragment, event.partials, event.records):
                windows.merge(own, records, now_us)
        if event.partials.num_rows:
            newest = pc.max(event.partials[SLICE_COLUMN]).as_py()
            self.newest[event.fragment] = max(self.newest.get(event.fragment, START_OF_TIME_US), newest)

    def _fed_by(self, fragment: str) -> list[QueryWindows]:
        return [self.queries[name] for name, intake in self.intakes.items() if fragment in intake.fragments]

    def _floor_us(self, fragment: str) -> int:
        """Just after the newest slice that was merged of a fragment before now."""
        return self.newest[fragment] + 1 if fragment in self.newest else START_OF_TIME_US

    def _add(self, event: QueryAdded) -> None:
        query = event.query
        if query.name in self.queries:
            raise CenterError(f"query {query.name!r} is already running", hint="drop it first")
        self.queries[query.name] = make_windows(query)
        self.intakes[query.name] = make_intake(query, self._floor_us, event.waits)

    def _query(self, name: str) -> QueryWindows:
        if name not in self.queries:
            raise CenterError(f"query {name!r} is not running; running are {sorted(self.queries)}")
        return self.queries[name]

    def snapshot(self) -> Snapshot:
        """All its state, the definitions of its queries included."""
        facts: dict[str, Any] = {
            "frontiers": {s: f.to_dict() for s, f in self.frontiers.items()},
            "newest": dict(self.newest),
            "queries": {},
        }
        tables: dict[str, pa.Table] = {}
        for name, windows in self.queries.items():
            intake = self.intakes[name]
            facts["queries"][name] = {
                "query": intake.query,
                "inflows": intake.to_dict(),
                "windows": windows.to_dict(),
            }
            tables[name], tables[f"{name}/late"] = windows.open_table(), windows.late_table()
        return facts, tables

    def restore(self, snapshot: Snapshot) -> None:
        """Take back the state of a snapshot; queries that it does not know start empty."""
        facts, tables = snapshot
        self.frontiers = {s: Frontier.from_dict(d) for s, d in facts["frontiers"].items()}
        self.newest = dict(facts["newest"])
        for name, state in facts["queries"].items():
            query = self.intakes[name].query if name in self.intakes else state["query"]
            self.queries[name], self.intakes[name] = make_windows(query), make_intake(query)
            self.intakes[name].from_dict(state["inflows"])
            self._begin(name)
            self.queries[name].from_dict(state["windows"], tables[name], tables[f"{name}/late"])

    def validate(self) -> None:
        """Assert the invariants that can be seen from inside."""
        for windows in self.queries.values():
            windows.validate()
