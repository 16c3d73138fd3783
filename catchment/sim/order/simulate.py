"""Order, contract, repair in simulation: one trace, one query, several slack controllers side by side.

Each controller is driven through the trace micro-batch by micro-batch by the same code that a site runs; its closings
are judged against answers computed from all records; its late records are repaired to the end. Beside them stands the
clairvoyant lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats
from catchment.errors import SimulationError
from catchment.quality.contract import Contract, Measure
from catchment.sim.order.answers import WindowAnswers, Windows, answers, errors
from catchment.sim.order.oracle import Oracle, oracle
from catchment.sim.order.repair import RepairOutcome, RepairPolicy, repair
from catchment.sim.order.replay import ReplayOutcome, cut_in_steps, replay
from catchment.sim.order.trace import ArrivalTrace
from catchment.site.slack import SlackConfig, SlackTask
from catchment.timeline import SECOND_US, WindowSpec
from catchment.units import format_duration

STEPS_PER_SLIDE = 10  # default micro-batches per slide


@dataclass(frozen=True)
class Question:
    """What is simulated: a query on a trace, under a contract."""

    window: WindowSpec
    measure: Measure
    contract: Contract
    max_wait_us: int = 0
    step_us: int = 0
    repair: RepairPolicy = field(default_factory=RepairPolicy)

    @property
    def clock_us(self) -> int:
        return self.step_us or max(self.window.slide_us // STEPS_PER_SLIDE, 1)


@dataclass(frozen=True)
class Run:
    """The closings, answers and repairs of one controller on the trace."""

    name: str
    replay: ReplayOutcome
    repair: RepairOutcome
    published_answers: Floats
    errors: Floats
    bounds: Floats
    max_error: float
    delta: float
    keyed_errors: Floats | None = None  # error of every (window, key), where the trace has keys

    @property
    def latency_s(self) -> Floats:
        return (self.replay.closed_at_us - self.replay.ends_us) / SECOND_US

    @property
    def violated(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.errors >= self.max_error)

    def _share_off(self, off: Floats) -> float:
        return float(np.mean(off >= self.max_error))

    def overdrawn_s(self) -> float:
        """Return for how long more windows had violated the contract than it allows of those so far."""
        over = np.cumsum(self.violated) > self.delta * np.arange(1, len(self.errors) + 1) + 1.0
        lengths = np.diff(self.replay.closed_at_us, append=self.replay.closed_at_us[-1])
        return float(lengths[over].sum()) / SECOND_US

    def figures(self, records: int) -> dict[str, Any]:
        """Return the figures of the run, as a JSON document."""
        keyed = {} if self.keyed_errors is None else {"keyed_violations": self._share_off(self.keyed_errors)}
        return {
            "name": self.name,
            "mean_slack_s": float(self.replay.slack_us.mean()) / SECOND_US,
            "mean_latency_s": float(self.latency_s.mean()),
            "p95_latency_s": float(np.quantile(self.latency_s, 0.95)),
            "violations": self._share_off(self.errors),
            **keyed,
            "contract_kept": bool(self.violated.mean() <= self.delta),
            "overdrawn_s": self.overdrawn_s(),
            "bound_misses": float(np.mean(self.errors > self.bounds)),
            "mean_error": float(np.minimum(self.errors, 1.0).mean()),
            "late_records": self.repair.late_records,
            "repaired_windows": self.repair.repaired_windows,
            "revisions": self.repair.revisions,
            "repair_cost": self.repair.items / records,
            "reread_cost": self.repair.reread_items / records,
            "final_exact": self.repair.final_exact,
            "closed": dict(Counter(o.reason for o in self.replay.decisions.values())),
        }


@dataclass(frozen=True)
class Simulation:
    """All runs on one trace, and what the clairvoyant would have done."""

    trace: ArrivalTrace
    question: Question
    windows: Windows
    truth: WindowAnswers
    oracle: Oracle
    runs: tuple[Run, ...]

    def figures(self) -> dict[str, Any]:
        """Return the JSON document of the command."""
        return {
            "trace": self.trace.name,
            "records": len(self.trace),
            "windows": len(self.windows),
            "aggregate": str(self.question.measure),
            "max_error": self.question.contract.max_error,
            "confidence": self.question.contract.confidence,
            "controllers": [run.figures(len(self.trace)) for run in self.runs],
            "oracle_latency_s": self.oracle.latency_s,
            "oracle_strict_latency_s": self.oracle.strict_latency_s,
            "oracle_fixed_latency_s": self.oracle.fixed_latency_s,
        }


def simulate(
    trace: ArrivalTrace,
    question: Question,
    controllers: Sequence[SlackConfig],
    report: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Run every controller over the trace."""
    windows = Windows.of(trace, question.window)
    if not len(windows):
        raise SimulationError(
            f"no window of {format_duration(question.window.size_us)} has ended by the newest event time",
            where=trace.name,
            hint="use a shorter window, or a longer trace",
        )
    truth = answers(trace, windows, question.measure)
    steps = cut_in_steps(trace, question.window, question.clock_us)
    task = SlackTask(question.window, question.measure, question.contract, question.max_wait_us)
    runs = []
    for config in controllers:
        report(f"{config.name}: {len(steps.at_us)} micro-batches")
        played = replay(steps, config.build(task), windows.ends_us)
        runs.append(_measure_run(config.name, trace, question, windows, truth, played))
    bounds = oracle(trace, windows, question.measure, question.contract, question.clock_us)
    return Simulation(trace, question, windows, truth, bounds, tuple(runs))


def _measure_run(
    name: str, trace: ArrivalTrace, question: Question, windows: Windows, truth: WindowAnswers, played: ReplayOutcome
) -> Run:
    mended = repair(trace, windows, played.closed_at_us, question.measure, question.repair, question.clock_us)
    said = published_answers(trace, windows, question.measure, played, mended)
    off = errors(trace, windows, question.measure, said, truth)
    bounds = np.array([o.bound if (o := played.decisions.get(e)) else np.inf for e in windows.ends_us.tolist()])
    contract = question.contract
    keyed = _keyed_errors(trace, windows, question.measure, mended) if trace.key is not None else None
    return Run(name, played, mended, said, off, bounds, contract.max_error, contract.delta, keyed)


def _keyed_errors(trace: ArrivalTrace, windows: Windows, measure: Measure, mended: RepairOutcome) -> Floats:
    """Return how far the answers of each key in each window were off, as far as they were in when the window closed."""
    assert trace.key is not None
    keyed, order = windows.by_key(trace.key)
    in_time = answers(trace, keyed, measure, mended.known[order])
    return errors(trace, keyed, measure, in_time.value, answers(trace, keyed, measure))


def published_answers(
    trace: ArrivalTrace, windows: Windows, measure: Measure, played: ReplayOutcome, mended: RepairOutcome
) -> Floats:
    """Return the answers as they were first published, with what was imputed."""
    in_time = answers(trace, windows, measure, mended.known)
    decisions = [played.decisions.get(end) for end in windows.ends_us.tolist()]
    count = np.array([o.imputed_count if o else 0.0 for o in decisions])
    total = np.array([o.imputed_total if o else 0.0 for o in decisions])
    if measure.name == "quantile" or not (count.any() or total.any()):
        return in_time.value
    whole: Floats = in_time.total + total
    if measure.name == "avg":
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = whole / (in_time.count + count)
    return whole if measure.name != "count" else np.asarray(in_time.count + count)
