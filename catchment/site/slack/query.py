"""The slack of one query at a site: a controller for each quantity that its contract watches.

A window is let go when every controller lets it go; then a `Closing` says why, what each quantity is believed to lack,
and which sources owe it something. `over_us` is the instant before which nothing more is expected. Driven by journalled
observations, so it comes back after a crash as it was.

Bounds: beyond `MAX_SOURCES` sources new ones are followed as one; beyond `MAX_QUEUED` unsent closings the oldest are
forgotten, and the center publishes those windows without an estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.errors import SiteError
from catchment.quality.contract_measures import Measured
from catchment.quality.coverage import Contract
from catchment.quality.merge_sites import Estimate
from catchment.site.slack.batch import Batch
from catchment.site.slack.controller import Controller
from catchment.site.slack.names import parse_slack
from catchment.site.slack.setting import Outlook, Setting
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US, WindowSpec
from catchment.wire.messages import Closing, Standing

LAYOUT = 2  # of a snapshot's content: one more whenever that changes, here or in what a controller consists of
MAX_SOURCES = 10_000
OTHERS = "(others)"
MAX_QUEUED = 65_536
MAX_PER_MESSAGE = 1024
MAX_NAMED = 32  # sources that one closing names
_GROUNDS = ("covered", "budget", "idle", "limit")  # the last one that applies is told


@stored()
@dataclass(frozen=True)
class SlackPlan:
    """What a query wants of the sites that feed it."""

    query: str
    controller: str
    window: WindowSpec
    measured: tuple[Measured, ...]
    contract: Contract
    max_ahead_us: int

    def __post_init__(self) -> None:
        if not self.measured:
            raise SiteError(f"query {self.query!r} measures nothing that could be waited for")
        parse_slack(self.controller)

    def build(self) -> tuple[Controller, ...]:
        config = parse_slack(self.controller)
        return tuple(
            config.build(Setting(self.window, m.measure, self.contract, max_ahead_us=self.max_ahead_us))
            for m in self.measured
        )


def watched_values(plan: SlackPlan) -> tuple[str, ...]:
    """The Spark SQL of every value that a plan watches, each once: `total_N` and `square_N` of observations."""
    return tuple(dict.fromkeys(m.value for m in plan.measured if m.value is not None))


class QuerySlack:
    """The controllers of one query."""

    def __init__(self, plan: SlackPlan) -> None:
        self.plan, values = plan, watched_values(plan)
        self._columns = [None if m.value is None else values.index(m.value) for m in plan.measured]
        self.controllers = plan.build()
        self._looks: dict[int, dict[int, tuple[Estimate, str, dict[str, float]]]] = {}
        self._queued: deque[Closing] = deque(maxlen=MAX_QUEUED)
        self._ended_us = START_OF_TIME_US
        self._told_us = START_OF_TIME_US

    @property
    def low_mark_us(self) -> int:
        return max(min(c.low_mark_us for c in self.controllers), self._ended_us)

    @property
    def over_us(self) -> int:
        return max(min(c.over_us for c in self.controllers), self._ended_us)

    def observe(self, table: pa.Table, now_us: int) -> None:
        """Take the observations of a micro-batch: rows (source, slice_us, newest_us, oldest_us, count, ...)."""
        names, codes = self._sources(table)
        for controller, column in zip(self.controllers, self._columns, strict=True):
            controller.observe(_batch(table, names, codes, column), now_us)
        self._advance(now_us)

    def tick(self, now_us: int) -> None:
        """Let time pass without a record."""
        for controller in self.controllers:
            controller.heartbeat({}, now_us)
        self._advance(now_us)

    def end(self, mark_us: int) -> None:
        """The stream is over, or read to its end: nothing before the mark is waited for."""
        self._ended_us = max(self._ended_us, mark_us)

    def is_due(self, now_us: int) -> bool:
        """Whether the mere passing of time would let a window go."""
        return any(c.is_due(now_us) for c in self.controllers)

    def standings(self, fragment: str) -> list[Standing]:
        """What has not been told yet."""
        if not self._queued and self.over_us <= self._told_us:
            return []
        told = [self._queued.popleft() for _ in range(len(self._queued))]
        pieces = [told[i : i + MAX_PER_MESSAGE] for i in range(0, max(len(told), 1), MAX_PER_MESSAGE)]
        self._told_us = self.over_us
        return [Standing(fragment, self.plan.query, self._told_us, tuple(piece)) for piece in pieces]

    def status(self, now_us: int) -> dict[str, Any]:
        """How the contract stands: of the quantity that is worst off."""
        worst = min((c.status(now_us) for c in self.controllers), key=lambda s: s["budget_windows"])
        return {"controller": self.plan.controller, "slack_us": worst["front_us"] - worst["low_mark_us"], **worst}

    def _advance(self, now_us: int) -> None:
        for place, controller in enumerate(self.controllers):
            for outlook in controller.advance(now_us):
                look = (_estimate(controller, outlook), outlook.reason, _owing(outlook))
                self._looks.setdefault(outlook.end_us, {})[place] = look
            controller.settle(now_us)
        mark = min(c.low_mark_us for c in self.controllers)
        for end in sorted(e for e in self._looks if e <= mark):
            looks = self._looks.pop(end)
            if len(looks) == len(self.controllers):
                self._queued.append(_closing(end, [looks[i] for i in range(len(looks))]))

    def _sources(self, table: pa.Table) -> tuple[tuple[str, ...], np.ndarray[Any, np.dtype[np.int64]]]:
        coded = table["source"].combine_chunks().dictionary_encode()
        known = set(self.controllers[0].desk.sources.names)
        room, names = MAX_SOURCES - len(known), []
        for name in coded.dictionary.to_pylist():
            room -= name not in known
            names.append(name if name in known or room >= 0 else OTHERS)
        distinct = list(dict.fromkeys(names))
        place = np.array([distinct.index(n) for n in names], dtype=np.int64)
        return tuple(distinct), place[np.asarray(coded.indices, dtype=np.int64)] if len(coded) else place

    def snapshot(self) -> dict[str, Any]:
        looks = [[end, place, list(astuple(e)), reason, list(owing.items())]
                 for end, told in self._looks.items() for place, (e, reason, owing) in told.items()]  # fmt: skip
        return {
            "layout": LAYOUT,
            "plan": repr(self.plan),
            "controllers": [c.snapshot() for c in self.controllers],
            "looks": looks,
            "queued": [[c.end_us, c.reason, [list(astuple(e)) for e in c.estimates], c.sources] for c in self._queued],
            "marks": [self._ended_us, self._told_us],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up where a snapshot was made; a plan that was changed starts fresh, but for how far it had come."""
        self._ended_us, self._told_us = state["marks"]
        if state["plan"] != repr(self.plan):
            return
        if state.get("layout") != LAYOUT:
            raise SiteError(
                "another version of catchment wrote the state of this contract, which this one cannot take up",
                where=f"query {self.plan.query!r}",
                hint="go on with that version, or start over with a new state folder (`state` in catchment.toml)",
            )
        for controller, saved in zip(self.controllers, state["controllers"], strict=True):
            controller.restore(saved)
        for end, place, estimate, reason, owing in state["looks"]:
            self._looks.setdefault(end, {})[place] = (Estimate(*estimate), reason, dict(owing))
        for end, reason, estimates, sources in state["queued"]:
            named = tuple((n, s) for n, s in sources)
            self._queued.append(Closing(end, reason, tuple(Estimate(*e) for e in estimates), named))


