"""Campaigns: many seeds, and whether they have tested what they should.

A campaign fails if a run is wrong, or if a rare state was never entered, or a pair of features never met, or if stated
bounds were missed too often. What it has covered is counted: seeds per feature, per pair and per triple of features,
how often each rare state was entered, and how many bounds were stated.
"""

from __future__ import annotations

import gc
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.testing.campaigns.campaign_results import CampaignResults
from catchment.testing.campaigns.combinations import mark_refused, uncovered
from catchment.testing.campaigns.draw import Draw
from catchment.testing.campaigns.features import Feature, Features
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulation import DeploymentSimulation, RunReport
from catchment.testing.verdicts.stated_bounds import Verdicts

MEMORY_FOLDER = Path("/dev/shm")  # where runs keep their files, if it is there
FULL_CAMPAIGN = 1_000  # seeds from which on every rare state and every pair must have been reached
TRACE_LINES = 60

DRAW_ALL = Draw()

ShowProgress = Callable[[int, int], None]  # seeds that are done, and those of them that are wrong


def run_seed(seed: int, draw: Draw = DRAW_ALL) -> RunReport:
    """Draw a project, its records and its faults from a seed, and simulate it."""
    chance = random.Random(seed)
    enabled = draw.features(chance)
    where = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="catchment-", dir=where) as folder:
        made = draw.project(Path(folder) / "project", chance, enabled)
        deployment = Deployment.load(made.folder)
        workload = draw.workload(deployment.catalog, chance, enabled)
        return DeploymentSimulation(deployment, workload, seed, enabled, made.submissions).run()


@dataclass
class Coverage:
    """What some runs have covered."""

    seeds: int = 0
    records: int = 0
    windows: int = 0
    simulated_s: float = 0.0
    features: Counter[Feature] = field(default_factory=Counter)
    pairs: Counter[tuple[Feature, ...]] = field(default_factory=Counter)
    triples: Counter[tuple[Feature, ...]] = field(default_factory=Counter)
    states: Counter[RareState] = field(default_factory=Counter)
    bounds: Verdicts = field(default_factory=Verdicts)

    def add(self, report: RunReport) -> None:
        enabled = [f for f in Feature if f in report.features]
        self.seeds += 1
        self.records += report.records
        self.windows += report.windows
        self.simulated_s += report.simulated_s
        self.features.update(enabled)
        self.pairs.update(combinations(enabled, 2))
        self.triples.update(combinations(enabled, 3))
        self.states.update(report.seen)
        self.bounds.add(report.bounds)

    def missing(self) -> Iterator[str]:
        """Yield the rare states that were never entered, and the pairs that never met."""
        yield from (f"never: {state.value}" for state in RareState if not self.states[state])
        yield from (f"never together: {a} and {b}" for a, b in combinations(Feature, 2) if not self.pairs[a, b])

    def least_pair(self) -> int:
        """Return the seeds of the pair of features that the fewest seeds had."""
        return min(self.pairs[pair] for pair in combinations(Feature, 2))

    def least_triple(self, among: Collection[Feature] = tuple(Feature)) -> tuple[tuple[Feature, ...], int]:
        """Return the triple of some features that the fewest seeds had, and how many."""
        ordered = [f for f in Feature if f in among]
        least = min(combinations(ordered, 3), key=lambda triple: self.triples[triple])
        return least, self.triples[least]


