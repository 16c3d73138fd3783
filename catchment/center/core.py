"""The center core: open slices, progress, closing, revisions. Pure: events in, actions out.

A core holds one shard of the keys. It keeps partials of open slices only; a closed window's states live in the
result table and are recalled when late partials touch them, so that memory is bounded by what is open and the
cost of a repair by what was late.

Invariants:
- A partial is merged into each window that contains its slice exactly once.
- A window closes when the mark of every site has passed its end, or, `freshness` after the first site passed it,
  without the sites that are missing. A site's mark counts only when every segment up to the one that states it is in.
- A window's status never goes back: on_time (a site is missing, or has shed records of it), exact (nothing
  outstanding), final (the horizon has passed too). Revisions of a window count 1, 2, 3, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from catchment.center.events import (
    Action,
    CenterQuery,
    Event,
    Landed,
    Merged,
    QueryAdded,
    QueryDropped,
    Recalled,
    Ticked,
)
from catchment.center.frontier import Frontier
from catchment.center.windows import QueryWindows
from catchment.errors import CenterError
from catchment.wire.messages import Repaired, Shed

Snapshot = tuple[dict[str, Any], dict[str, pa.Table]]


class CenterCore:
    """Drives the windows of every query by what lands from every site."""

    def __init__(self) -> None:
        self.frontiers: dict[str, Frontier] = {}
        self.queries: dict[str, QueryWindows] = {}

    def handle(self, event: Event, now_us: int) -> tuple[Action, ...]:
        """Take one event; the actions that follow from it, in order."""
        match event:
            case QueryAdded(query):
                self._add(query)
            case QueryDropped(name):
                self.queries.pop(name, None)
            case Recalled(query, states):
                self._query(query).recall(states)
            case Merged(fragment, partials, records):
                for windows in self._fed_by(fragment):
                    windows.merge(partials, records)
            case Landed():
                self._land(event)
            case Ticked():
                return tuple(a for q in self.queries.values() for a in q.settle(self._marks(q.query), now_us))
        return ()

    def _land(self, landed: Landed) -> None:
        """What was shed counts at once; what was repaired, when everything sent before it is in too."""
        for shed in landed.shed:
            if isinstance(shed, Shed):
                for windows in self._fed_by(shed.fragment):
                    windows.debts.shed(landed.origin, shed)
        for passed in self.frontiers.setdefault(landed.origin, Frontier()).land(landed):
            for fact in passed.shed:
                if isinstance(fact, Repaired):
                    for windows in self._fed_by(fact.fragment):
                        windows.debts.repaired(passed.origin, fact)

    def touched(self, merged: Merged) -> Iterator[tuple[str, pa.Table]]:
        """Which published states must be recalled before `merged` is handled:
        per query a table (window_start_us, keys...)."""
        for query in self._fed_by(merged.fragment):
            wanted = query.touched(merged.partials)
            if wanted.num_rows:
                yield query.query.name, wanted

    def is_waiting(self, now_us: int) -> bool:
        """Whether some window has been waiting for a missing site long enough: a `Ticked` would publish."""
        return any(q.is_due(self._marks(q.query), now_us) for q in self.queries.values())

    def marks(self, name: str) -> Mapping[str, int]:
        """How far each site of a query has come."""
        return self._marks(self._query(name).query)

    def _marks(self, query: CenterQuery) -> dict[str, int]:
        none = Frontier()
        return {s: self.frontiers.get(s, none).mark(query.fragment.name) for s in query.sites}

    def _add(self, query: CenterQuery) -> None:
        if query.name in self.queries:
            raise CenterError(f"query {query.name!r} is already running", hint="drop it first")
        self.queries[query.name] = QueryWindows(query)

    def _query(self, name: str) -> QueryWindows:
        if name not in self.queries:
            raise CenterError(f"query {name!r} is not running; running are {sorted(self.queries)}")
        return self.queries[name]

    def _fed_by(self, fragment: str) -> list[QueryWindows]:
        return [q for q in self.queries.values() if q.query.fragment.name == fragment]

    def snapshot(self) -> Snapshot:
        """All state but the queries themselves, which their owner adds again before restoring."""
        facts: dict[str, Any] = {
            "frontiers": {s: f.to_dict() for s, f in self.frontiers.items()},
            "queries": {},
        }
        tables: dict[str, pa.Table] = {}
        for name, windows in self.queries.items():
            facts["queries"][name] = windows.to_dict()
            tables[name] = windows.open_table()
        return facts, tables

    def restore(self, snapshot: Snapshot) -> None:
        """Take back the state of a snapshot; queries that it does not know start empty."""
        facts, tables = snapshot
        self.frontiers = {s: Frontier.from_dict(d) for s, d in facts["frontiers"].items()}
        for name, state in facts["queries"].items():
            if name in self.queries:
                self.queries[name].from_dict(state, tables[name])

    def validate(self) -> None:
        """Assert the invariants that can be seen from inside."""
        for windows in self.queries.values():
            windows.validate()
