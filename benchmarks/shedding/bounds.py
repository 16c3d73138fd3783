"""How tight the quality room's bounds are, and what the shed planner gains over dropping at the source.

Nothing here runs Spark: bounds are held against simulated sampling, the planner against the load equation.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.shedding.rate_classes import Kept, combine_many, normal_estimate
from catchment.quality.bounds import bound, hoeffding_error
from catchment.quality.needs import Need
from catchment.quality.populations import Population, SampledPart
from catchment.shedding.forest import OperatorNode, QueryNode, ShedForest, StreamNode
from catchment.shedding.plan_json import read_forest
from catchment.shedding.planner import shed_load
from catchment.shedding.strata import group_rates, kept_share, single_rate

DESCRIPTION = "tightness of the error bounds, and the shed planner against uniform dropping (no Spark)"

PLAN = Path(__file__).parents[2] / "examples" / "shed" / "plan.json"
DELTA = 0.01
SIZE = 5_000
Floats = NDArray[np.float64]
WORLDS: dict[str, Callable[[np.random.Generator], Floats]] = {
    "normal": lambda r: r.normal(10, 3, SIZE),
    "lognormal": lambda r: r.lognormal(0, 1, SIZE),
    "pareto 1.5": lambda r: r.pareto(1.5, SIZE) + 1,
    "mostly zeros": lambda r: np.where(r.random(SIZE) < 0.95, 0.0, r.exponential(10, SIZE)),
}


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """All five comparisons."""
    trials = 400 if quick else 4_000
    rng = np.random.default_rng(11)
    report(f"sampling {len(WORLDS)} distributions {trials} times at 3 rates")
    return {
        "compared": "bounds with the errors of simulated samples; planned samplers with one rate at the source",
        "data": f"{SIZE} generated values a distribution; {PLAN.name} of examples/shed",
        "delta": DELTA,
        "bounds": [row for name in WORLDS for rate in (0.02, 0.1, 0.5) for row in _tightness(rng, name, rate, trials)],
        "tails": [row for name in WORLDS for row in _tails(rng, name, trials // 4)],
        "groups": [_groups(aggregate, error) for aggregate in ("count", "sum", "avg") for error in (0.05, 0.1, 0.2)],
        "planner": [_against_uniform(overload) for overload in (2, 5, 10, 20)],
        "speed": [_speed(size) for size in ((100, 1_000) if quick else (100, 1_000, 10_000, 100_000))],
    }


def _tightness(rng: np.random.Generator, world: str, rate: float, trials: int) -> list[dict[str, Any]]:
    """What is promised, and how often it is missed."""
    values = WORLDS[world](rng)
    part = SampledPart(Population(SIZE, float(values.mean()), float(values.std()), _range(values)), rate)
    off = {"sum": np.empty(trials), "avg": np.empty(trials)}
    for t in range(trials):
        kept = values[rng.random(SIZE) < rate]
        off["sum"][t] = abs(kept.sum() / rate / values.sum() - 1)
        off["avg"][t] = abs(kept.mean() / values.mean() - 1)
    rows = []
    for aggregate, errors in off.items():
        stated, normal = bound(aggregate, part, DELTA), normal_estimate(aggregate, part, DELTA).error
        figures = {"hoeffding": hoeffding_error("sum", part, DELTA) if aggregate == "sum" else None}
        figures |= {"stated": stated.error, "normal": normal, "observed_99": float(np.quantile(errors, 1 - DELTA))}
        misses = {"misses": float(np.mean(errors > stated.error)), "misses_normal": float(np.mean(errors > normal))}
        rows.append({"values": world, "aggregate": aggregate, "rate": rate, **figures, "by": stated.method, **misses})
    return rows


def _range(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _tails(rng: np.random.Generator, world: str, trials: int) -> list[dict[str, Any]]:
    """A sum's bound from the sample alone: without a range, with it, and with the top 1% of values never shed."""
    values, rate = np.abs(WORLDS[world](rng)), 0.1
    limit = float(np.quantile(values, 0.99))
    ways = {
        "moments of the sample": (np.full(SIZE, rate), None),
        "range known": (np.full(SIZE, rate), _range(values)),
        "large values never shed": (np.where(values > limit, 1.0, rate), (0.0, limit)),
    }
    return [_tail(rng, values, world, way, *given, trials) for way, given in ways.items()]


