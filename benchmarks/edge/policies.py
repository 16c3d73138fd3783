"""Edge policies in the simulator: traffic and staleness over link capacities, wrong beliefs and a weakening link.

Capacity c is the link's rate in units of the distinct keys of a mean window. Excess is traffic above one update per
key; staleness is in units of the window; `ok` is the share of windows whose staleness is at most 1.1 times the offline
optimum, or within one service time of it. The first window, in which nothing is known yet, is left out. `halved`: the
link has half its rate from the middle of the drain on, in every window; `halved at times`: in every sixth window.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.edge.cells import EXTREMES, HYBRIDS, INSURED, OURS, THEIRS, Cell, cells_of
from benchmarks.edge.traces import TRACES
from catchment.sim.edge.network import Bandwidth
from catchment.sim.edge.simulate import EdgeScenario, simulate
from catchment.sim.edge.synthetic import memoryless, zipf_rates

DESCRIPTION = "edge policies simulated: traffic and staleness over capacities, wrong beliefs, a weakening link"
SPEED = "speed"
PARTS = (*TRACES, SPEED)
QUICK = ("github-actor", "zipf", SPEED)


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """Every trace of the chosen parts through every cell, a process a trace."""
    chosen = [p for p in parts or (QUICK if quick else PARTS) if p != SPEED]
    cells: list[Cell] = []
    with ProcessPoolExecutor(min(os.cpu_count() or 1, max(len(chosen), 1)), get_context("spawn")) as pool:
        for found in pool.map(cells_of, chosen, [quick] * len(chosen)):
            cells += found
            for cell in found:
                report(
                    "{trace:20} c={c:<4g} {setting:15} {policy:16} excess {excess:8.2%} staleness {staleness:.5f} "
                    "ok {ok:.2f}".format(**cell)
                )
    measured = SPEED in (parts or PARTS)
    return {
        "compared": f"{OURS} with {', '.join((*HYBRIDS, *EXTREMES))} and, on memoryless traces, with known rates",
        "data": "EDGAR 2017-01-01 (1% sample), Wikipedia edits 2015-09-12, GitHub events 2015-01-01, synthetic traces",
        "cells": cells,
        "claims": claims(cells),
        "speed": speed(1_000_000 if quick else 10_000_000) if measured else None,
    }


def speed(records: int) -> dict[str, Any]:
    """Seconds of one core for so many records of 50,000 keys through the policy, in 20 windows."""
    trace = memoryless(zipf_rates(50_000, 0.9, records / 20), 20, 60.0, 1)
    begun = time.process_time()
    simulate(EdgeScenario(trace, 60_000_000, Bandwidth((6000.0,))), OURS)
    return {"records": trace.records, "cpu_s": time.process_time() - begun}


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
            x["trace"],
            f"{x['c']:g}",
            x["setting"],
            x["policy"],
            f"{x['excess']:.2%}",
            f"{x['staleness']:.5f}",
            f"{x['staleness_p95']:.5f}",
            f"{x['optimal_staleness']:.5f}",
            f"{x['ok']:.2f}",
        )
    kept = Table("claim", "kept", "not in")
    for claim, found in result["claims"].items():
        kept.add_row(claim, f"{found['kept']} of {found['cells']}", ", ".join(found["not_kept_in"]))
    told = result["speed"]
    return Group(table, kept, "{records:,} records in {cpu_s:.1f} s of one core".format(**told) if told else "")
