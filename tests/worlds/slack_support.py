"""A small world for slack controllers: sources that report at a pace, and a clock that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from catchment.quality.contract import Contract, Measure
from catchment.sim.order.imputation import parse_simulated_slack
from catchment.site.slack import CloseDecision, SlackController, SlackTask, SourceBatch
from catchment.timeline import SECOND_US, Slicing, WindowSpec

WINDOW = WindowSpec(SECOND_US, SECOND_US // 5)
STEP_US = 20_000
NAMES = ("adaptive", "adaptive:imputed", "progress", "conformal", "mp-k-slack", "pd", "fixed:0.5")


def task(
    measure: str = "sum",
    max_wait_s: float = 8.0,
    max_ahead_s: float = 5.0,
    error: float = 0.05,
    confidence: float = 0.95,
) -> SlackTask:
    times = (round(max_wait_s * SECOND_US), round(max_ahead_s * SECOND_US))
    return SlackTask(WINDOW, Measure.parse(measure), Contract(error, confidence), *times)


@dataclass(frozen=True)
class Source:
    """Records every `pace_us`, each `delay(event_us)` on its way, from `begin_us` until `stop_us`."""

    name: str
    pace_us: int = 10_000
    delay: Callable[[int], int] = lambda _: 5_000
    begin_us: int = 0
    stop_us: int = 2**60
    skew_us: int = 0  # its clock is this much ahead
    value: float = 1.0


@dataclass
class World:
    """Runs a controller over sources and keeps what it closed."""

    controller: SlackController
    closings: list[CloseDecision] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)

    def run(self, sources: Iterable[Source], until_us: int, extra: Sequence[tuple[int, str, int]] = ()) -> World:
        """Deliver all records up to a moment; `extra` are single records (arrival, source, event)."""
        rows = [(a, s.name, e + s.skew_us, s.value) for s in sources for a, e in _records(s, until_us)]
        rows += [(a, name, e, 1.0) for a, name, e in extra]
        rows.sort(key=lambda row: row[0])
        steps = -(-np.array([r[0] for r in rows]) // STEP_US)
        for step in range(1, until_us // STEP_US + 1):
            low, high = np.searchsorted(steps, [step, step + 1])
            self.deliver(rows[low:high], step * STEP_US)
        return self

    def deliver(self, rows: Sequence[tuple[int, str, int, float]], now_us: int) -> None:
        self.controller.observe(batch_of(rows), now_us)
        self.closings += self.controller.advance(now_us)
        self.marks.append(self.controller.low_mark_us)

    def decide(self, end_us: int, now_us: int) -> CloseDecision:
        """What the controller's rule says of any window, without closing it."""
        return self.controller.rule.decide(self.controller.observations, end_us, now_us)

    def latencies_s(self) -> np.ndarray:
        return np.array([(c.at_us - c.end_us) / SECOND_US for c in self.closings])


def batch_of(rows: Sequence[tuple[int, str, int, float]]) -> SourceBatch:
    return SourceBatch.of_records(
        Slicing.of([WINDOW]), [r[1] for r in rows], np.array([r[2] for r in rows], dtype=np.int64), [r[3] for r in rows]
    )


def _records(source: Source, until_us: int) -> list[tuple[int, int]]:
    """(arrival, event) of one source, in its own order: none arrives before its predecessor."""
    last, made = 0, []
    for event in range(source.begin_us, min(source.stop_us, until_us), source.pace_us):
        last = max(last, event + source.delay(event))
        if last <= until_us:
            made.append((last, event))
    return made


def world(name: str = "adaptive", **options: float | str) -> World:
    return World(parse_simulated_slack(name).build(task(**options)))  # type: ignore[arg-type]


def fleet(number: int = 8, **options: object) -> list[Source]:
    return [Source(f"s{i}", **options) for i in range(number)]  # type: ignore[arg-type]


def stall(begin_s: float, length_s: float) -> Callable[[int], int]:
    """A delay that holds everything of an interval back until its end."""
    begin, end = round(begin_s * SECOND_US), round((begin_s + length_s) * SECOND_US)
    return lambda event: end - event + 5_000 if begin <= event < end else 5_000
