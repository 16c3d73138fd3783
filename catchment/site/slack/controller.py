"""A slack controller: takes micro-batches, closes windows in order, learns what became of them.

It enacts what its rule proposes. Laws: the low mark never falls; windows close in the order of their ends, each once;
asking for an `outlook` changes nothing; the state is plain data, and a controller restored from a snapshot goes on as
the one it was taken from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np

from catchment.quality.coverage import relative_error
from catchment.site.slack.batch import Batch, Ints
from catchment.site.slack.missing import behind, idle, least_progress_us
from catchment.site.slack.observations import Closed, Desk, Rule, Settled
from catchment.site.slack.setting import Outlook, Setting
from catchment.site.slack.violation_budget import price
from catchment.timeline import START_OF_TIME_US

MAX_CLOSINGS = 4096  # in one advance; what is left closes in the next
IN_STALLS = ("budget", "idle")  # grounds on which several windows are let go for one and the same stall


class Controller:
    """One rule at one desk: the slack of one stream for one query."""

    def __init__(self, setting: Setting, rule: Callable[[Desk], Rule]) -> None:
        self.setting = setting
        self.desk = Desk(setting)
        self.rule = rule(self.desk)
        self.low_mark_us = START_OF_TIME_US
        self.late_records = 0  # arrived for a window that was already closed
        self._closed: deque[Closed] = deque()

    def observe(self, batch: Batch, now_us: int) -> None:
        """Take a micro-batch (it may be empty) at the clock's time."""
        self.desk.sources.observe(batch, now_us)
        if len(batch) and batch.count.any():
            self._start(batch)
            if batch.slice_us.min() < self.low_mark_us:
                late = (batch.count > 0) & (self._first_ends_us(batch.slice_us) <= self.low_mark_us)
                self.late_records += int(batch.count[late].sum())
            self.desk.book.record(batch, self.desk.sources.front_us(now_us))
        self.settle(now_us)
        self.rule.observed(now_us)

    def heartbeat(self, progress_us: dict[str, int], now_us: int) -> None:
        """Sources say that everything of theirs up to an instant is sent."""
        self.observe(Batch.heartbeats(progress_us), now_us)

    def leave(self, source: str) -> None:
        """A source says that it will send no more."""
        self.desk.sources.leave(source)

    def outlook(self, end_us: int, now_us: int) -> Outlook:
        """What closing the window that ends at `end_us` would mean now."""
        return self.rule.outlook(end_us, now_us)

    def advance(self, now_us: int) -> list[Outlook]:
        """Close what may close now, in order; gives the closings of windows that hold records."""
        front, closings = self.desk.sources.front_us(now_us), []
        if self.low_mark_us == START_OF_TIME_US:
            return []
        for _ in range(MAX_CLOSINGS):
            self._pass_over_nothing(front)
            end = self.low_mark_us + self.setting.window.slide_us
            if end > front:
                break
            outlook = self.rule.outlook(end, now_us)
            if outlook.close and self._enact(outlook):
                closings.append(outlook)
            self.rule.looked(outlook)
            if not outlook.close:
                break
        return closings

    @property
    def over_us(self) -> int:
        """Of windows that end at or before it nothing more is expected."""
        return self._closed[0].end_us - self.setting.window.slide_us if self._closed else self.low_mark_us

    def is_due(self, now_us: int) -> bool:
        """Whether the mere passing of time would close a window, or settle one."""
        front = self.desk.sources.front_us(now_us)
        if self.low_mark_us == START_OF_TIME_US:
            return False
        if (self._closed and self.rule.is_over(self._closed[0].end_us, front)) or self._clear_us(front):
            return True
        end = self.low_mark_us + self.setting.window.slide_us
        return end <= front and self.rule.outlook(end, now_us).close

    def status(self, now_us: int) -> dict[str, Any]:
        """How the contract stands, and which sources are not as they should be; for `show`."""
        sources, ledger = self.desk.sources, self.desk.ledger
        front = sources.front_us(now_us)
        resting = idle(sources, front)
        return {
            "front_us": front,
            "low_mark_us": self.low_mark_us,
            "idle": sources.named(resting),
            "behind": sources.named(behind(sources) & ~resting),
            "future_records": sources.future_records,
            "late_records": self.late_records,
            "contract_kept": ledger.balance >= 0.0,
            "budget_windows": ledger.balance,
            "windows_to_regain": ledger.windows_to_regain(),
            "regain_us": ledger.windows_to_regain() * self.setting.window.slide_us,
            "violations": ledger.violations,
            "settled": ledger.settled,
        }

    def _first_ends_us(self, slices_us: Ints) -> Ints:
        """The ends of the first windows that contain the slices."""
        spec = self.setting.window
        return np.asarray(slices_us + spec.slide_us - (slices_us - spec.offset_us - spec.size_us) % spec.slide_us)

    def _start(self, batch: Batch) -> None:
        """Before the first record there are no windows; the mark is put just below the first one with records."""
        if self.low_mark_us == START_OF_TIME_US:
            oldest = int(batch.oldest_us[batch.count > 0].min())
            first = next(self.setting.window.containing(oldest))
            self.low_mark_us = first.end_us - self.setting.window.slide_us

    def _pass_over_nothing(self, front_us: int) -> None:
        """Where no window holds records, the mark follows the sources at once, however far they jumped."""
        self.low_mark_us += self._clear_us(front_us)

    def _clear_us(self, front_us: int) -> int:
        """How far the mark may rise over windows without records."""
        slide = self.setting.window.slide_us
        if self.desk.book.window(self.low_mark_us + slide)[0]:
            return 0
        clear = max(least_progress_us(self.desk.sources, front_us), front_us - self.setting.max_wait_us)
        begin = self.desk.book.first_slice_us(self.low_mark_us + slide - self.setting.window.size_us)
        steps = (min(clear, front_us, begin) - self.low_mark_us) // slide
        return max(steps, 0) * slide

    def _enact(self, outlook: Outlook) -> bool:
        """The window is closed; tells whether it held records."""
        self.low_mark_us = outlook.end_us
        count, total = self.desk.book.window(outlook.end_us)
        if not count:
            return False
        charge = price(outlook.risk) if outlook.reason in IN_STALLS else outlook.risk
        self.desk.ledger.charge(charge)
        said = (total + outlook.missing_total, count + outlook.missing_count)
        self._closed.append(Closed(outlook.end_us, outlook.at_us, count, *said, charge, outlook.bound))
        return True

    def settle(self, now_us: int) -> None:
        """Learn from the windows that are over."""
        front = self.desk.sources.front_us(now_us)
        while self._closed and self.rule.is_over(self._closed[0].end_us, front):
            settled = self._judge(self._closed.popleft())
            self.desk.note(settled)
            self.rule.learn(settled)
            self.desk.book.forget_before(settled.closed.end_us - self.setting.window.size_us)

    def _judge(self, closed: Closed) -> Settled:
        count, total = self.desk.book.window(closed.end_us)
        measure, contract = self.setting.measure, self.setting.contract
        error = float(relative_error(measure, closed.published_count, closed.published, count, total))
        wanted = self.rule.wants_needs
        need = self.desk.book.needed_slack_us(closed.end_us, measure, contract.max_error) if wanted else 0.0
        return Settled(closed, count, total, error, error >= contract.max_error, need)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as plain data, for JSON."""
        return {
            "desk": self.desk.snapshot(),
            "rule": self.rule.snapshot(),
            "low_mark_us": self.low_mark_us,
            "late_records": self.late_records,
            "closed": [list(astuple(c)) for c in self._closed],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up where a snapshot was made."""
        self.desk.restore(state["desk"])
        self.rule.restore(state["rule"])
        self.low_mark_us, self.late_records = state["low_mark_us"], state["late_records"]
        self._closed = deque(Closed(*c) for c in state["closed"])
