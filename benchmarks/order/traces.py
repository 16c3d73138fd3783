"""Order, contract and repair on traces, in simulated time: how long controllers wait, how often they miss.

Four tables. *paper*: the setting of Yang et al. (HPM): SUM, windows of 0.5 s every 0.1 s, contract 0.05 at 0.95, ten
seeds of each generated stream. *contract*: every aggregate on every trace, generated (seeds of their own) and measured.
*change*: the delays become ten times as long half-way. *repair*: what late records cost, from few to many. Workloads,
seeds and settings were fixed before any outcome was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.data import data_folder
from catchment.quality.contract import Contract, Measure
from catchment.sim.order.generated_traces import LIKE, generate
from catchment.sim.order.imputation import parse_simulated_slack
from catchment.sim.order.recorded_traces import read_recorded_trace
from catchment.sim.order.simulate import Question, Run, Simulation, simulate
from catchment.sim.order.trace import ArrivalTrace
from catchment.timeline import SECOND_US, WindowSpec

DESCRIPTION = "slack controllers on generated and measured traces: latency, violations, repair (simulated time)"
OURS = "adaptive"
PAPER = (OURS, "adaptive:imputed", "mp-k-slack", "pd")
CONTRACT = Contract(0.05, 0.95)
GAME = WindowSpec(SECOND_US // 2, SECOND_US // 10)
MEASURED = {  # window, slide, step of the clock
    "flights": (WindowSpec(6 * 3600 * SECOND_US, 3600 * SECOND_US), 300 * SECOND_US),
    "github": (WindowSpec(60 * SECOND_US, 10 * SECOND_US), SECOND_US),
}
AGGREGATES = ("sum", "count", "avg", "median")
SEEDS = range(10)
CONTRACT_SEED = 100
CHANGE_SEEDS = range(210, 215)
TRAILING = 1000  # windows over which violations are counted after a change
SLACKS_S = (0.0, 0.05, 0.5, 2.0, 8.0)
SHORT = 40_000

Report = Callable[[str], None]


def run(report: Report, quick: bool) -> dict[str, Any]:
    """All four tables; quick: one seed of short streams."""
    seeds: Sequence[int] = SEEDS[:1] if quick else SEEDS
    changes: Sequence[int] = CHANGE_SEEDS[:1] if quick else CHANGE_SEEDS
    return {
        "compared": "slack controllers in simulated time, on the code that a site runs",
        "data": "streams generated after Table 1 of Yang et al.; departures from New York 2013; GH Archive",
        "paper": [row for like in LIKE for seed in seeds for row in paper(like, seed, report, quick)],
        "contract": [row for name in (LIKE if quick else (*LIKE, *MEASURED)) for row in contract(name, report, quick)],
        "change": [row for seed in changes for row in change(seed, report, quick)],
        "repair": repair_costs(report, quick),
    }


def paper(like: str, seed: int, report: Report, quick: bool) -> list[dict[str, Any]]:
    """One generated stream at the paper's setting."""
    done = _simulate(_game(like, seed, quick), GAME, 0, "sum", PAPER)
    report(f"{like}, seed {seed}: {_line(done)}")
    known = {"trace": like, "seed": seed, "oracle_s": done.oracle.latency_s}
    return [known | _figures(run, len(done.trace)) for run in done.runs]


def contract(name: str, report: Report, quick: bool) -> list[dict[str, Any]]:
    """Every aggregate on one trace."""
    window, step = MEASURED.get(name, (GAME, 0))
    trace = _game(name, CONTRACT_SEED, quick) if name in LIKE else read_recorded_trace(name, data_folder())
    rows = []
    for aggregate in AGGREGATES:
        done = _simulate(trace, window, step, aggregate, (OURS, "mp-k-slack"))
        report(f"{name}, {aggregate}: {_line(done)}")
        known = {"trace": name, "aggregate": aggregate, "oracle_s": done.oracle.latency_s}
        rows += [known | _figures(run, len(done.trace)) for run in done.runs]
    return rows


def change(seed: int, report: Report, quick: bool) -> list[dict[str, Any]]:
    """A stream whose delays become ten times as long half-way."""
    calm = replace(LIKE["game1"].shorten(SHORT if quick else 250_000), max_delay_s=6.0)
    rough = replace(calm, mean_delay_s=10 * calm.mean_delay_s, max_delay_s=30.0)
    first, second = generate(calm, seed), generate(rough, seed + 1000)
    trace, at_us = _joined(first, second)
    done = _simulate(trace, GAME, 0, "sum", (OURS, "mp-k-slack", "pd"))
    report(f"change, seed {seed}: {_line(done)}")
    return [{"seed": seed, **_figures(run, len(done.trace)), **_regained(run, at_us)} for run in done.runs]


def repair_costs(report: Report, quick: bool) -> list[dict[str, Any]]:
    """The cost of repair by how much was late: fixed slacks from none to long."""
    done = _simulate(_game("game1", CONTRACT_SEED, quick), GAME, 0, "sum", [f"fixed:{s:g}" for s in SLACKS_S])
    report(f"repair: {_line(done)}")
    return [
        _figures(run, len(done.trace)) | {"late_share": run.repair.late_records / len(done.trace)} for run in done.runs
    ]


def _game(like: str, seed: int, quick: bool) -> ArrivalTrace:
    return generate(LIKE[like].shorten(SHORT) if quick else LIKE[like], seed)


