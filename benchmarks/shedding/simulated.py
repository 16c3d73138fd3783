"""A burst without Spark: the product's monitor, readers, lifts and bounds over the real log, on a site of known costs.

So what is decided and answered is what a site would decide and answer, without the noise of a machine, and many hours
of the log, seeds of the sampler and factors can be gone through. It cannot tell what Spark costs. To go through more
of them, one row stands for `SCALE` rows of the stream: costs and counts are those of `SCALE`, and errors are larger by
its root, for planned and uniform alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.shedding.monitors import Planned, Uniform
from benchmarks.shedding.world import (
    BEFORE_S,
    MAIN_CODES,
    START_S,
    VIEWS,
    Log,
    columns_of,
    make_table,
    members,
    phases_of,
    read_log,
    truth_of,
    write_project,
)
from catchment.aggregates import Aggregate, partials
from catchment.deploy.deployment import Deployment
from catchment.optimizer.sharing.derive import derive
from catchment.query.fragment import SLICE_COLUMN
from catchment.shedding.conditions import read_requests
from catchment.shedding.cost_book import FILTER, HISTORY, PREPARE
from catchment.shedding.monitor import Arrivals, Decision, LoadMonitor
from catchment.shedding.places import SamplingRule
from catchment.shedding.reader_filter import is_wanted
from catchment.shedding.sampler import Selection
from catchment.shedding.terms import scale_answers
from catchment.site.lifting import Lift, Places
from catchment.spark.evaluation.evaluator import Reduced, aggregates_with_counts, merge_pieces, to_reduced
from catchment.spark.evaluation.one_pass import Take
from catchment.spark.pipelines.shedding import StreamShedding, stream_shedding
from catchment.spark.sources.streams import OpenedStream
from catchment.timeline import ManualClock

# The rules of the monitor were tried on other hours: 0 to 5, 14 and 15.
HOURS = ((8, 9), (11, 12), (17, 18), (20, 21), (22, 23))
SEEDS = (1, 2)
TIMES = (10, 2, 5, 20)
SCALE = 16
DELTA = 0.05
TRIGGER_S = 0.5
BURST_S = 8.0
# What micro-batches of this project cost on one machine, in seconds: whatever their rows; then of a row that is kept
# whole, that is read and parsed, that a fragment works on, and that is passed over.
BATCH_S, KEEP_S, PREPARE_S, WORK_S, SIFT_S = 0.8, 2.6e-6, 3.0e-6, 0.05e-6, 0.05e-6
CAPACITY = 1.0 / (KEEP_S + len(VIEWS) * WORK_S)


@dataclass
class Batch:
    """A micro-batch: when it began, how long it took, its rows, those that were read, and what was expected."""

    at_s: float
    lasted_s: float
    rows: int
    read: int
    predicted: float | None


@dataclass
class Rig:
    """A site of known costs over the records of one burst."""

    shedding: StreamShedding
    plans: Sequence[Any]
    records: pa.RecordBatch
    arrived_s: np.ndarray
    batches: list[Batch] = field(default_factory=list)
    found: dict[str, list[pa.Table]] = field(default_factory=dict)
    lowest: dict[str, dict[int, dict[Any, float]]] = field(default_factory=dict)  # view -> window -> group -> rate

    @property
    def monitor(self) -> LoadMonitor:
        return self.shedding.monitor

    def run(self) -> None:
        """Micro-batch after micro-batch, as fast as their costs allow."""
        now_s, last_s, at = TRIGGER_S, 0.0, 0
        while at < len(self.arrived_s):
            end = int(np.searchsorted(self.arrived_s, now_s, side="right"))
            lasted_s = self._batch(at, end, now_s, now_s - last_s) if end > at else 0.0
            last_s = now_s if end > at else last_s
            now_s, at = now_s + max(TRIGGER_S, lasted_s), end

    def _batch(self, at: int, end: int, now_s: float, waited_s: float) -> float:
        lasted_s = self.batches[-1].lasted_s if self.batches else 0.0
        interval_s = min(waited_s, max(TRIGGER_S, lasted_s))
        rows, records = end - at, self.records.slice(at, end - at)
        decision = self.monitor.decide(Arrivals(rows * SCALE, interval_s, 0))
        if decision.rates:
            conditions = self.shedding.conditions
            wanted = [r for name, test in conditions.items() for r in read_requests(test, decision.sampler(name))]
            places = np.asarray(records["place"]).astype(np.uint64)
            records = records.filter(pa.array(is_wanted(wanted, records, places)))
        self._take(records, decision, rows, float(self.arrived_s[end - 1] - self.arrived_s[at]), at)
        work = self._learn_costs(rows * SCALE, records.num_rows * SCALE, decision)
        predicted = max(decision.errors.values()) if decision.errors else None
        self.batches.append(Batch(now_s, work, rows, records.num_rows, predicted))
        return work

    def _take(self, records: pa.RecordBatch, decision: Decision, rows: int, span_s: float, at: int) -> None:
        looks = not decision.rates and self.monitor.wants_moments(rows * SCALE)
        for plan in self.plans:
            name = plan.fragment.name
            take = Take(plan.fragment, Selection(decision.sampler(name)), looks)
            reduced = merge_pieces([reduce(records, piece) for piece in take.split()], take.split())
            self.found.setdefault(name, []).append(reduced.table)
            self.shedding.learn_fragment(plan.fragment, reduced, rows, span_s)
            if take.selection.sampler.sheds:
                slices = np.asarray(self.records[f"slice:{name}"].slice(at, rows))
                self._note_rates(name, take, range(slices[0], slices[-1] + 1, VIEWS[name][2] * 1_000_000))

    def _note_rates(self, name: str, take: Take, slices: range) -> None:
        sampler = take.selection.sampler
        named = {None: sampler.rate} if sampler.groups is None else dict(sampler.groups.rates)
        for at in slices:
            known = self.lowest.setdefault(name, {}).setdefault(at, {})
            known |= {group: min(rate, known.get(group, 1.0)) for group, rate in named.items()}

    def _learn_costs(self, rows: int, read: int, decision: Decision) -> float:
        spent = {p.fragment.name: rows * decision.rates.get(p.fragment.name, 1.0) * WORK_S for p in self.plans}
        if decision.rates:
            spent |= {PREPARE: BATCH_S + read * PREPARE_S, FILTER: rows * SIFT_S}
            self.monitor.learn_sampled(rows, decision.rates, spent, read)
        else:
            spent[HISTORY] = BATCH_S + rows * KEEP_S
            self.monitor.learn_whole(rows, spent)
        return sum(spent.values())


def reduce(records: pa.RecordBatch, take: Take) -> Reduced:
    """The partials of one take, lifted as Spark's tasks lift them."""
    fragment, name = take.fragment, take.fragment.name
    keys = ((SLICE_COLUMN, f"slice:{name}"), *((key.name, "code") for key in fragment.keys))
    aggregates = aggregates_with_counts(fragment, take.has_moments)
    arguments = tuple(None if a.argument is None else "size" for a in aggregates)
    counts = f"is:{name}" if f"is:{name}" in records.schema.names else None
    selection = take.selection.over_columns(lambda _: "size", lambda _: "code")
    lift = Lift(keys, aggregates, arguments, counts, selection)
    return to_reduced(lift.of(records, Places(np.asarray(records["place"]).astype(np.int64))), take, 0.0)


