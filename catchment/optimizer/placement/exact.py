"""Exact placement: an integer program for HiGHS, to which the greedy is compared, and a planner for small projects.

Variables: x[o, s], operator o runs at site s (it may run at several); f[c, s, t], channel c goes from s to t; y[c, l],
channel c crosses link l; and how far each link is beyond its capacity. An operator that runs at t has each of its
inputs from exactly one site; a channel leaves only a site where its producer runs; what is pinned runs where it must.
The objective is bytes, with overload at `OVERLOAD_PRICE` per byte. Routes are those of the topology, as for the greedy.
Programs of more than `MAX_VARIABLES` variables are refused: that is about 15 sites and 12 queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from catchment.arrays import Floats
from catchment.errors import PlanError
from catchment.optimizer.placement.cost import Channel, channel
from catchment.optimizer.placement.greedy import WanPlacement
from catchment.optimizer.placement.local_search import relocate
from catchment.optimizer.placement.operators import OperatorGraph, WanOperator
from catchment.optimizer.placement.topology import LinkName, Topology

OVERLOAD_PRICE = 1_000.0  # price of a byte beyond the capacity of a link; a byte within it costs 1
MAX_VARIABLES = 60_000  # of the largest program that is solved
TIME_LIMIT_S = 120.0  # default time limit of the solver
GAP = 1e-6  # the relative gap at which a solution counts as optimal


@dataclass(frozen=True)
class ExactPlacement:
    """The best placement that was found, a lower bound of the cost of any, and whether the two meet."""

    placement: WanPlacement
    bound: float
    optimal: bool


@dataclass
class _Program:
    """A mixed integer program under construction."""

    prices: list[float] = field(default_factory=list)
    uppers: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    names: dict[tuple[object, ...], int] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)

    def variable(self, *name: object, price: float = 0.0, upper: float = 1.0, integral: bool = True) -> int:
        if name not in self.names:
            if len(self.names) >= MAX_VARIABLES:
                raise PlanError(
                    f"the exact planner takes at most {MAX_VARIABLES} decisions, and these queries and sites need more",
                    hint="use --planner greedy",
                )
            self.names[name] = len(self.prices)
            self.prices.append(price)
            self.uppers.append(upper)
            self.integral.append(int(integral))
        return self.names[name]

    def require(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        row = len(self.lows)
        for column, factor in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.factors.append(factor)
        self.lows.append(low)
        self.highs.append(high)

    def solve(self, time_limit_s: float) -> tuple[Floats, float, bool]:
        """Return the values of the variables, a lower bound of the objective, and whether the two meet."""
        shape = (len(self.lows), len(self.prices))
        matrix = coo_array((self.factors, (self.rows, self.columns)), shape=shape).tocsr()
        scale = max((abs(p) for p in self.prices if p), default=1.0) / 1e3
        found = milp(
            np.array(self.prices) / scale,
            constraints=LinearConstraint(matrix, self.lows, self.highs),
            integrality=np.array(self.integral),
            bounds=Bounds(0, np.array(self.uppers)),
            options={"time_limit": time_limit_s, "mip_rel_gap": GAP},
        )
        if found.x is None:
            raise PlanError(f"the exact planner found no placement: {found.message}", hint="use --planner greedy")
        bound = found.mip_dual_bound if found.mip_dual_bound is not None else -math.inf
        return found.x, float(bound) * scale, bool(found.status == 0)


def place_exactly(start: WanPlacement, time_limit_s: float = TIME_LIMIT_S) -> ExactPlacement:
    """Return the cheapest placement of the queries of a start, over its topology and with its kind of flows."""
    builder = _Builder(start.graph, start.topology, start.multicast, start.capacity)
    values, bound, optimal = builder.build().solve(time_limit_s)
    found = relocate(start, builder.read(values))
    if not optimal and start.cost.key < found.cost.key:
        found = start
    return ExactPlacement(found, bound, optimal)


@dataclass
class _Builder:
    graph: OperatorGraph
    topology: Topology
    multicast: bool
    capacity: bool
    program: _Program = field(default_factory=_Program)
    crossings: dict[LinkName, set[int]] = field(default_factory=dict)

    def build(self) -> _Program:
        for operator in self.graph.operators.values():
            self._place_somewhere(operator)
        for operator in self.graph.operators.values():
            for site in self._sites(operator):
                self._feed(operator, site)
        if self.capacity:
            self._limit_links()
        return self.program

    def _sites(self, operator: WanOperator) -> tuple[str, ...]:
        return (operator.site,) if operator.site is not None else self.topology.compute_sites

    def _runs(self, operator: WanOperator, site: str) -> int:
        return self.program.variable("x", operator.name, site)

    def _place_somewhere(self, operator: WanOperator) -> None:
        places = [(self._runs(operator, s), 1.0) for s in self._sites(operator)]
        self.program.require(places, 1.0, math.inf)

    def _feed(self, reader: WanOperator, site: str) -> None:
        """Require that where the reader runs at the site, each of its inputs arrives from one site where it runs."""
        for name in reader.inputs:
            producer = self.graph.operators[name]
            made = channel(name, reader.name, site, self.multicast)
            routes = {s: r for s in self._sites(producer) if (r := self.topology.route(s, site)) is not None}
            terms = [(self._flow(made, producer, s, site, route), 1.0) for s, route in routes.items()]
            self.program.require([*terms, (self._runs(reader, site), -1.0)], 0.0, math.inf)

    def _flow(self, made: Channel, producer: WanOperator, origin: str, site: str, route: tuple[LinkName, ...]) -> int:
        name = ("f", made, origin, site)
        known = name in self.program.names
        flow = self.program.variable(*name)
        if not known:
            self.program.require([(flow, 1.0), (self._runs(producer, origin), -1.0)], -math.inf, 0.0)
            for link in route:
                crossing = self.program.variable("y", made, link, price=producer.rate, integral=False)
                self.crossings.setdefault(link, set()).add(crossing)
                self.program.require([(flow, 1.0), (crossing, -1.0)], -math.inf, 0.0)
        return flow

    def _limit_links(self) -> None:
        for link, crossings in self.crossings.items():
            limit = self.topology.links[link].bandwidth_bytes_per_s
            if math.isfinite(limit):
                over = self.program.variable("over", link, price=OVERLOAD_PRICE, upper=math.inf, integral=False)
                load = [(c, self.program.prices[c]) for c in sorted(crossings)]
                self.program.require([*load, (over, -1.0)], -math.inf, limit)

    def read(self, values: Floats) -> dict[tuple[str, str], str]:
        """Return the site of each operator of each query, from the sinks back: an input is where its channel begins."""
        on = {name for name, column in self.program.names.items() if values[column] > 0.5}
        sites: dict[tuple[str, str], str] = {}
        for query, names in self.graph.queries.items():
            for name in reversed(names):
                operator = self.graph.operators[name]
                if operator.site is not None:
                    sites[query, name] = operator.site
                here = sites.setdefault((query, name), next(s for s in self._sites(operator) if ("x", name, s) in on))
                for read in operator.inputs:
                    made = channel(read, name, here, self.multicast)
                    producer = self.graph.operators[read]
                    came = [s for s in self._sites(producer) if ("f", made, s, here) in on]
                    sites.setdefault((query, read), here if here in came else came[0])
        return sites
