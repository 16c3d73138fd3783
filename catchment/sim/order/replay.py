"""A trace replayed to a slack controller, micro-batch by micro-batch, as the live pipeline would.

A step of the clock is one micro-batch. What the controller is told is what a live site would tell it; what is
noted is when each window closed and what was said of it. All else (answers, errors, repair) follows from
these times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from catchment.arrays import Ints
from catchment.errors import SimulationError
from catchment.sim.order.trace import ArrivalTrace
from catchment.site.slack import CloseDecision, SlackController, SourceBatch
from catchment.timeline import Slicing, WindowSpec

MAX_STEPS = 1_000_000  # steps of the clock in one replay
NEVER = 2**62  # when a window that never closed was closed


@dataclass(frozen=True)
class Steps:
    """A trace by micro-batch: the rows `first[i]` to `first[i + 1]` came in the i-th busy step."""

    step_us: int
    at_us: Ints  # the clock at the end of each busy step
    first: Ints
    rows: SourceBatch

    def batches(self) -> Iterator[tuple[int, SourceBatch]]:
        """Yield every step from the first to the last: the clock goes on while nothing arrives."""
        nothing = self.rows.take(slice(0, 0))
        last = None
        for i, at in enumerate(self.at_us.tolist()):
            if last is not None:
                yield from ((idle, nothing) for idle in range(last + self.step_us, at, self.step_us))
            yield at, self.rows.take(slice(self.first[i], self.first[i + 1]))
            last = at


def step_of(trace: ArrivalTrace, step_us: int) -> Ints:
    """Return the clock at the end of the step in which each record arrives."""
    return np.asarray(-(-trace.arrival_us // step_us) * step_us, dtype=np.int64)


def cut_in_steps(trace: ArrivalTrace, spec: WindowSpec, step_us: int) -> Steps:
    """Return a trace as micro-batches of one length."""
    span = int(trace.arrival_us[-1] - trace.arrival_us[0])
    if step_us <= 0 or span // step_us > MAX_STEPS:
        raise SimulationError(
            f"a step of {step_us} us cuts a trace of {span / 1e6:.0f} s into {span // max(step_us, 1)} micro-batches",
            where=trace.name,
            hint=f"choose a positive step that makes at most {MAX_STEPS}",
        )
    at, place = np.unique(step_of(trace, step_us), return_inverse=True)
    width = len(trace.sources)
    slices = Slicing.of([spec]).starts_of(trace.event_us)
    rows = SourceBatch.group_records(trace.sources, place * width + trace.source, slices, trace.event_us, trace.value)
    first = np.searchsorted(rows.source_index, np.arange(len(at) + 1) * width)
    return Steps(step_us, at, first, replace(rows, source_index=rows.source_index % width))


@dataclass(frozen=True)
class ReplayOutcome:
    """When each window closed. Windows that the end of the trace closed are marked `flushed`."""

    ends_us: Ints
    closed_at_us: Ints
    slack_us: Ints
    flushed: npt.NDArray[np.bool_]
    decisions: dict[int, CloseDecision]
    step_us: int
    controller: SlackController


def replay(steps: Steps, controller: SlackController, ends_us: Ints) -> ReplayOutcome:
    """Drive a controller through a trace; `ends_us` are the windows that hold records."""
    closed_at = np.full(len(ends_us), NEVER)
    slack = np.zeros(len(ends_us), dtype=np.int64)
    decisions: dict[int, CloseDecision] = {}
    turn = 0
    for now, batch in steps.batches():
        controller.observe(batch, now)
        for decision in controller.advance(now):
            decisions[decision.end_us] = decision
        passed = int(np.searchsorted(ends_us, controller.low_mark_us, side="right"))
        if passed > turn:
            closed_at[turn:passed] = now
            slack[turn:passed] = controller.observations.sources.front_us(now) - ends_us[turn:passed]
            turn = passed
    flushed = closed_at == NEVER
    closed_at[flushed] = steps.at_us[-1]
    slack[flushed] = np.maximum(controller.observations.sources.newest_us - ends_us[flushed], 0)
    return ReplayOutcome(ends_us, closed_at, slack, flushed, decisions, steps.step_us, controller)
