"""Random forests, and oracles for them that know nothing of the planner: linear programs and plain
recursion."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from catchment.quality.populations import Population
from catchment.shedding.forest import OperatorNode, QueryNode, ShedForest, StreamNode

DELTA = 0.01


def random_forest(seed: int, *, overload: float | None = None, query_cost: bool = False) -> ShedForest:
    """One to three streams, up to eleven operators, one to seven COUNT and SUM queries, wherever they
    fall."""
    r = np.random.default_rng([seed, 97])
    streams = [StreamNode(f"s{i}", float(r.uniform(100, 10_000))) for i in range(r.integers(1, 4))]
    operators: list[OperatorNode] = []
    for i in range(r.integers(1, 12)):
        above = str(r.choice([s.name for s in streams] + [o.name for o in operators]))
        operators.append(OperatorNode(f"o{i}", above, float(r.uniform(0.05, 1.3)), float(10 ** r.uniform(-6, -3))))
    inputs = [s.name for s in streams] + [o.name for o in operators] * 3
    queries = [_random_query(r, f"q{i}", str(r.choice(inputs)), query_cost) for i in range(r.integers(1, 8))]
    probe = ShedForest(1.0, DELTA, tuple(streams), tuple(operators), tuple(queries))
    factor = overload if overload is not None else float(r.uniform(1.05, 20))
    return ShedForest(probe.load / factor, DELTA, tuple(streams), tuple(operators), tuple(queries))


def _random_query(r: np.random.Generator, name: str, input_: str, costs: bool) -> QueryNode:
    aggregate = "count" if r.random() < 0.4 else "sum"
    mean = float(r.uniform(0.5, 50)) * (-1 if r.random() < 0.2 else 1)
    population = Population(float(10 ** r.uniform(0, 6)), mean, float(r.uniform(0, 100)))
    return QueryNode(name, input_, aggregate, population, seconds_per_tuple=1e-5 * r.random() if costs else 0.0)


def slope_of(query: QueryNode, delta: float) -> float:
    """C of equation 2, written out again."""
    n, mean, std = query.population.count, query.population.mean, query.population.std
    second = 1.0 if query.aggregate == "count" else (std**2 + mean**2) / mean**2
    return math.sqrt(second / (2 * n) * math.log(2 / delta))


def loads_by_recursion(forest: ShedForest) -> dict[str, float]:
    """Tuples a second into a node, times what one costs, by following inputs up to the stream."""

    def into(name: str) -> float:
        node = forest.nodes[name]
        if isinstance(node, StreamNode):
            return node.rate
        above = forest.nodes[node.input]
        return into(node.input) * (above.selectivity if isinstance(above, OperatorNode) else 1.0)

    return {node.name: into(node.name) * node.seconds_per_tuple for node in forest.readers}


def load_by_samplers(forest: ShedForest, samplers: dict[str, float]) -> float:
    """The load equation as printed: each operator's load times the samplers on its path."""

    def passed(name: str) -> float:
        node = forest.nodes[name]
        return 1.0 if isinstance(node, StreamNode) else samplers.get(name, 1.0) * passed(node.input)

    return sum(load * passed(name) for name, load in loads_by_recursion(forest).items())


def effective_by_samplers(forest: ShedForest, samplers: dict[str, float], query: str) -> float:
    node = forest.nodes[query]
    return (
        1.0
        if isinstance(node, StreamNode)
        else samplers.get(query, 1.0) * effective_by_samplers(forest, samplers, node.input)
    )


def _edges(forest: ShedForest) -> tuple[dict[str, int], list[tuple[int, int]]]:
    """A variable a reader (the rate at which it runs), and the pairs (child, parent) with child <= parent."""
    index = {node.name: i for i, node in enumerate(forest.readers)}
    pairs = [(index[n.name], index[n.input]) for n in forest.readers if n.input in index]
    return index, pairs


def least_load_by_lp(forest: ShedForest, wanted: dict[str, float]) -> float:
    """The least load of any placement that gives every query at least its rate (HiGHS).

    Rates of nodes in place of samplers: a placement is a choice of node rates that fall along every path.
    """
    index, pairs = _edges(forest)
    cost = np.zeros(len(index))
    for name, load in loads_by_recursion(forest).items():
        cost[index[name]] = load
    falls = np.zeros((len(pairs), len(index)))
    for row, (child, parent) in enumerate(pairs):
        falls[row, child], falls[row, parent] = 1.0, -1.0
    limits = [(wanted.get(node.name, 0.0), 1.0) for node in forest.readers]
    scale = cost.max() or 1.0
    solved = linprog(
        cost / scale,
        A_ub=falls if pairs else None,
        b_ub=np.zeros(len(pairs)) if pairs else None,
        bounds=limits,
    )
    assert solved.status == 0, solved.message
    return float(solved.fun) * scale


def least_error_by_milp(forest: ShedForest) -> float:
    """The least worst error, as one mixed integer program: most pressure, each query either whole or at
    pressure * C."""
    index, pairs = _edges(forest)
    size, queries = len(index), forest.queries
    slopes = [slope_of(q, forest.delta) for q in queries]
    unit = max(slopes)  # pressure is counted in 1 / unit, to keep the numbers near 1
    top = max(unit / c for c in slopes)
    columns, rows, low, high = size + 1 + len(queries), [], [], []

    def row(entries: dict[int, float], least: float, most: float) -> None:
        line = np.zeros(columns)
        for at, value in entries.items():
            line[at] = value
        rows.append(line)
        low.append(least)
        high.append(most)

    for child, parent in pairs:
        row({child: 1.0, parent: -1.0}, -np.inf, 0.0)
    for k, (query, slope) in enumerate(zip(queries, slopes, strict=True)):
        whole, node = size + 1 + k, index[query.name]
        row({node: 1.0, size: -slope / unit, whole: top}, 0.0, np.inf)
        row({node: 1.0, whole: -1.0}, 0.0, np.inf)
    loads = loads_by_recursion(forest)
    row({index[name]: load / forest.capacity for name, load in loads.items()}, -np.inf, 1.0)
    goal, integer = np.zeros(columns), np.zeros(columns)
    goal[size], integer[size + 1 :] = -1.0, 1
    upper: NDArray[np.float64] = np.r_[np.ones(size), top, np.ones(len(queries))]
    solved = milp(
        goal,
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=integer,
        bounds=Bounds(np.zeros(columns), upper),
        options={"mip_rel_gap": 1e-9},
    )
    assert solved.status == 0, solved.message
    return unit / float(solved.x[size])
