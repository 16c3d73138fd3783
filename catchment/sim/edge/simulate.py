"""The edge simulator: a trace through a policy and a link; traffic and staleness out.

It drives the same gate as the site core, with integer keys. Time advances in steps; all records of a step
are admitted together at its end. Steps shrink towards the end of a window down to half the service time of an
update, so that staleness is exact to about that. A window with few records is simulated record by record,
which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.arrays import Ints
from catchment.errors import SimulationError, SiteError
from catchment.sim.edge.network import Bandwidth, FifoLink
from catchment.sim.edge.offline_optimum import OptimalWindow, optimal_windows, served_at
from catchment.sim.edge.traces import KeyTrace
from catchment.site.event_clock import EventClock
from catchment.site.policies.base import LinkView, Policy
from catchment.site.policies.registry import policy_by_name, policy_names
from catchment.site.release import ReleaseGate
from catchment.timeline import Slicing, WindowSpec

OFFLINE = ("eager-optimal", "lazy-optimal")
_ALL_STEPS = 32_768  # steps of a whole simulation, unless the scenario sets the steps per window
_LEAST_STEPS = 128  # fewest steps per window
_MOST_EVEN_STEPS = 128  # most even ticks of a window that is simulated record by record, before its tail
_TAIL_SHARE = 0.07  # the longest step, as a share of the time left to the window's end


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """The outcome of one window."""

    start_s: float
    updates: int
    distinct: int
    staleness_s: float
    frames: int = 0  # releases


@dataclass(frozen=True)
class EdgeOutcome:
    """The outcome of a trace under one policy."""

    name: str
    windows: tuple[WindowOutcome, ...]

    @property
    def traffic_ratio(self) -> float:
        """Updates sent per update needed."""
        return sum(w.updates for w in self.windows) / sum(w.distinct for w in self.windows)

    @property
    def staleness_s(self) -> npt.NDArray[np.float64]:
        return np.array([w.staleness_s for w in self.windows])

    @property
    def staleness_mean_s(self) -> float:
        return float(self.staleness_s.mean())

    @property
    def staleness_p95_s(self) -> float:
        return float(np.percentile(self.staleness_s, 95))

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a JSON document."""
        return {
            "name": self.name,
            "traffic_ratio": self.traffic_ratio,
            "staleness_mean_s": self.staleness_mean_s,
            "staleness_p95_s": self.staleness_p95_s,
            "windows": [
                {
                    "start": w.start_s,
                    "updates": w.updates,
                    "distinct": w.distinct,
                    "staleness_s": w.staleness_s,
                }
                for w in self.windows
            ],
        }


@dataclass(frozen=True)
class EdgeScenario:
    """A trace, a window, a link, and the bandwidth that the policies believe in."""

    trace: KeyTrace
    window_us: int
    bandwidth: Bandwidth
    believed: float = 1.0  # the bandwidth that policies believe in, as a multiple of the nominal (first) rate
    steps: int | None = None  # steps per window; a window with no more records than that is simulated record by record
    frame: float = 0.0  # overhead of a release on the link, in updates

    def __post_init__(self) -> None:
        if not 0 < self.believed < float("inf"):
            raise SimulationError(
                f"the bandwidth is believed to be {self.believed:g} times the true one; a factor is positive",
                hint="say --believed 1 for a right belief, 2 for twice too much",
            )
        if self.steps is not None and self.steps < 1:
            raise SimulationError(f"a window cannot be simulated in {self.steps} steps")
        if not 0 <= self.frame < float("inf"):
            raise SimulationError(f"a frame cannot count as {self.frame:g} updates")

    @property
    def believed_rate(self) -> float:
        return self.believed * self.bandwidth.rates[0]


def micros_of(window_s: float) -> int:
    """Return a window's length in whole microseconds."""
    if not 0 < window_s < 1e12:
        raise SimulationError(
            f"the window is {window_s:g} s long; a window has a positive length", hint="say --window 60"
        )
    return max(round(window_s * 1e6), 1)