def _simulate(
    trace: ArrivalTrace, window: WindowSpec, step_us: int, aggregate: str, names: Sequence[str]
) -> Simulation:
    question = Question(window, Measure.parse(aggregate), CONTRACT, step_us=step_us)
    return simulate(trace, question, [parse_simulated_slack(n) for n in names])


def _figures(run: Run, records: int) -> dict[str, Any]:
    wanted = (
        "name",
        "mean_latency_s",
        "p95_latency_s",
        "violations",
        "contract_kept",
        "bound_misses",
        "overdrawn_s",
        "late_records",
        "repaired_windows",
        "repair_cost",
        "final_exact",
    )
    figures = run.figures(records)
    return {name: figures[name] for name in wanted}


def _regained(run: Run, at_us: int) -> dict[str, Any]:
    """When, after the change, the last `TRAILING` windows were last in violation of the contract."""
    bad = np.cumsum(np.append(0.0, run.violated))
    share = (bad[TRAILING:] - bad[:-TRAILING]) / TRAILING
    ends = run.replay.closed_at_us[TRAILING - 1 :]
    over = np.flatnonzero((share > run.delta) & (ends >= at_us))
    last = float(ends[over[-1]] - at_us) / SECOND_US if len(over) else 0.0
    left = float(run.replay.closed_at_us[-1] - at_us) / SECOND_US
    return {"worst_share": float(share.max(initial=0.0)), "regained_after_s": last, "followed_for_s": left}


def _joined(first: ArrivalTrace, second: ArrivalTrace) -> tuple[ArrivalTrace, int]:
    """One stream after the other, of the same sources; and when the second begins."""
    gap = int(first.event_us.max() - second.event_us.min()) + 1000
    at_us = int(second.arrival_us[0]) + gap
    columns = {c: np.concatenate([getattr(first, c), getattr(second, c)]) for c in ("value", "source")}
    event = np.concatenate([first.event_us, second.event_us + gap])
    arrival = np.concatenate([first.arrival_us, second.arrival_us + gap])
    order = np.argsort(arrival, kind="stable")
    return ArrivalTrace(
        event[order], arrival[order], columns["value"][order], columns["source"][order], first.sources
    ), at_us


def _line(done: Simulation) -> str:
    return (
        ", ".join(f"{r.name} {r.latency_s.mean():.3f} s {100 * r.violated.mean():.2f} %" for r in done.runs)
        + f", clairvoyant {done.oracle.latency_s:.3f} s"
    )


def render(result: Mapping[str, Any]) -> RenderableType:
    """The four tables, seeds summed up."""
    return Group(
        _paper_table(result["paper"]),
        _contract_table(result["contract"]),
        _change_table(result["change"]),
        _repair_table(result["repair"]),
    )


def _paper_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    heads = ("stream", "controller", "mean s (least, most)", "violations (most)", "of mp-k-slack", "of pd", "exact")
    table = Table(*heads, title="SUM, windows of 0.5 s every 0.1 s, contract 0.05 at 0.95", title_justify="left")
    for like in dict.fromkeys(r["trace"] for r in rows):
        mine = [r for r in rows if r["trace"] == like]
        means = {n: fmean(r["mean_latency_s"] for r in mine if r["name"] == n) for n in {r["name"] for r in mine}}
        for name in dict.fromkeys(r["name"] for r in mine):
            runs = [r for r in mine if r["name"] == name]
            lags = [r["mean_latency_s"] for r in runs]
            missed = [100 * r["violations"] for r in runs]
            table.add_row(
                like,
                name,
                f"{fmean(lags):.3f} ({min(lags):.3f}, {max(lags):.3f})",
                f"{fmean(missed):.2f} % ({max(missed):.2f})",
                f"{means[name] / means['mp-k-slack']:.3f}",
                f"{means[name] / means['pd']:.3f}",
                str(all(r["final_exact"] for r in runs)),
            )
        table.add_row(like, "clairvoyant", f"{fmean(r['oracle_s'] for r in mine):.3f}", style="dim")
    return table


def _contract_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("trace", "aggregate", "controller", "mean s", "violations", "bound missed", "clairvoyant s", "exact")
    for r in rows:
        table.add_row(
            r["trace"],
            r["aggregate"],
            r["name"],
            f"{r['mean_latency_s']:.3f}",
            f"{100 * r['violations']:.2f} %",
            f"{100 * r['bound_misses']:.2f} %",
            f"{r['oracle_s']:.3f}",
            str(r["final_exact"]),
        )
    return table


def _change_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "seed", "controller", "mean s", "violations", f"worst of {TRAILING}", "regained after s", "followed s"
    )
    for r in rows:
        table.add_row(
            str(r["seed"]),
            r["name"],
            f"{r['mean_latency_s']:.3f}",
            f"{100 * r['violations']:.2f} %",
            f"{100 * r['worst_share']:.1f} %",
            f"{r['regained_after_s']:.0f}",
            f"{r['followed_for_s']:.0f}",
        )
    return table


def _repair_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("slack", "late records", "late", "windows repaired", "cost (of the stream's work)")
    for r in rows:
        table.add_row(
            r["name"],
            str(r["late_records"]),
            f"{100 * r['late_share']:.3f} %",
            str(r["repaired_windows"]),
            f"{100 * r['repair_cost']:.2f} %",
        )
    return table
