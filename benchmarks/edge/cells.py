"""The cells of the simulated edge benchmark: one trace through links, beliefs and policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.edge.traces import NamedTrace, load
from catchment.sim.edge.known_rates import simulate_known_counts, simulate_known_rates
from catchment.sim.edge.network import Bandwidth
from catchment.sim.edge.simulate import EdgeOutcome, EdgeScenario, simulate

OURS, INSURED, THEIRS = "spillway", "spillway:2", "hybrid:0.25"
HYBRIDS = ("hybrid:0", "hybrid:0.25", "hybrid:0.5", "hybrid:0.75", "hybrid:1")
EXTREMES = ("streaming", "batching")
CAPACITIES = (1.1, 2.0, 3.0, 8.0, 12.0, 18.0)
BELIEF_CAPACITIES = (3.0, 8.0)
HALVED_CAPACITIES = (3.0, 8.0, 18.0)
KNOWN_CAPACITIES = (3.0, 8.0, 18.0)
STEPS = 96

Cell = dict[str, Any]


def cells_of(name: str, quick: bool) -> list[Cell]:
    """One trace through every cell."""
    named = load(name)
    distinct = np.mean([len(np.unique(w.codes)) for _, w in named.trace.windows(round(named.window_s * 1e6))])
    out: list[Cell] = []

    def add(c: float, setting: str, policies: Sequence[str], believed: float = 1.0, halved_every: int = 0) -> None:
        rate = c * float(distinct) / named.window_s
        bandwidth = weakening(named, rate, c, halved_every) if halved_every else Bandwidth((rate,))
        scenario = EdgeScenario(named.trace, round(named.window_s * 1e6), bandwidth, believed, STEPS)
        optimum = simulate(scenario, "eager-optimal")
        for policy in policies:
            outcome = _outcome(scenario, policy, named)
            out.append(
                {"trace": named.name, "c": c, "setting": setting, **_figures(policy, outcome, optimum, rate, named)}
            )

    for c in (3.0, 8.0) if quick else CAPACITIES:
        add(c, "steady", (*EXTREMES, *HYBRIDS, OURS))
    for c in () if quick else BELIEF_CAPACITIES:
        add(c, "believed x0.5", (THEIRS, OURS), believed=0.5)
        add(c, "believed x2", (THEIRS, OURS), believed=2.0)
    for c in (8.0,) if quick else HALVED_CAPACITIES:
        add(c, "halved", (THEIRS, OURS), halved_every=1)
        add(c, "halved at times", (THEIRS, OURS, INSURED), halved_every=6)
    for c in () if quick else KNOWN_CAPACITIES:
        add(c, "known", ("known-counts",) if named.rates is None else ("known-rates",))
    return out


def weakening(named: NamedTrace, rate: float, c: float, every: int) -> Bandwidth:
    """Half the rate from the middle of the drain that the optimal traffic needs, for half a window."""
    rates, from_s = [rate], [0.0]
    for start_us, _ in list(named.trace.windows(round(named.window_s * 1e6)))[::-every][::-1]:
        middle_s = start_us / 1e6 + named.window_s * (1 - 1 / (2 * c))
        rates += [rate / 2, rate]
        from_s += [middle_s, middle_s + named.window_s / 2]
    return Bandwidth(tuple(rates), tuple(from_s))


def _outcome(scenario: EdgeScenario, policy: str, named: NamedTrace) -> EdgeOutcome:
    if policy == "known-rates":
        assert named.rates is not None
        return simulate_known_rates(scenario, named.rates / named.window_s)
    if policy == "known-counts":
        return simulate_known_counts(scenario)
    return simulate(scenario, policy)


def _figures(policy: str, outcome: EdgeOutcome, optimum: EdgeOutcome, rate: float, named: NamedTrace) -> Cell:
    staleness, best = outcome.staleness_s[1:], optimum.staleness_s[1:]
    updates = sum(w.updates for w in outcome.windows[1:])
    needed = sum(w.distinct for w in outcome.windows[1:])
    ok = (staleness <= 1.1 * best) | (staleness <= best + 1 / rate + 1e-9)
    return {
        "policy": policy,
        "excess": updates / needed - 1,
        "staleness": float(staleness.mean()) / named.window_s,
        "staleness_p95": float(np.percentile(staleness, 95)) / named.window_s,
        "optimal_staleness": float(best.mean()) / named.window_s,
        "ok": float(ok.mean()),
    }
