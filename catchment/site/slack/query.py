"""The slack of one query at a site: one controller per quantity that its contract watches.

A window closes when every controller has closed it. Then a `Closing` says why, what each quantity is believed to lack,
and which sources lack records. A `QuerySlack` is driven by journalled observations and is part of the site's state, so
it comes back after a crash as it was.

Bounds: beyond `MAX_SOURCES` sources new ones are followed as one; beyond `MAX_QUEUED` unsent closings the oldest are
forgotten, and the center publishes those windows without an estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from catchment.arrays import Ints
from catchment.errors import SiteError
from catchment.quality.contract import Contract, WatchedQuantity
from catchment.quality.merge_sites import SiteEstimate
from catchment.site.slack.batch import SourceBatch
from catchment.site.slack.controller import SlackController
from catchment.site.slack.names import parse_slack
from catchment.site.slack.rules.base import BUDGET, COVERED, IDLE, LIMIT, CloseDecision
from catchment.site.slack.task import SlackTask
from catchment.site.stated_progress import Statements
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, START_OF_TIME_US, WindowSpec
from catchment.wire.messages import Closing, Standing

MAX_SOURCES = 10_000
OTHERS = "(others)"  # the name of all sources beyond MAX_SOURCES
MAX_QUEUED = 65_536
MAX_PER_MESSAGE = 1024
MAX_NAMED = 32  # sources that one closing names
_REASONS = (COVERED, BUDGET, IDLE, LIMIT)  # in this order, the last one that applies is stated


@stored()
@dataclass(frozen=True)
class SlackPlan:
    """What a query wants of the sites that feed it."""

    query: str
    controller: str
    window: WindowSpec
    watched: tuple[WatchedQuantity, ...]
    contract: Contract
    max_ahead_us: int

    def __post_init__(self) -> None:
        if not self.watched:
            raise SiteError(f"query {self.query!r} watches nothing that could be waited for")
        parse_slack(self.controller)

    def build_controllers(self) -> tuple[SlackController, ...]:
        """Return one new controller per watched quantity."""
        config = parse_slack(self.controller)
        return tuple(
            config.build(SlackTask(self.window, quantity.measure, self.contract, max_ahead_us=self.max_ahead_us))
            for quantity in self.watched
        )


def watched_values(plan: SlackPlan) -> tuple[str, ...]:
    """Return the Spark SQL of every value that a plan watches, each once: `total_N`, `square_N` of observations."""
    return tuple(dict.fromkeys(q.value for q in plan.watched if q.value is not None))


@stored()
@dataclass(frozen=True, slots=True)
class QuantityClosing:
    """How one quantity of a window was closed; `lacking` maps sources to the share of the window that they lack."""

    estimate: SiteEstimate
    reason: str
    lacking: dict[str, float]


@stored(version=2, migrations={1: dict})  # version 2 has passed_us
@dataclass(eq=False)
class QuerySlack:
    """The controllers of one query, and the closings that the center has not been told yet."""

    plan: SlackPlan
    controllers: tuple[SlackController, ...]
    closing: dict[int, dict[int, QuantityClosing]] = field(default_factory=dict)  # window end -> controller number
    queued: deque[Closing] = field(default_factory=lambda: deque(maxlen=MAX_QUEUED))
    ended_us: int = START_OF_TIME_US  # nothing before it is waited for: the stream was read to its end
    stated_us: int = START_OF_TIME_US  # how far windows have settled, as the center was told last
    passed_us: int = START_OF_TIME_US  # windows before it were let go though nothing was observed

    @classmethod
    def start(cls, plan: SlackPlan) -> QuerySlack:
        """Return the slack of a query before its first observation."""
        return cls(plan, plan.build_controllers())

    def resume(self, plan: SlackPlan) -> QuerySlack:
        """Return this slack under the plan that is valid now; under a changed plan only how far it had come remains."""
        if plan == self.plan:
            return self
        return QuerySlack(
            plan,
            plan.build_controllers(),
            ended_us=self.ended_us,
            stated_us=self.stated_us,
            passed_us=self.passed_us,
        )

    @property
    def low_mark_us(self) -> int:
        """Every window that ends at or before it is closed."""
        return max(min(c.low_mark_us for c in self.controllers), self.ended_us, self.passed_us)

    @property
    def settled_until_us(self) -> int:
        """Nothing more is expected before this instant."""
        return max(min(c.settled_until_us for c in self.controllers), self.ended_us)

    def observe(self, table: pa.Table, now_us: int) -> None:
        """Take the observations of a micro-batch: rows (source, slice_us, newest_us, oldest_us, count, ...)."""
        names, codes = self._code_sources(table)
        values = watched_values(self.plan)
        for controller, quantity in zip(self.controllers, self.plan.watched, strict=True):
            column = None if quantity.value is None else values.index(quantity.value)
            controller.observe(_read_batch(table, names, codes, column), now_us)
        self._advance(now_us)

    def tick(self, now_us: int) -> None:
        """Let time pass without a record."""
        for controller in self.controllers:
            controller.heartbeat({}, now_us)
        self._advance(now_us)

    def believe(self, statements: Statements, mark_us: int, now_us: int) -> None:
        """Believe what sources state, and that nothing before the mark will come from any of them."""
        for controller in self.controllers:
            names = controller.observations.sources.names
            stated = {name: statements.of(name) for name in names if name != OTHERS}
            controller.believe(stated, mark_us, now_us)
        self._advance(now_us)

    def end(self, mark_us: int) -> None:
        """Note that the stream is over, or read to its end: nothing before the mark is waited for."""
        self.ended_us = max(self.ended_us, mark_us)

    def pass_over(self, mark_us: int) -> None:
        """Let the windows before the mark go: nothing is observed while the fragment is suspended."""
        self.passed_us = max(self.passed_us, mark_us)

    def is_due(self, now_us: int) -> bool:
        """Return whether the mere passing of time would close a window."""
        return any(c.is_due(now_us) for c in self.controllers)

    def take_standings(self, fragment: str, held_from_us: int = END_OF_TIME_US) -> list[Standing]:
        """Return what the center has not been told yet, and take it as told.

        No window is called complete that ends behind the start of a slice which still waits to be sent.
        """
        complete_us = min(self.settled_until_us, max(held_from_us, self.stated_us))
        if not self.queued and complete_us <= self.stated_us:
            return []
        closings = list(self.queued)
        self.queued.clear()
        self.stated_us = complete_us
        pieces = [closings[i : i + MAX_PER_MESSAGE] for i in range(0, max(len(closings), 1), MAX_PER_MESSAGE)]
        return [Standing(fragment, self.plan.query, self.stated_us, tuple(piece)) for piece in pieces]

    def status(self, now_us: int) -> dict[str, Any]:
        """Return how the contract stands, for the quantity that is worst off."""
        worst = min((c.status(now_us) for c in self.controllers), key=lambda s: s["budget_windows"])
        return {"controller": self.plan.controller, "slack_us": worst["front_us"] - worst["low_mark_us"], **worst}

    def _advance(self, now_us: int) -> None:
        """Close what may close now, and queue the windows that every controller has closed."""
        for number, controller in enumerate(self.controllers):
            for decision in controller.advance(now_us):
                self.closing.setdefault(decision.end_us, {})[number] = _close_quantity(controller, decision)
            controller.settle(now_us)
        mark = min(c.low_mark_us for c in self.controllers)
        for end in sorted(e for e in self.closing if e <= mark):
            quantities = self.closing.pop(end)
            if len(quantities) == len(self.controllers):
                self.queued.append(_join_closings(end, [quantities[i] for i in range(len(quantities))]))

    def _code_sources(self, table: pa.Table) -> tuple[tuple[str, ...], Ints]:
        """Return the names of the sources of a batch, and the index of each row's source among them."""
        coded = table["source"].combine_chunks().dictionary_encode()
        known = set(self.controllers[0].observations.sources.names)
        room = MAX_SOURCES - len(known)
        names = []
        for name in coded.dictionary.to_pylist():
            room -= name not in known
            names.append(name if name in known or room >= 0 else OTHERS)
        distinct = list(dict.fromkeys(names))
        index = np.array([distinct.index(n) for n in names], dtype=np.int64)
        codes = index[np.asarray(coded.indices, dtype=np.int64)] if len(coded) else index
        return tuple(distinct), codes