def _batch(
    table: pa.Table, names: tuple[str, ...], codes: np.ndarray[Any, np.dtype[np.int64]], column: int | None
) -> Batch:
    def ints(name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(table[name].to_numpy(), dtype=np.int64)

    count = ints("count")
    total, square = (
        (count.astype(np.float64), count.astype(np.float64))
        if column is None
        else (np.array(table[f"{kind}_{column}"].to_numpy(), dtype=np.float64) for kind in ("total", "square"))
    )
    return Batch(names, codes, ints("slice_us"), ints("newest_us"), ints("oldest_us"), count, total, square)


def _estimate(controller: Controller, outlook: Outlook) -> Estimate:
    count, total = controller.desk.book.window(outlook.end_us)
    coverage = min(max(outlook.coverage, 0.0), 1.0)
    return Estimate(coverage, float(outlook.bound) if isfinite(outlook.bound) else None, count, total)


def _owing(outlook: Outlook) -> dict[str, float]:
    owed = dict(zip(outlook.missing, outlook.owed, strict=True))
    return {name: min(owed.get(name, 0.0), 1.0) for name in (*outlook.missing, *outlook.idle)}


def _closing(end_us: int, looks: Sequence[tuple[Estimate, str, dict[str, float]]]) -> Closing:
    reasons = {reason for _, reason, _ in looks}
    owing: dict[str, float] = {}
    for _, _, mine in looks:
        for name, share in mine.items():
            owing[name] = max(owing.get(name, 0.0), share)
    most = sorted(owing.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMED]
    ground = max(reasons, key=lambda r: _GROUNDS.index(r) if r in _GROUNDS else -1)
    return Closing(end_us, ground, tuple(e for e, _, _ in looks), tuple(most))
