"""How long a site waits: slack controllers, by name.

A query states how wrong an early answer may be; a controller chooses how long to wait for it. The names:

- `adaptive` (the default): per-source progress where sources keep their own order, conformal slack where they do not;
- `adaptive:imputed`: the same, publishing an estimate of the whole window instead of what is in;
- `progress`, `progress:imputed`, `conformal`: one of the two alone;
- `mp-k-slack`: the longest delay seen; `pd` or `aq-k-slack`: the PD loop of Yang et al.;
- `fixed:SECONDS`, or with a unit as in `fixed:5 minutes`: a watermark.

**How to drive one.** A controller works for one stream and one query; sources are whatever the stream's disorder is
between: devices, partitions, files; at a center, the sites. Once a micro-batch, with the clock as an argument:

    controller = parse_slack("adaptive").build(Setting(window, measure, contract))
    controller.observe(batch, now_us)          # rows per (source, slice): see slack.batch.Batch
    for closing in controller.advance(now_us): # windows that close now, in order: bound, coverage, idle, missing
        ...
    controller.low_mark_us                     # every window that ends at or before it is closed

`observe` with an empty batch, or `heartbeat`, lets time pass while nothing arrives. `outlook(end_us, now_us)` tells
what closing any window would mean now, and changes nothing: it is for early results. `status(now_us)` tells how the
contract stands. `snapshot()` is plain data; `build(setting, state)` takes it up again. Late records are simply
observed: the controller learns from them what its closings were worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from catchment.errors import CatchmentError, SiteError
from catchment.site.slack.batch import Batch
from catchment.site.slack.controller import Controller
from catchment.site.slack.observations import Desk, Rule
from catchment.site.slack.rules.adaptive import Adaptive
from catchment.site.slack.rules.conformal import Conformal
from catchment.site.slack.rules.fixed import Fixed, MpKSlack, PdSlack
from catchment.site.slack.rules.progress import BySources
from catchment.site.slack.setting import Outlook, Setting
from catchment.timeline import SECOND_US
from catchment.units import parse_duration

__all__ = ["DEFAULT_SLACK", "Batch", "Controller", "Outlook", "Setting", "SlackConfig", "parse_slack", "slack_names"]

DEFAULT_SLACK = "adaptive"


class RuleConfig(Protocol):
    """A frozen config that makes a rule for a desk."""

    def rule(self, desk: Desk) -> Rule: ...


@dataclass(frozen=True)
class SlackConfig:
    """A controller by name: configuration is data, `build` makes the state."""

    name: str
    config: RuleConfig

    def build(self, setting: Setting, state: dict[str, Any] | None = None) -> Controller:
        """A new controller, or the one that a snapshot was taken of."""
        controller = Controller(setting, self.config.rule)
        if state is not None:
            controller.restore(state)
        return controller


_FAMILIES: dict[str, Callable[[], RuleConfig]] = {
    "adaptive": Adaptive,
    "adaptive:imputed": lambda: Adaptive(impute=True),
    "progress": BySources,
    "progress:imputed": lambda: BySources(impute=True),
    "conformal": Conformal,
    "mp-k-slack": MpKSlack,
    "pd": PdSlack,
    "aq-k-slack": PdSlack,
}


def slack_names() -> tuple[str, ...]:
    """Every name that `parse_slack` takes."""
    return (*_FAMILIES, "fixed:SECONDS")


def parse_slack(text: str) -> SlackConfig:
    """The controller of a name such as 'adaptive' or 'fixed:2.5'."""
    name = text.strip().lower()
    family, _, argument = name.partition(":")
    if family == "fixed":
        return SlackConfig(name, Fixed(_seconds(argument, text)))
    if name not in _FAMILIES:
        raise SiteError(f"there is no slack controller {text!r}", hint=f"possible: {', '.join(slack_names())}")
    return SlackConfig(name, _FAMILIES[name]())


def _seconds(argument: str, text: str) -> float:
    try:
        return float(argument)
    except ValueError:
        pass
    try:
        return parse_duration(argument) / SECOND_US
    except CatchmentError as cause:
        raise SiteError(
            f"cannot read the slack {text!r}", hint="write fixed: and seconds or a duration: fixed:2.5, fixed:5 minutes"
        ) from cause
