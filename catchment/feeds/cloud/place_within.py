"""The cheapest placement within the budgets of devices, as an integer program over the hosts of views.

A variable says that a view is at a host. What device d uploads of a feed is at least the share that any reader wants
which is not at d, if the feed is born at d; what it downloads is at least the share that any reader at d wants, if it
is born elsewhere. Costs and budgets are linear in these, so one program has all levels of views.

Where uploads are bound, a first solution finds by how many bytes they must exceed their budgets at least; the second
one is the cheapest of those that exceed them by no more. Programs of more than `MAX_CHOICES` choices are not solved:
`Budgets.fit` brings views to the cloud then, which keeps to the budgets without being the cheapest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import scipy.sparse as sparse

from catchment.feeds.cloud.budgets import NO_BOUND, Budgets, loads_of, message_bytes
from catchment.feeds.cloud.choose_hosts import stays_at_cloud
from catchment.feeds.cloud.routes import CLOUD, Hosts
from catchment.feeds.language.view_graph import ViewGraph
from catchment.feeds.placement.costs import LinkCosts
from catchment.feeds.placement.integer_program import least_cost

MAX_CHOICES = 2_000  # hosts of views, of a program that is solved
TIME_LIMIT_S = 2.0  # of one solution; the best that is found until then is taken
SLACK = 1e-9  # by which share a bound may be exceeded, because of rounding

Rates = Mapping[str, float]
Row = tuple[dict[int, float], float]  # the coefficients of a constraint, and what their sum may be at most


def place_within(graph: ViewGraph, hosts: Hosts, rates: Rates, costs: LinkCosts, budgets: Budgets) -> dict[str, str]:
    """Return the cheapest placement within budgets; `hosts`, the cheapest without them, where they hold already."""
    loads = loads_of(graph, hosts, rates)
    if not budgets.exceeded(loads) and budgets.excess(loads) == 0:
        return dict(hosts)
    program = _Program(graph, rates, costs, budgets)
    solved = program.solve() if len(program.choices) <= MAX_CHOICES else None
    return budgets.fit(graph, solved or hosts, rates, costs)


class _Program:
    """The variables and constraints of one view graph."""

    def __init__(self, graph: ViewGraph, rates: Rates, costs: LinkCosts, budgets: Budgets) -> None:
        self.graph = graph
        self.rates = rates
        self.budgets = budgets
        self.choices: dict[tuple[str, str], int] = {}
        for view in graph.views.values():
            possible = [] if stays_at_cloud(graph, view) else sorted(set(graph.origins(view.name)) - {CLOUD})
            for host in (CLOUD, *possible):
                self.choices[view.name, host] = len(self.choices)
        self.count = len(self.choices)
        self.cost: dict[int, float] = {}
        self.uploads: dict[str, dict[int, float]] = {device: {} for device in graph.devices}
        self.downloads: dict[str, dict[int, float]] = {device: {} for device in graph.devices}
        self.rows: list[Row] = []
        self._one_host_each()
        for feed in graph.consumers:
            self._add_feed(feed, rates.get(feed, 0.0), costs)

    def _new_variable(self) -> int:
        self.count += 1
        return self.count - 1

    def _one_host_each(self) -> None:
        of_view: dict[str, dict[int, float]] = {}
        for (view, _), at in self.choices.items():
            of_view.setdefault(view, {})[at] = 1.0
        for row in of_view.values():
            self.rows.append((row, 1.0))
            self.rows.append((dict.fromkeys(row, -1.0), -1.0))

    def _add_feed(self, feed: str, rate: float, costs: LinkCosts) -> None:
        """Add what each device uploads and downloads of a feed, as shares of it."""
        bytes_per_s = rate * message_bytes(self.graph, feed)
        for device in self.graph.devices:
            for way, per_message, loads in (
                (1.0, costs.upload_of(device), self.uploads),
                (-1.0, costs.download_of(device), self.downloads),
            ):
                wanted = list(self._wanted(feed, device, way))
                if not wanted:
                    continue
                share = self._new_variable()
                self.cost[share] = rate * per_message
                loads[device][share] = bytes_per_s
                self.rows += [({**row, share: -1.0}, limit) for row, limit in wanted]

    def _wanted(self, feed: str, device: str, way: float) -> Iterable[Row]:
        """Yield per reader: share * (is born here - is read here) <= uploaded, and the other way for downloads."""
        is_fixed = feed in self.graph.feeds
        born = None if is_fixed else self.choices.get((feed, device))
        born_here = float(is_fixed and self.graph.feeds[feed].device == device)
        for view in self.graph.consumers[feed]:
            read = self.choices.get((view.name, device))
            if (way > 0 and born is None and not born_here) or (way < 0 and (read is None or born_here)):
                continue
            share = view.share_of(feed)
            row: dict[int, float] = {}
            if born is not None:
                row[born] = way * share
            if read is not None:
                row[read] = row.get(read, 0.0) - way * share
            yield row, -way * share * born_here

    def _hard_rows(self) -> Iterable[Row]:
        for device in self.graph.devices:
            budget = self.budgets.of(device)
            if budget.download_bytes_per_s < NO_BOUND:
                yield _scaled(self.downloads[device], budget.download_bytes_per_s)
            if budget.views < NO_BOUND:
                at_device = {at: 1.0 for (_, host), at in self.choices.items() if host == device}
                yield at_device, float(budget.views)

    def solve(self) -> dict[str, str] | None:
        """Return the hosts of the cheapest placement that was found in time; None if there was none."""
        rows = [*self.rows, *self._hard_rows()]
        bound = {
            device: self.budgets.of(device).upload_bytes_per_s
            for device in self.graph.devices
            if self.budgets.of(device).upload_bytes_per_s < NO_BOUND and self.uploads[device]
        }
        excess: dict[int, float] = {}
        for device, limit in bound.items():
            most = sum(self.uploads[device].values())
            if most > 0:
                over = self._new_variable()
                excess[over] = most
                rows.append(_scaled({**self.uploads[device], over: -most}, limit))
        if not excess:
            return self._solve(self.cost, rows)
        nearest = self._solve(excess, rows)
        if nearest is None:
            return None
        least = self.budgets.excess(loads_of(self.graph, nearest, self.rates))
        return self._solve(self.cost, [*rows, _scaled(excess, least)]) or nearest

    def _solve(self, cost: Mapping[int, float], rows: list[Row]) -> dict[str, str] | None:
        weights = np.zeros(self.count)
        weights[list(cost)] = list(cost.values())
        entries = [(number, at, value) for number, (row, _) in enumerate(rows) for at, value in row.items()]
        numbers, columns, values = zip(*entries, strict=True)
        matrix = sparse.csr_array((values, (numbers, columns)), shape=(len(rows), self.count))
        limits = np.array([limit for _, limit in rows])
        found = least_cost(weights, matrix, limits, TIME_LIMIT_S, choices=len(self.choices))
        if found.chosen is None:
            return None
        return {view: host for (view, host), at in self.choices.items() if found.chosen[at]}


def _scaled(row: Mapping[int, float], limit: float) -> Row:
    """Return a constraint in units of its largest part, so that rounding is the same for all."""
    largest = max([abs(value) for value in row.values()] + [limit, 1e-12])
    return {at: value / largest for at, value in row.items()}, limit / largest * (1 + SLACK) + SLACK
