"""Bringing the center to what is deployed: which queries come, go, or change their fragment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from catchment.center.core import CenterCore
from catchment.center.events import CenterQuery, Event, QueryAdded, QueryDropped, QueryMoved


def changes(core: CenterCore, queries: Iterable[CenterQuery], begun: Collection[str]) -> Iterator[Event]:
    """The events that bring the core there; none where it is there already."""
    wanted = {q.name: q for q in queries}
    yield from (QueryDropped(name) for name in list(core.queries) if name not in wanted)
    for name, query in wanted.items():
        if name not in core.queries:
            yield QueryAdded(query, any(part.feed in begun for part in query.parts))
            continue
        for part in query.parts:
            if part.derivation is not None and core.intakes[name].feed(part.name) != part.feed:
                yield QueryMoved(name, part.derivation, part.feed in begun)