def simulate(scenario: EdgeScenario, policy: str) -> EdgeOutcome:
    """Simulate one policy by name, offline or online, over the whole trace."""
    if policy in OFFLINE:
        return _offline(scenario, policy)
    if policy == "streaming":
        return _streaming(scenario)
    return replace(simulate_online(scenario, _online(policy)), name=policy)  # with the name that was asked for


def all_policy_names() -> tuple[str, ...]:
    """Return every policy that can be simulated."""
    return (*OFFLINE, *policy_names())


def simulate_online(
    scenario: EdgeScenario, policy: Policy, on_window: Callable[[Ints], None] | None = None
) -> EdgeOutcome:
    """Simulate one online policy over the whole trace.

    Before each window, `on_window` is given the code of the key that each slot will have.
    """
    slicing = Slicing.of([WindowSpec.tumbling(scenario.window_us)])
    run = _Run(scenario, ReleaseGate(slicing, policy.build()), FifoLink(scenario.bandwidth))
    out = []
    for window in _windows(scenario):
        if on_window is not None:
            on_window(window.codes)
        out.append(run.window(window))
    return EdgeOutcome(policy.name, tuple(out))


def _online(name: str) -> Policy:
    try:
        return policy_by_name(name)
    except SiteError as error:
        raise SimulationError(error.message, hint=f"{error.hint}; offline: {', '.join(OFFLINE)}") from None


def _offline(scenario: EdgeScenario, name: str) -> EdgeOutcome:
    def outcome(window: OptimalWindow) -> WindowOutcome:
        return WindowOutcome(window.start_us / 1e6, len(window.codes), len(window.codes), window.staleness_s)

    windows = optimal_windows(scenario.trace, scenario.window_us, scenario.bandwidth)
    return EdgeOutcome(name, tuple(outcome(w) for w in windows))


def _streaming(scenario: EdgeScenario) -> EdgeOutcome:
    """Simulate every record as an update of its own, directly: steps would merge those of one key."""
    out = []
    clear = -np.inf
    for start_us, records in scenario.trace.windows(scenario.window_us):
        clear = float(served_at(scenario.bandwidth.works(records.ts_us / 1e6), clear)[-1])
        staleness_s = max(scenario.bandwidth.when(clear) - (start_us + scenario.window_us) / 1e6, 0.0)
        out.append(WindowOutcome(start_us / 1e6, records.records, len(np.unique(records.codes)), staleness_s))
    return EdgeOutcome("streaming", tuple(out))


@dataclass(frozen=True, slots=True)
class _Window:
    """One window in steps: step i ends at `ends_us[i]` and holds rows `cuts[i]:cuts[i + 1]`, one per key."""

    start_us: int
    codes: Ints  # key code of each slot
    ends_us: Ints
    cuts: Ints
    slots: Ints
    arrivals: Ints
    last_us: Ints


def _windows(scenario: EdgeScenario) -> Iterator[_Window]:
    steps = scenario.steps or _affordable_steps(scenario)
    floor_us = 0.5e6 / max(scenario.bandwidth.rates)
    coarse = step_ends(scenario.window_us, min(steps, _MOST_EVEN_STEPS), floor_us)
    fine = step_ends(scenario.window_us, steps, floor_us)
    for start_us, records in scenario.trace.windows(scenario.window_us):
        if records.records <= steps:
            yield _cut(start_us, *_record_by_record(records.ts_us, start_us + coarse), records)
        else:
            ends_us = start_us + fine
            yield _cut(start_us, ends_us, np.searchsorted(ends_us, records.ts_us, "left"), records)