@dataclass
class CampaignReport:
    """What came of a campaign."""

    coverage: Coverage = field(default_factory=Coverage)
    failures: list[RunReport] = field(default_factory=list)
    draw: Draw = DRAW_ALL

    def add(self, report: RunReport) -> None:
        """Count one more seed."""
        self.coverage.add(report)
        if report.problems:
            self.failures.append(report)

    def problems(self) -> list[str]:
        """Return why the campaign fails; a small one, or one of some features, is not asked to reach everything."""
        wrong = [f"seed {r.seed}: {r.problems[0].splitlines()[0]}" for r in self.failures]
        is_full = self.coverage.seeds >= FULL_CAMPAIGN and self.draw.only is None and not self.draw.late_and_shed
        missing = list(self.coverage.missing()) if is_full else []
        if self.draw.covering:
            missing += uncovered(self.coverage.triples)
        if self.coverage.bounds.is_refuted:
            missing.append(f"bounds are missed too often: {self.coverage.bounds.describe()}")
        return [*wrong, *missing]

    def to_json(self) -> dict[str, object]:
        """Return the report as plain JSON."""
        coverage = self.coverage
        triple, seeds = coverage.least_triple()
        return {
            "seeds": coverage.seeds,
            "records": coverage.records,
            "windows": coverage.windows,
            "simulated_s": round(coverage.simulated_s),
            "bounds": coverage.bounds.describe(),
            "failed": [
                {"seed": r.seed, "problems": r.problems, "replay": replay_command(r.seed, self.draw)}
                for r in self.failures
            ],
            "features": {f.value: coverage.features[f] for f in Feature},
            "pairs": {f"{a} + {b}": coverage.pairs[a, b] for a, b in combinations(Feature, 2)},
            "fewest_seeds_of_a_triple": {" + ".join(triple): seeds},
            "rare_states": {s.value: coverage.states[s] for s in RareState},
        }


def run_campaign(
    seeds: Iterable[int],
    draw: Draw = DRAW_ALL,
    *,
    processes: int = 1,
    results: Path | None = None,
    progress: ShowProgress = lambda done, wrong: None,
) -> CampaignReport:
    """Simulate many seeds, in one process or several; with a file of results, go on after what is in it."""
    report = CampaignReport(draw=draw)
    kept = None if results is None else CampaignResults(results, draw)
    known = {} if kept is None else kept.read()
    to_run = []
    for seed in seeds:
        if seed in known and not known[seed].problems:
            report.add(known[seed])
        else:
            to_run.append(seed)
    for found in _run_all(to_run, draw, processes):
        report.add(found)
        if kept is not None:
            kept.append(found)
        progress(report.coverage.seeds, len(report.failures))
    return report


def replay_command(seed: int, draw: Draw = DRAW_ALL) -> str:
    """Return the command that runs a seed again."""
    return f"python -m catchment.testing --seed {seed}{draw.options()}"


def matrix(coverage: Coverage, refused: Sequence[Features] = ()) -> str:
    """Return the table of how many seeds had each pair of features, in Markdown; refused pairs are marked."""
    features = list(Feature)
    lines = [
        "| | " + " | ".join(f"{i + 1}" for i in range(len(features))) + " |",
        "|---" * (len(features) + 1) + "|",
    ]
    for row, feature in enumerate(features):
        cells = [
            mark_refused(_met(coverage, feature, other), {feature, other}, refused) if column <= row else ""
            for column, other in enumerate(features)
        ]
        lines.append(f"| {row + 1} {feature.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _met(coverage: Coverage, one: Feature, other: Feature) -> int:
    if one == other:
        return coverage.features[one]
    order = list(Feature)
    first, second = sorted((one, other), key=order.index)
    return coverage.pairs[first, second]


def _run_all(seeds: list[int], draw: Draw, processes: int) -> Iterator[RunReport]:
    if processes == 1:
        with _collecting_rarely():
            yield from (_run_one(seed, draw) for seed in seeds)
        return
    with ProcessPoolExecutor(processes, initializer=_collect_rarely) as pool:
        yield from pool.map(_run_one, seeds, [draw] * len(seeds), chunksize=4)


def _collect_rarely() -> None:
    """Leave what was imported out of collections of garbage, and collect after many objects: a run makes few cycles."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Collect rarely for a while, in a process that goes on with something else."""
    before = gc.get_threshold()
    _collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _run_one(seed: int, draw: Draw) -> RunReport:
    """Run a seed; an error that the simulation did not expect is a problem of that seed."""
    try:
        report = run_seed(seed, draw)
    except Exception as error:  # noqa: BLE001 - whatever it is, the campaign names the seed and goes on
        return RunReport(seed, draw.features(random.Random(seed)), [f"{type(error).__name__}: {error}"])
    if not report.problems:
        report.trace.clear()
    return report