class Scene:
    """A burst before anybody meets it: its records as the tasks that read them see them, and the truth."""

    def __init__(self, log: Log, times: float) -> None:
        table = make_table(log, phases_of(CAPACITY / SCALE, times, BURST_S))
        with tempfile.TemporaryDirectory() as scratch:
            self.deployment = Deployment.load(write_project(Path(scratch) / "p", Path(scratch) / "log.parquet", True))
        self.micros = np.asarray(table["ts"].cast(pa.int64()))
        starts = {w: pa.array(self.micros // (w * 10**6) * (w * 10**6)) for w in {view[2] for view in VIEWS.values()}}
        self.columns = {c: table[c].combine_chunks() for c in ("code", "size", "crawler")}
        self.columns |= {f"is:{view}": pa.array(mask) for view, mask in members(table).items() if mask is not None}
        self.columns |= {f"slice:{view}": starts[window] for view, (_, _, window, _) in VIEWS.items()}
        self.truth = truth_of(table)

    def rig(self, seed: int, make_monitor: Callable[..., LoadMonitor]) -> Rig:
        """A site that meets it, with a sampler of this seed."""
        plans, schema = self.deployment.fragments_at("edge"), self.deployment.catalog.streams["hits"].schema
        opened, clock = OpenedStream(None, reread_rows=lambda *_: None, columns=schema), ManualClock(0)
        shedding = stream_shedding("hits", plans, opened, None, Path(), clock, TRIGGER_S, True, make_monitor)  # type: ignore[arg-type]
        places = SamplingRule("hits", ("row",), seed).places([pa.array(np.arange(len(self.micros)))])
        records = pa.record_batch(self.columns | {"place": pa.array(places.astype(np.float64))})
        return Rig(shedding, plans, records, self.micros / 1e6 - START_S)


@dataclass
class Outcome:
    """What was answered of the windows of the burst."""

    errors: dict[str, float] = field(default_factory=dict)
    bounds: int = 0
    missed: int = 0

    def add(self, view: str, off: float, bound: float) -> None:
        self.errors[view] = max(self.errors.get(view, 0.0), off)
        if 0.0 < bound < np.inf:
            self.bounds, self.missed = self.bounds + 1, self.missed + (off > bound)


def judge(rig: Rig, scene: Scene) -> Outcome:
    """The answers that a center would first publish, against the truth."""
    truth, outcome = scene.truth, Outcome()
    for plan in rig.plans:
        view, fragment = plan.fragment.name, plan.fragment
        merged = partials.combine(
            pa.concat_tables(rig.found[view]), [SLICE_COLUMN, *fragment.key_names], fragment.aggregates
        )
        derivation = scene.deployment.deployed.derivation(view)
        answers = derive(merged, derivation)
        named = [name for name in answers.column_names if name in [n for _, n in derivation.keys]]
        starts = answers[SLICE_COLUMN].to_pylist()
        groups = answers[named[0]].to_pylist() if named else [0] * len(starts)
        shown = [a for a in derivation.aggregates if a.function in ("count", "sum", "avg")]
        for aggregate, column in zip(shown, columns_of(view), strict=True):
            for place, off, bound in _errors_and_bounds(
                rig, view, answers, aggregate, column, starts, groups, truth[view]
            ):
                if BEFORE_S < place / 1e6 - START_S + VIEWS[view][2] <= BEFORE_S + BURST_S:
                    outcome.add(view, off, bound)
    return outcome


def _errors_and_bounds(
    rig: Rig,
    view: str,
    answers: pa.Table,
    aggregate: Aggregate,
    column: str,
    starts: Sequence[int],
    groups: Sequence[Any],
    truth: Mapping[Any, Mapping[str, float]],
) -> Iterator[tuple[int, float, float]]:
    known = rig.lowest.get(view, {})
    lowest = [
        min(known.get(s, {}).get(g, 1.0), known.get(s, {}).get(None, 1.0)) for s, g in zip(starts, groups, strict=True)
    ]
    values, bounds = scale_answers(answers, aggregate, DELTA, np.array(lowest))
    for start, group, value, bound in zip(starts, groups, values.to_pylist(), bounds.tolist(), strict=True):
        wanted = truth[start, group][column]
        if wanted and (view != "by_code" or group in MAIN_CODES):
            yield start, abs(value - wanted) / wanted, bound


def meet(scene: Scene, seed: int, make_monitor: Callable[..., LoadMonitor]) -> dict[str, Any]:
    """One burst, met by one monitor."""
    rig = scene.rig(seed, make_monitor)
    rig.run()
    outcome = judge(rig, scene)
    burst = [b for b in rig.batches if b.read < b.rows and b.at_s <= BEFORE_S + BURST_S]
    return {
        "error": max(outcome.errors.values()),
        "errors": outcome.errors,
        "bounds": outcome.bounds,
        "missed": outcome.missed,
        "predicted": max((b.predicted for b in burst if b.predicted), default=None),
        "read_share": sum(b.read for b in burst) / max(sum(b.rows for b in burst), 1),
        "batch_worst_s": max(b.lasted_s for b in rig.batches),
    }


def simulate(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Planned against one rate for all, over hours and seeds."""
    cells = []
    logs = {hours: read_log(hours) for hours in (HOURS[:1] if quick else HOURS)}
    for times in TIMES[:1] if quick else TIMES:
        for hours, log in logs.items():
            scene = Scene(log, times)
            for seed in SEEDS[:1] if quick else SEEDS:
                planned, uniform = (meet(scene, seed, kind) for kind in (Planned, Uniform))
                cells.append({"hours": hours, "times": times, "seed": seed, "planned": planned, "uniform": uniform})
                report(
                    f"{times} times, hours {hours}, seed {seed}: {planned['error']:.4f} against {uniform['error']:.4f}"
                )
    return {"cells": cells, "ratios": ratios(cells), "hours": HOURS, "seeds": SEEDS, "scale": SCALE}


def ratios(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many times lower the worst error is than at one rate, by factor; also as it would be where planned rates
    happened to read more: errors fall with the root of what is read."""
    found = []
    for times in sorted({c["times"] for c in cells}):
        of = [c for c in cells if c["times"] == times]
        each = [c["uniform"]["error"] / c["planned"]["error"] for c in of]
        reads = [c["uniform"]["read_share"] / c["planned"]["read_share"] for c in of]
        fair = [ratio * min(1.0, read) ** 0.5 for ratio, read in zip(each, reads, strict=True)]
        found.append(
            {
                "times": times,
                "bursts": len(of),
                "median": float(np.median(each)),
                "worst": min(each),
                "median_for_as_much_read": float(np.median(fair)),
                "worst_for_as_much_read": min(fair),
                "planned": float(np.median([c["planned"]["error"] for c in of])),
                "uniform": float(np.median([c["uniform"]["error"] for c in of])),
                "predicted": float(np.median([c["planned"]["predicted"] for c in of])),
                "read_planned": float(np.median([c["planned"]["read_share"] for c in of])),
                "read_uniform": float(np.median([c["uniform"]["read_share"] for c in of])),
                "bounds": sum(c["planned"]["bounds"] for c in of),
                "missed": sum(c["planned"]["missed"] for c in of),
            }
        )
    return found
