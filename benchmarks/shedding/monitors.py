"""Monitors that decide what is shed: as planned, at one rate for all, or never. They record every batch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catchment.shedding.monitor import Arrivals, Decision, LoadMonitor
from catchment.shedding.rate_planner import MIN_RATE
from catchment.shedding.sampler import Sampler


@dataclass
class Batch:
    """A micro-batch: when it was decided on and done, its rows, those that were read, its highest rate, what its parts
    took together, and the worst error that was foreseen."""

    began_s: float
    ended_s: float
    rows: int
    read: int
    rate: float
    work_s: float
    predicted: float | None


class Planned(LoadMonitor):
    """As the product decides."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.batches: list[Batch] = []
        self._began_s = time.time()
        self._decision = Decision({}, 0.0, {}, "")

    def decide(self, arrivals: Arrivals) -> Decision:
        self._began_s, self._decision = time.time(), super().decide(arrivals)
        return self._decision

    def learn_whole(self, rows: int, seconds: Mapping[str, float]) -> None:
        super().learn_whole(rows, seconds)
        self._note(rows, rows, seconds)

    def learn_sampled(
        self, rows: int, rates: Mapping[str, float], seconds: Mapping[str, float], rows_read: int | None = None
    ) -> None:
        super().learn_sampled(rows, rates, seconds, rows_read)
        self._note(rows, rows if rows_read is None else rows_read, seconds)

    def _note(self, rows: int, read: int, seconds: Mapping[str, float]) -> None:
        errors = self._decision.errors
        self.batches.append(
            Batch(
                self._began_s,
                time.time(),
                rows,
                read,
                self._decision.highest_rate,
                math.fsum(seconds.values()),
                max(errors.values()) if errors else None,
            )
        )


class Uniform(Planned):
    """One rate for every view: what a sampler at the source can do, with the load that the planned rates would have."""

    def plan(self, rows_per_s: float) -> Decision:
        planned = super().plan(rows_per_s)
        planned_s = self.planner.seconds_per_row_at(planned.samplers)
        rate = min(1.0, max(MIN_RATE, planned_s / max(self.costs.all_work_row_s, 1e-12)))
        return Decision({f.name: Sampler(rate) for f in self.fragments}, planned.load, {}, "uniform")


class Never(Planned):
    """Takes everything whole, however late."""

    def _update_state(self, arrivals: Arrivals) -> None:
        self.shedding = False
