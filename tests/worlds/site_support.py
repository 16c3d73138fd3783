"""Building blocks for tests of the site: a fragment, partials of raw records, and what a run has sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from catchment.aggregates import make_aggregate
from catchment.aggregates.partials import lift
from catchment.query.fragment import Fragment, Key
from catchment.site.core import SiteCore
from catchment.site.events import Absorbed, Event
from catchment.timeline import WindowSpec
from catchment.wire.messages import Progress, Updates

WINDOW_US = 10
Record = tuple[int, str, int]  # event time, key, value


def fragment(name: str = "f", windows: tuple[WindowSpec, ...] = (WindowSpec.tumbling(WINDOW_US),)) -> Fragment:
    return Fragment(
        name=name,
        stream="s",
        event_time="ts",
        keys=(Key("k", "k", pa.string()),),
        aggregates=(
            make_aggregate("sum", "v", pa.int64(), name="total"),
            make_aggregate("count", "*", None, name="n"),
        ),
        windows=windows,
    )


def absorbed(of: Fragment, records: Iterable[Record]) -> Absorbed:
    """The event of a micro-batch of raw records."""
    rows = list(records)
    raw = pa.table(
        {
            "slice_us": pa.array([of.slicing.start_of(ts) for ts, _, _ in rows], pa.int64()),
            "k": pa.array([k for _, k, _ in rows], pa.string()),
            "v": pa.array([v for _, _, v in rows], pa.int64()),
        }
    )
    partials = lift(raw, ("slice_us", "k"), of.aggregates, {"total": "v", "n": None})
    return Absorbed(of.name, partials, tuple(Counter(raw["slice_us"].to_pylist()).items()))


@dataclass
class Received:
    """The far end of the link: merges every update once, and checks each progress against what it has."""

    of: Fragment
    totals: dict[tuple[int, str], list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    records: Counter[int] = field(default_factory=Counter)
    rows: int = 0
    mark_us: int = -(2**62)
    late_rows: int = 0

    def take(self, actions: Iterable[object]) -> None:
        for action in actions:
            for message in action.messages:  # type: ignore[attr-defined]
                self._take(message)

    def _take(self, message: Updates | Progress) -> None:
        if isinstance(message, Progress):
            assert message.low_mark_us > self.mark_us, "a mark that does not rise"
            assert message.updates_total == self.rows
            self.mark_us = message.low_mark_us
            return
        late = {self.of.slicing.end_of(s) <= self.mark_us for s in message.table["slice_us"].to_pylist()}
        assert len(late) < 2, "late and timely partials in one message"
        self.late_rows += message.rows if True in late else 0
        self.rows += message.rows
        self.records.update(dict(message.records))
        total, count = (s.name for a in self.of.aggregates for s in a.states)
        for row in message.table.to_pylist():
            state = self.totals[row["slice_us"], row["k"]]
            state[0] += row[total]
            state[1] += row[count]


def recomputed(of: Fragment, records: Iterable[Record]) -> dict[tuple[int, str], list[int]]:
    """The naive answer: one pass over the raw records."""
    answer: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for ts, key, value in records:
        state = answer[of.slicing.start_of(ts), key]
        state[0] += value
        state[1] += 1
    return answer


def drive(core: SiteCore, events: Iterable[tuple[Event, int]], far: Received) -> None:
    """Handle events at their times, validating after each."""
    for event, now_us in events:
        far.take(core.handle(event, now_us))
        core.validate()
