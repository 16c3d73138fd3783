"""A slack controller: observes micro-batches, closes windows in order, learns what became of them.

It enacts what its rule decides. Laws: the low mark never falls; windows close in the order of their ends, each once;
its fields are its whole state, so a controller that is read back goes on as the one that was written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from catchment.arrays import Ints
from catchment.quality.contract import relative_error
from catchment.site.slack.batch import SourceBatch
from catchment.site.slack.missing import idle_sources, least_progress_us, sources_behind
from catchment.site.slack.observations import Observations, SettledWindow, UnsettledWindow
from catchment.site.slack.rules.base import BUDGET, COVERED, IDLE, CloseDecision, Rule
from catchment.site.slack.task import SlackTask
from catchment.site.slack.violation_budget import stall_charge
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US

MAX_CLOSINGS = 4096  # windows that close in one advance; the others close in the next
STALL_REASONS = (BUDGET, IDLE)  # reasons for which several windows close in one and the same stall


@stored(version=3, migrations={1: dict, 2: dict})  # version 2 has stated_us, version 3 unseen_us
@dataclass(eq=False)
class SlackController:
    """The slack of one stream for one measured quantity of one query.

    It may begin in the middle of a stream: its query has moved to another fragment, or its contract was changed. Of the
    windows before, which another controller has closed, it has seen nothing, so it does not call them complete before
    they have settled by what it sees itself.
    """

    observations: Observations
    rule: Rule
    low_mark_us: int = START_OF_TIME_US  # every window that ends at or before it is closed
    late_records: int = 0  # records that arrived for a window that was already closed
    unsettled: deque[UnsettledWindow] = field(default_factory=deque)
    stated_us: int = START_OF_TIME_US  # all sources have stated that nothing before it will come
    unseen_us: int | None = None  # where it began, until the windows before that have settled

    @property
    def task(self) -> SlackTask:
        return self.observations.task

    def observe(self, batch: SourceBatch, now_us: int) -> None:
        """Learn from a micro-batch, which may be empty."""
        obs = self.observations
        obs.sources.observe(batch, now_us)
        if len(batch) and batch.count.any():
            self._start_at(batch)
            self._count_late(batch)
            obs.arrivals.record(batch, obs.front_us(now_us))
        self.settle(now_us)
        self.rule.after_batch(obs, now_us)

    def heartbeat(self, progress_us: dict[str, int], now_us: int) -> None:
        """Note that some sources have sent everything up to an instant; with none of them, only time passes."""
        self.observe(SourceBatch.heartbeats(progress_us), now_us)

    def believe(self, progress_us: dict[str, int], stated_us: int, now_us: int) -> None:
        """Believe sources that state how far they are, and that all of them have stated an instant."""
        self.stated_us = max(self.stated_us, stated_us)
        further = self.observations.sources.further_of(progress_us)
        if further:
            self.heartbeat(further, now_us)

    def leave(self, source: str) -> None:
        """Note that a source will send no more."""
        self.observations.sources.leave(source)

    def advance(self, now_us: int) -> list[CloseDecision]:
        """Close what may close now, in order; return the decisions on windows that hold records."""
        if self.low_mark_us == START_OF_TIME_US:
            return []
        front = self._front_us(now_us)
        closed = []
        for _ in range(MAX_CLOSINGS):
            self.low_mark_us += self._empty_span_us(front)
            end = self._next_end_us()
            if end > front:
                break
            decision = self._decide(end, front, now_us)
            if decision.close and self._close(decision):
                closed.append(decision)
            if end <= self.stated_us:
                self.rule.after_stated()
            else:
                self.rule.after_decision(self.observations, decision)
            if not decision.close:
                break
        return closed

    def _decide(self, end_us: int, front_us: int, now_us: int) -> CloseDecision:
        """Ask the rule about a window, unless all sources have stated that nothing of it will come.

        No bound is stated below what windows turned out to lack of which nothing was expected to be missing.
        """
        if end_us > self.stated_us:
            decision = self.rule.decide(self.observations, end_us, now_us)
            if not decision.close:
                return decision
            least = self.observations.least_bound(end_us)
            return replace(decision, bound=max(decision.bound, least), expected_whole=decision.bound == 0.0)
        slack_us = front_us - end_us
        return CloseDecision(end_us, now_us, True, COVERED, coverage=1.0, bound=0.0, risk=0.0, slack_us=slack_us)

    def _front_us(self, now_us: int) -> int:
        """Return where event time stands: what all sources have stated is over too."""
        return max(self.observations.front_us(now_us), self.stated_us)

    def settle(self, now_us: int) -> None:
        """Learn from the closed windows that gain no more records."""
        obs = self.observations
        front = obs.front_us(now_us)
        if self._are_unseen_settled(front):
            self.unseen_us = None
        while self.unsettled and self.rule.is_settled(obs, self.unsettled[0].end_us, front):
            settled = self._compare_with_truth(self.unsettled.popleft())
            obs.learn(settled)
            self.rule.learn(obs, settled)
            obs.arrivals.forget_before(settled.closed.end_us - self.task.window.size_us)

    @property
    def settled_until_us(self) -> int:
        """The instant up to which windows have settled."""
        if self.unseen_us is not None:
            return START_OF_TIME_US
        if not self.unsettled:
            return self.low_mark_us
        return self.unsettled[0].end_us - self.task.window.slide_us

    def is_due(self, now_us: int) -> bool:
        """Return whether the mere passing of time would close a window, or settle one."""
        if self.low_mark_us == START_OF_TIME_US:
            return False
        obs = self.observations
        if self._are_unseen_settled(obs.front_us(now_us)):
            return True
        if self.unsettled and self.rule.is_settled(obs, self.unsettled[0].end_us, obs.front_us(now_us)):
            return True
        front = self._front_us(now_us)
        if self._empty_span_us(front):
            return True
        end = self._next_end_us()
        return end <= front and self._decide(end, front, now_us).close

    def status(self, now_us: int) -> dict[str, Any]:
        """Return how the contract stands, and which sources are not as they should be; for `show`."""
        sources = self.observations.sources
        budget = self.observations.budget
        front = self.observations.front_us(now_us)
        idle = idle_sources(sources, front)
        return {
            "front_us": front,
            "low_mark_us": self.low_mark_us,
            "idle": sources.names_of(idle),
            "behind": sources.names_of(sources_behind(sources) & ~idle),
            "future_records": sources.future_records,
            "late_records": self.late_records,
            "contract_kept": budget.balance >= 0.0,
            "budget_windows": budget.balance,
            "windows_to_regain": budget.windows_to_regain(),
            "regain_us": budget.windows_to_regain() * self.task.window.slide_us,
            "violations": budget.violations,
            "settled": budget.settled,
        }

    def _are_unseen_settled(self, front_us: int) -> bool:
        """Return whether the windows before its first one have settled by now, and had not before."""
        if self.unseen_us is None:
            return False
        return self.stated_us >= self.unseen_us or self.rule.is_settled(self.observations, self.unseen_us, front_us)

    def _next_end_us(self) -> int:
        return self.low_mark_us + self.task.window.slide_us

    def _start_at(self, batch: SourceBatch) -> None:
        """Put the mark just below the first window with records; before the first record there are no windows."""
        if self.low_mark_us == START_OF_TIME_US:
            oldest = int(batch.oldest_us[batch.count > 0].min())
            first = next(self.task.window.containing(oldest))
            self.low_mark_us = first.end_us - self.task.window.slide_us
            self.unseen_us = self.low_mark_us

    def _count_late(self, batch: SourceBatch) -> None:
        """Count the records of closed windows, and the windows among them of which nothing was expected."""
        if batch.slice_us.min() < self.low_mark_us:
            first_ends_us = self._first_ends_us(batch.slice_us)
            late = (batch.count > 0) & (first_ends_us <= self.low_mark_us)
            self.late_records += int(batch.count[late].sum())
            self.observations.surprises.count_late(np.unique(first_ends_us[late]).tolist())

    def _first_ends_us(self, slices_us: Ints) -> Ints:
        """Return the ends of the first windows that contain the slices."""
        window = self.task.window
        past_end = (slices_us - window.offset_us - window.size_us) % window.slide_us
        return np.asarray(slices_us + window.slide_us - past_end)

    def _empty_span_us(self, front_us: int) -> int:
        """Return how far the mark may rise at once because no window holds records there."""
        obs = self.observations
        window = self.task.window
        count, _ = obs.window_totals(self._next_end_us())
        if count:
            return 0
        complete_us = max(least_progress_us(obs.sources, front_us), front_us - self.task.max_wait_us, self.stated_us)
        next_slice_us = obs.arrivals.first_slice_us(self._next_end_us() - window.size_us)
        steps = (min(complete_us, front_us, next_slice_us) - self.low_mark_us) // window.slide_us
        return max(steps, 0) * window.slide_us

    def _close(self, decision: CloseDecision) -> bool:
        """Close a window; return whether it held records."""
        self.low_mark_us = decision.end_us
        count, total = self.observations.window_totals(decision.end_us)
        if not count:
            return False
        charge = stall_charge(decision.risk) if decision.reason in STALL_REASONS else decision.risk
        self.observations.budget.charge(charge)
        closed = UnsettledWindow(
            decision.end_us,
            count,
            published_count=count + decision.imputed_count,
            published_total=total + decision.imputed_total,
            charge=charge,
            bound=decision.bound,
            expected_whole=decision.expected_whole,
        )
        self.unsettled.append(closed)
        self.observations.surprises.count_closed(
            decision.end_us, self.task.contract.delta, expected_whole=decision.expected_whole
        )
        return True

    def _compare_with_truth(self, closed: UnsettledWindow) -> SettledWindow:
        obs = self.observations
        measure = self.task.measure
        max_error = self.task.contract.max_error
        count, total = obs.window_totals(closed.end_us)
        error = float(relative_error(measure, closed.published_count, closed.published_total, count, total))
        needed_us = 0.0
        if self.rule.learns_waits:
            needed_us = obs.arrivals.needed_wait_us(closed.end_us, measure, max_error)
        return SettledWindow(closed, count, total, error, error >= max_error, needed_us)