def _affordable_steps(scenario: EdgeScenario) -> int:
    span_us = int(scenario.trace.ts_us[-1] - scenario.trace.ts_us[0])
    return max(_ALL_STEPS // (span_us // scenario.window_us + 1), _LEAST_STEPS)


def _record_by_record(ts_us: Ints, ticks_us: Ints) -> tuple[Ints, Ints]:
    """Make each record a step of its own, with ticks between; a tick at the time of a record comes after it."""
    times = np.concatenate([ts_us, ticks_us])
    order = np.argsort(times, kind="stable")
    place = np.empty(len(times), dtype=np.int64)
    place[order] = np.arange(len(times))
    return times[order], place[: len(ts_us)]


def _cut(start_us: int, ends_us: Ints, step: Ints, records: KeyTrace) -> _Window:
    """Group the records of each step by key, and number the keys as slots in the order they first come."""
    distinct, local = np.unique(records.codes, return_inverse=True)
    pair = step * len(distinct) + local
    order = np.argsort(pair, kind="stable")
    begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
    ends = np.append(begins[1:], len(order))
    rows = order[begins]
    _, first_row = np.unique(local[rows], return_index=True)
    slot_of = np.empty(len(distinct), dtype=np.int64)
    slot_of[np.argsort(first_row, kind="stable")] = np.arange(len(distinct))
    cuts = np.searchsorted(step[rows], np.arange(len(ends_us) + 1), "left")
    last_us = records.ts_us[order[ends - 1]]
    codes = distinct[np.argsort(slot_of)]
    return _Window(start_us, codes, ends_us, cuts, slot_of[local[rows]], ends - begins, last_us)


def step_ends(window_us: int, steps: int, floor_us: float) -> Ints:
    """Return the offsets at which steps end.

    Steps are even until one would be longer than a share of the time left; from there on they are that share.
    """
    even_us = window_us / steps
    evenly = np.arange(even_us, window_us - even_us / _TAIL_SHARE, even_us)
    left = window_us - (float(evenly[-1]) if len(evenly) else 0.0)
    tail = []
    while left > floor_us:
        left -= max(_TAIL_SHARE * left, floor_us)
        tail.append(window_us - left)
    ends = np.rint(np.concatenate([evenly, tail, [window_us]])).astype(np.int64)
    return np.unique(ends[(ends > 0) & (ends <= window_us)])


class _Run:
    """The gate, the clock and the link of one simulation."""

    def __init__(self, scenario: EdgeScenario, gate: ReleaseGate, link: FifoLink) -> None:
        self._scenario = scenario
        self._gate = gate
        self._link = link
        self._clock = EventClock()
        self._frames = 0

    def window(self, window: _Window) -> WindowOutcome:
        sent = self._gate.updates_total
        framed = self._frames
        self._clock.raise_to(window.start_us, window.start_us)
        for i, end_us in enumerate(window.ends_us.tolist()):
            rows = slice(window.cuts[i], window.cuts[i + 1])
            if rows.start < rows.stop:
                slots = window.slots[rows]
                slices = np.full(len(slots), window.start_us)
                self._gate.admit(
                    slots, slices, window.codes[slots], window.arrivals[rows], self._clock, window.last_us[rows]
                )
            self._clock.raise_to(end_us, end_us)
            self._release(end_us)
        self._gate.sweep()
        end_s = (window.start_us + self._scenario.window_us) / 1e6
        staleness_s = max(self._link.finish_s() - end_s, 0.0)
        updates = self._gate.updates_total - sent
        frames = self._frames - framed
        return WindowOutcome(window.start_us / 1e6, updates, len(window.codes), staleness_s, frames)

    def _release(self, now_us: int) -> None:
        now_s = now_us / 1e6
        self._link.measure(now_s)
        frame = self._scenario.frame
        view = LinkView(self._scenario.believed_rate, self._link.goodput, self._link.queue_length(now_s), frame)
        updates = sum(len(r.slots) for r in self._gate.release(self._clock, view, now_us))
        if updates:
            self._frames += 1
            self._link.send(updates + frame, now_s)
