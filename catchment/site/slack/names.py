"""Slack controllers by name.

- `adaptive` (the default): per-source progress where sources keep their own order, conformal slack where they do not;
- `progress`, `conformal`: one of the two alone;
- `mp-k-slack`: the longest delay seen; `pd` or `aq-k-slack`: the PD loop of Yang et al.;
- `fixed:SECONDS`, or with a unit as in `fixed:5 minutes`: a watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from catchment.errors import CatchmentError, SiteError
from catchment.site.slack.controller import SlackController
from catchment.site.slack.observations import Observations
from catchment.site.slack.rules.adaptive import AdaptiveRule
from catchment.site.slack.rules.base import Rule
from catchment.site.slack.rules.conformal import ConformalRule
from catchment.site.slack.rules.fixed import CoverageLoopRule, FixedRule, LongestDelayRule
from catchment.site.slack.rules.progress import ProgressRule
from catchment.site.slack.task import SlackTask
from catchment.timeline import SECOND_US
from catchment.units import parse_duration

DEFAULT_SLACK = "adaptive"
MAX_FIXED_S = 1e9

_RULES: dict[str, Callable[[SlackTask], Rule]] = {
    "adaptive": AdaptiveRule.start,
    "progress": ProgressRule.start,
    "conformal": ConformalRule.start,
    "mp-k-slack": lambda _: LongestDelayRule(),
    "pd": lambda _: CoverageLoopRule(),
    "aq-k-slack": lambda _: CoverageLoopRule(),
}


@dataclass(frozen=True)
class SlackConfig:
    """A kind of controller; `build` makes one for a task."""

    name: str
    start_rule: Callable[[SlackTask], Rule]

    def build(self, task: SlackTask) -> SlackController:
        """Return a new controller."""
        return SlackController(Observations.start(task), self.start_rule(task))


def slack_names() -> tuple[str, ...]:
    """Return every name that `parse_slack` takes."""
    return (*_RULES, "fixed:SECONDS")


def parse_slack(text: str) -> SlackConfig:
    """Return the kind of controller that a text such as 'adaptive' or 'fixed:2.5' names."""
    name = text.strip().lower()
    family, _, argument = name.partition(":")
    if family == "fixed":
        return SlackConfig(name, partial(_start_fixed, _parse_seconds(argument, text)))
    if name not in _RULES:
        raise SiteError(f"there is no slack controller {text!r}", hint=f"possible: {', '.join(slack_names())}")
    return SlackConfig(name, _RULES[name])


def _start_fixed(seconds: float, _: SlackTask) -> Rule:
    return FixedRule(round(seconds * SECOND_US))


def _parse_seconds(argument: str, text: str) -> float:
    try:
        seconds = float(argument)
    except ValueError:
        seconds = _parse_duration_s(argument, text)
    if not 0.0 <= seconds < MAX_FIXED_S:
        raise SiteError(f"a fixed slack is 0 seconds or more, not {seconds!r}", hint="write fixed:2.5")
    return seconds


def _parse_duration_s(argument: str, text: str) -> float:
    try:
        return parse_duration(argument) / SECOND_US
    except CatchmentError as cause:
        raise SiteError(
            f"cannot read the slack {text!r}", hint="write fixed: and seconds or a duration: fixed:2.5, fixed:5 minutes"
        ) from cause