def _read_batch(table: pa.Table, names: tuple[str, ...], codes: Ints, column: int | None) -> SourceBatch:
    """Return the rows of a table for one quantity: value column `column`, or the number of records."""

    def read_ints(name: str) -> Ints:
        return np.array(table[name].to_numpy(), dtype=np.int64)

    count = read_ints("count")
    if column is None:
        total = square = count.astype(np.float64)
    else:
        total = np.array(table[f"total_{column}"].to_numpy(), dtype=np.float64)
        square = np.array(table[f"square_{column}"].to_numpy(), dtype=np.float64)
    return SourceBatch(
        names, codes, read_ints("slice_us"), read_ints("newest_us"), read_ints("oldest_us"), count, total, square
    )


def _close_quantity(controller: SlackController, decision: CloseDecision) -> QuantityClosing:
    count, total = controller.observations.window_totals(decision.end_us)
    coverage = min(max(decision.coverage, 0.0), 1.0)
    bound = float(decision.bound) if isfinite(decision.bound) else None
    shares = dict(zip(decision.missing, decision.missing_shares, strict=True))
    lacking = {name: min(shares.get(name, 0.0), 1.0) for name in (*decision.missing, *decision.idle)}
    return QuantityClosing(SiteEstimate(coverage, bound, count, total), decision.reason, lacking)


def _join_closings(end_us: int, quantities: Sequence[QuantityClosing]) -> Closing:
    """Return the closing of a window: of each source the largest share that any quantity lacks."""
    lacking: dict[str, float] = {}
    for quantity in quantities:
        for name, share in quantity.lacking.items():
            lacking[name] = max(lacking.get(name, 0.0), share)
    named = sorted(lacking.items(), key=lambda item: (-item[1], item[0]))[:MAX_NAMED]
    reason = max((q.reason for q in quantities), key=_REASONS.index)
    return Closing(end_us, reason, tuple(q.estimate for q in quantities), tuple(named))
