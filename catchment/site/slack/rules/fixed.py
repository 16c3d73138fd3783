"""One slack for the whole stream: a window closes when the newest event time is K beyond its end.

`Fixed` is the watermark that Spark and Flink have. `MpKSlack` (Mutschler and Philippsen) takes for K the longest delay
seen so far. `PdSlack` is the controller of Yang et al. (HPM, section 1.2), which adopts AQ-K-slack's:
K = alpha times the longest delay, alpha += Kp err_i + Kd (err_i - err_(i-1)), err_i = needed coverage - coverage of
window i, measured for a while after it closed. It steers the mean coverage; nothing looks at the chance of a miss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

from catchment.errors import SiteError
from catchment.quality.coverage import needed_coverage, units_of_records
from catchment.site.slack.observations import Desk, Rule, by_slack
from catchment.site.slack.setting import Outlook
from catchment.timeline import SECOND_US

MAX_MEASURED = 65_536  # windows whose coverage is still being measured; beyond it the oldest is taken as it is


@dataclass(frozen=True)
class Fixed:
    """A constant slack."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.seconds < 1e9:
            raise SiteError(f"a fixed slack is 0 seconds or more, not {self.seconds!r}", hint="write fixed:2.5")

    def rule(self, desk: Desk) -> Rule:
        return FixedRule(desk, round(self.seconds * SECOND_US))


@dataclass(frozen=True)
class MpKSlack:
    """The longest delay seen so far."""

    def rule(self, desk: Desk) -> Rule:
        return MpRule(desk)


@dataclass(frozen=True)
class PdSlack:
    """The paper's gains; coverage is measured `period_windows` window lengths after a window closed."""

    kp: float = 0.2
    kd: float = 4.0
    period_windows: float = 10.0

    def __post_init__(self) -> None:
        if self.period_windows <= 0:
            raise SiteError(f"coverage is measured some time after closing, not {self.period_windows} windows after")

    def rule(self, desk: Desk) -> Rule:
        return PdRule(desk, self)


class KSlackRule(Rule):
    """Closes by the newest event time alone."""

    @abstractmethod
    def k_us(self) -> float:
        """The slack, now."""

    def outlook(self, end_us: int, now_us: int) -> Outlook:
        return by_slack(self.desk, end_us, now_us, self.desk.sources.newest_us - end_us, self.k_us())


class FixedRule(KSlackRule):
    def __init__(self, desk: Desk, slack_us: int) -> None:
        super().__init__(desk)
        self._slack_us = slack_us

    def k_us(self) -> float:
        return self._slack_us


class MpRule(KSlackRule):
    def k_us(self) -> float:
        return self.desk.sources.max_delay_us


class PdRule(KSlackRule):
    """The PD loop on window coverage."""

    def __init__(self, desk: Desk, config: PdSlack) -> None:
        super().__init__(desk)
        self._config = config
        self.alpha = 1.0
        self._last_error = 0.0
        self._measuring: deque[tuple[int, int, float]] = deque()  # end, closed at, records then

    def k_us(self) -> float:
        return self.alpha * self.desk.sources.max_delay_us

    def looked(self, outlook: Outlook) -> None:
        received = self.desk.book.window(outlook.end_us)[0] if outlook.close else 0.0
        if received:
            self._measuring.append((outlook.end_us, outlook.at_us, received))

    def observed(self, now_us: int) -> None:
        period = self._config.period_windows * self.desk.setting.window.size_us
        while self._measuring and (now_us - self._measuring[0][1] >= period or len(self._measuring) > MAX_MEASURED):
            end, _, received = self._measuring.popleft()
            self._correct(received / max(self.desk.book.window(end)[0], received))

    def _correct(self, coverage: float) -> None:
        error = self._needed() - coverage
        self.alpha += self._config.kp * error + self._config.kd * (error - self._last_error)
        self.alpha = min(max(self.alpha, 0.0), 1.0)
        self._last_error = error

    def _needed(self) -> float:
        """The coverage that the contract needs of a window of the usual size, records being the sampling units."""
        setting = self.desk.setting
        count, total, square = self.desk.sources.rates().sum(axis=0) * setting.window.size_us
        units = units_of_records(max(float(count), 1.0), float(total), float(square))
        return needed_coverage(setting.measure, setting.contract, units)

    def is_over(self, end_us: int, front_us: int) -> bool:
        measured = not self._measuring or self._measuring[0][0] > end_us
        return measured and super().is_over(end_us, front_us)

    def snapshot(self) -> dict[str, Any]:
        measuring = [list(m) for m in self._measuring]
        return {"alpha": self.alpha, "last_error": self._last_error, "measuring": measuring}

    def restore(self, state: dict[str, Any]) -> None:
        self.alpha, self._last_error = state["alpha"], state["last_error"]
        self._measuring = deque((end, at, received) for end, at, received in state["measuring"])