def _tail(
    rng: np.random.Generator,
    values: Floats,
    world: str,
    way: str,
    rates: Floats,
    limits: tuple[float, float] | None,
    trials: int,
) -> dict[str, Any]:
    widths, missed = [], 0
    for _ in range(trials):
        kept = rng.random(SIZE) < rates
        answers = combine_many("sum", _classes(values[kept], rates[kept]), DELTA, limits)
        widths.append(float(answers.half_widths[0]) / values.sum())
        missed += abs(answers.values[0] - values.sum()) > answers.half_widths[0]
    return {
        "values": world,
        "way": way,
        "guarantee": str(answers.guarantee),
        "kept": float(rates.mean()),
        "stated": float(np.median(widths)),
        "misses": missed / trials,
    }


def _classes(values: Floats, rates: Floats) -> Kept:
    found = np.unique(rates)
    parts = [values[rates == rate] for rate in found]
    moments = np.array([(len(v), v.mean(), len(v) * v.var()) for v in parts]).T
    return Kept(np.zeros(len(found), dtype=np.intp), found, moments[0], moments[1], moments[2], 1, float(found.min()))


def _groups(aggregate: str, error: float) -> dict[str, Any]:
    """One rate for all groups, one rate per group, and one rate per group for those that carry 90% of the records."""
    shares = np.arange(1, 1_001) ** -1.1
    groups = {str(i): Population(max(1, round(1e6 * s / shares.sum())), 10, 5) for i, s in enumerate(shares)}
    each, most = (group_rates(aggregate, groups, error, DELTA, mass) for mass in (1.0, 0.9))
    return {
        "aggregate": aggregate,
        "error": error,
        "one_rate": single_rate(aggregate, groups, error, DELTA),
        "rate_a_group": kept_share(groups, each),
        "mass_90": kept_share(groups, most),
    }


def _against_uniform(overload: float) -> dict[str, Any]:
    """The worst error of the example plan, by the planner and by one sampler at the source of the same load."""
    document = json.loads(PLAN.read_text())
    for query in document["queries"]:
        query.pop("max_error", None)
    load = read_forest(document, str(PLAN)).load
    forest = read_forest(document | {"capacity": load / overload}, str(PLAN))
    needs = [Need(q.aggregate, q.population, forest.delta) for q in forest.queries]
    planned, uniform = shed_load(forest).max_error, max(need.error(1.0 / overload) for need in needs)
    return {"overload": overload, "planned": planned, "uniform": uniform, "ratio": uniform / planned}


def _speed(size: int) -> dict[str, Any]:
    """CPU seconds to make and to plan a random forest of so many operators, half as many queries."""
    rng = np.random.default_rng(size)
    operators = tuple(
        OperatorNode(f"o{i}", "s" if i < 3 else f"o{rng.integers(0, i)}", float(rng.uniform(0.3, 1)), 1e-6)
        for i in range(size)
    )
    queries = tuple(
        QueryNode(f"q{i}", f"o{rng.integers(0, size)}", "count", Population(float(10 ** rng.uniform(2, 6))))
        for i in range(size // 2)
    )
    started = time.process_time()
    probe = ShedForest(1.0, DELTA, (StreamNode("s", 1e4),), operators, queries)
    forest = ShedForest(probe.load / 5, DELTA, probe.streams, operators, queries)
    built = time.process_time()
    plan = shed_load(forest)
    assert math.isclose(plan.load_after, forest.capacity, rel_tol=1e-9)
    return {"operators": size, "build_cpu_s": (built - started) / 2, "plan_cpu_s": time.process_time() - built}


def render(result: Mapping[str, Any]) -> RenderableType:
    """One table a comparison."""
    return Group(*(_table(name, result[name]) for name in ("bounds", "tails", "groups", "planner", "speed")))


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else "" if v is None else str(v) for v in row.values()))
    return table
