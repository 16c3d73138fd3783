"""Edge policies in the simulator: traffic and staleness over link capacities, wrong beliefs and a weakening link.

Capacity c is the link's rate in units of the distinct keys of a mean window. Excess is traffic above one update a key;
staleness is in units of the window; `ok` is the share of windows whose staleness is at most 1.1 times the offline
optimum, or within one service time of it. The first window, in which nothing is known yet, is left out. `halved`: the
link has half its rate from the middle of the drain on, in every window; `halved at times`: in every sixth window.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
from _edge_traces import NamedTrace, traces

from catchment.sim.edge import EdgeOutcome, EdgeScenario, simulate
from catchment.sim.known_rates import simulate_known_rates
from catchment.sim.network import Bandwidth
from catchment.sim.synthetic import memoryless, zipf_rates

DESCRIPTION = "edge policies simulated: traffic and staleness over capacities, wrong beliefs, a weakening link"
OURS, INSURED, THEIRS = "spillway", "spillway:2", "hybrid:0.25"
HYBRIDS = ("hybrid:0", "hybrid:0.25", "hybrid:0.5", "hybrid:0.75", "hybrid:1")
EXTREMES = ("streaming", "batching")
CAPACITIES = (1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 18.0)
BELIEF_CAPACITIES = (1.5, 3.0, 8.0, 18.0)
HALVED_CAPACITIES = (3.0, 8.0, 18.0)
KNOWN_CAPACITIES = (1.5, 3.0, 8.0, 18.0)
STEPS = 96

Cell = dict[str, Any]


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Every trace through every cell."""
    cells: list[Cell] = []
    for make in traces()[3:5] if quick else traces():
        named = make()
        for cell in _cells(named, quick):
            cells.append(cell)
            report(
                "{trace:20} c={c:<4g} {setting:15} {policy:16} excess {excess:8.2%} staleness {staleness:.5f}".format(
                    **cell
                )
            )
    return {
        "compared": f"{OURS} with {', '.join((*HYBRIDS, *EXTREMES))} and, on memoryless traces, with known rates",
        "data": "EDGAR 2017-01-01 (1% sample), Wikipedia edits 2015-09-12, GitHub events 2015-01-01, synthetic traces",
        "cells": cells,
        "claims": claims(cells),
        "speed": speed(1_000_000 if quick else 10_000_000),
    }


def speed(records: int) -> dict[str, Any]:
    """Seconds of one core for so many records of 50,000 keys through the policy, in 20 windows."""
    trace = memoryless(zipf_rates(50_000, 0.9, records / 20), 20, 60.0, 1)
    begun = time.process_time()
    simulate(EdgeScenario(trace, 60_000_000, Bandwidth((6000.0,))), OURS)
    return {"records": trace.records, "cpu_s": time.process_time() - begun}


def _cells(named: NamedTrace, quick: bool) -> list[Cell]:
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
    for c in KNOWN_CAPACITIES if named.rates is not None and not quick else ():
        add(c, "known", ("known-rates",))
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


def claims(cells: Sequence[Cell]) -> dict[str, Any]:
    """What the cells say of the policy's promises, and every cell in which one is not kept."""
    at = {(x["trace"], x["c"], x["setting"], x["policy"]): x for x in cells}
    ours = [x for x in cells if x["policy"] == OURS]
    fat = [x for x in ours if x["setting"] == "steady" and x["c"] >= 8]
    return {
        "on time at c >= 8": _kept(fat, lambda x: x["ok"] >= 0.95),
        "half of hybrid:0.25's excess at c >= 8": _kept(
            fat, lambda x: x["excess"] <= 0.5 * at[x["trace"], x["c"], "steady", THEIRS]["excess"]
        ),
        "no hybrid better on both": _kept(
            [x for x in ours if x["setting"] == "steady"],
            lambda x: not any(_better(at[x["trace"], x["c"], "steady", h], x) for h in HYBRIDS),
        ),
        "wrong belief: hybrid:0.25 not better on both": _kept(
            [x for x in ours if x["setting"].startswith("believed")],
            lambda x: not _better(at[x["trace"], x["c"], x["setting"], THEIRS], x),
        ),
        "halved: no staler than hybrid:0.25 at no more traffic": _kept(
            [x for x in ours if x["setting"] == "halved"],
            lambda x: _no_worse(x, at[x["trace"], x["c"], "halved", THEIRS]),
        ),
        "halved: no staler than hybrid:0.25": _kept(
            [x for x in ours if x["setting"] == "halved"],
            lambda x: x["staleness"] <= at[x["trace"], x["c"], "halved", THEIRS]["staleness"] + 1e-7,
        ),
        "halved at times, insured: no staler than hybrid:0.25 at no more traffic": _kept(
            [x for x in cells if x["policy"] == INSURED],
            lambda x: _no_worse(x, at[x["trace"], x["c"], x["setting"], THEIRS]),
        ),
        "excess at most 1.25 times that with known rates": _kept(
            [x for x in ours if (x["trace"], x["c"], "known", "known-rates") in at and x["setting"] == "steady"],
            lambda x: x["excess"] <= 1.25 * at[x["trace"], x["c"], "known", "known-rates"]["excess"],
        ),
    }


def _better(one: Cell, other: Cell) -> bool:
    """Better on both metrics, beyond rounding."""
    return bool(one["excess"] < other["excess"] - 1e-6 and one["staleness"] < other["staleness"] - 1e-7)


def _no_worse(one: Cell, other: Cell) -> bool:
    return bool(one["excess"] <= other["excess"] + 1e-6 and one["staleness"] <= other["staleness"] + 1e-7)


def _kept(cells: Sequence[Cell], rule: Callable[[Cell], bool]) -> dict[str, Any]:
    broken = [f"{x['trace']} c={x['c']:g} {x['setting']}" for x in cells if not rule(x)]
    return {"cells": len(cells), "kept": len(cells) - len(broken), "not_kept_in": broken}


def render(result: Mapping[str, Any]) -> RenderableType:
    table = Table("trace", "c", "setting", "policy", "excess", "staleness/W", "p95", "optimum", "ok")
    for x in result["cells"]:
        table.add_row(
            x["trace"], f"{x['c']:g}", x["setting"], x["policy"], f"{x['excess']:.2%}", f"{x['staleness']:.5f}",
            f"{x['staleness_p95']:.5f}", f"{x['optimal_staleness']:.5f}", f"{x['ok']:.2f}",
        )  # fmt: skip
    kept = Table("claim", "kept", "not in")
    for claim, found in result["claims"].items():
        kept.add_row(claim, f"{found['kept']} of {found['cells']}", ", ".join(found["not_kept_in"]))
    speed = "{records:,} records in {cpu_s:.1f} s of one core".format(**result["speed"])
    return Group(table, kept, speed)
