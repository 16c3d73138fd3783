"""`catchment simulate order` and `simulate trace`: try on a trace how long to wait for late records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from catchment.cli.output import JsonFlag, emit, notes, typed_command
from catchment.errors import SimulationError
from catchment.units import SECOND_US

_ORDER_EXAMPLES = """Examples:

  catchment simulate order game1.parquet --window 0.5 --slide 0.1 --aggregate sum --max-error 0.05

  catchment simulate order game1.parquet --window 0.5 --slide 0.1 --controllers adaptive,pd,fixed:2 --json

  catchment simulate order flights.parquet --window 21600 --slide 3600 --aggregate median --plot accuracy.png
"""
_TRACE_EXAMPLES = """Examples:

  catchment simulate trace game1.parquet --like game1 --seed 7

  catchment simulate trace short.csv --like game2 --tuples 50000

  catchment simulate trace flights.parquet --like flights --data data/ --speed 60000
"""
DEFAULT_CONTROLLERS = "mp-k-slack,pd,adaptive"
DATA_VARIABLE = "CATCHMENT_DATA"


def register(simulate_app: typer.Typer) -> None:
    """Add `order` and `trace` to the `simulate` commands."""
    simulate_app.command("order", epilog=_ORDER_EXAMPLES)(order)
    simulate_app.command("trace", epilog=_TRACE_EXAMPLES)(trace)


def order(
    trace: Annotated[
        Path,
        typer.Argument(
            help="CSV or Parquet in order of arrival: event_time, arrival_time (seconds or timestamps), value, "
            "and optionally source and key."
        ),
    ],
    window: Annotated[float, typer.Option(help="Length of the windows in seconds.")],
    slide: Annotated[
        float | None, typer.Option(help="Seconds between the starts of windows; by default their length.")
    ] = None,
    aggregate: Annotated[str, typer.Option(help="sum, count, avg, median or quantile:Q.")] = "sum",
    max_error: Annotated[
        float, typer.Option(help="Largest allowed relative error of an on-time answer; for a quantile, in rank.")
    ] = 0.05,
    confidence: Annotated[float, typer.Option(help="Share of windows that must keep the error below that.")] = 0.95,
    controllers: Annotated[str, typer.Option(help="Names separated by commas.")] = DEFAULT_CONTROLLERS,
    max_wait: Annotated[float | None, typer.Option(help="Longest wait for a window in seconds.")] = None,
    step: Annotated[
        float | None, typer.Option(help="Seconds per micro-batch; by default a tenth of the slide.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over time into this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay TRACE through slack controllers and compare how long they wait, how often they miss and what repair costs.

    Latency is from the end of a window to its closing. Violations are the share of windows whose on-time error is
    max-error or more. The oracle knows the future and shows the least latency that keeps the contract.
    """
    from catchment.quality.contract import Contract, Measure
    from catchment.sim.order.imputation import parse_simulated_slack
    from catchment.sim.order.plot import course, plot_accuracy
    from catchment.sim.order.simulate import Question, simulate
    from catchment.sim.order.trace import read_trace
    from catchment.timeline import WindowSpec

    names = [n.strip() for n in controllers.split(",") if n.strip()]
    if not names:
        raise SimulationError("no controller was named", hint=f"say --controllers {DEFAULT_CONTROLLERS}")
    configs = [parse_simulated_slack(name) for name in names]
    question = Question(
        window=WindowSpec(_micros(window, "--window"), _micros(window if slide is None else slide, "--slide")),
        measure=Measure.parse(aggregate),
        contract=Contract(max_error, confidence),
        max_wait_us=0 if max_wait is None else _micros(max_wait, "--max-wait"),
        step_us=0 if step is None else _micros(step, "--step"),
    )
    with notes.status("reading the trace") as status:
        simulation = simulate(read_trace(trace), question, configs, lambda text: status.update(text))
    if plot is not None:
        title = f"{trace.name}: {aggregate}, windows of {window:g} s, contract {max_error:.0%} at {confidence:.0%}"
        courses = [course(simulation, run) for run in simulation.runs]
        plot_accuracy(courses, max_error, plot, title, typed_command())
        notes.print(f"accuracy drawn in {plot}")
    emit(simulation.figures(), as_json, _render_order)


def trace(
    output: Annotated[Path, typer.Argument(help="The file to write: .csv or .parquet.")],
    like: Annotated[str, typer.Option(help="game1, game2 (generated); flights, github (measured).")],
    seed: Annotated[int, typer.Option(help="Seed of a generated trace.", min=0)] = 0,
    tuples: Annotated[int | None, typer.Option(help="Length of a generated trace, to make it shorter.")] = None,
    data: Annotated[Path | None, typer.Option(help=f"Folder of measured data; or set {DATA_VARIABLE}.")] = None,
    speed: Annotated[float, typer.Option(help="How many times as fast a measured trace runs.")] = 1.0,
    as_json: JsonFlag = False,
) -> None:
    """Write a trace, generated with the disorder of a measured stream or made from measured data.

    game1 and game2 have the disorder of Table 1 of Yang et al. (HPM), whatever the seed.
    """
    from catchment.sim.order.generated_traces import LIKE, generate, measure
    from catchment.sim.order.recorded_traces import measured_names, read_recorded_trace
    from catchment.sim.order.trace import write_trace

    if like in LIKE:
        made = generate(LIKE[like] if tuples is None else LIKE[like].shorten(tuples), seed)
    elif like in measured_names():
        made = read_recorded_trace(like, data or Path(os.environ.get(DATA_VARIABLE, "data")), speed)
    else:
        names = ", ".join((*LIKE, *measured_names()))
        raise SimulationError(f"there is no trace like {like!r}", hint=f"choose one of {names}")
    write_trace(made, output)
    figures = measure(made.event_us)
    emit({"trace": str(output), "like": like, "sources": len(made.sources), **vars(figures)}, as_json, _render_trace)


def _micros(seconds: float, option: str) -> int:
    micros = round(seconds * SECOND_US) if abs(seconds) < 1e12 else 0
    if micros <= 0:
        raise SimulationError(f"{option} is a positive number of seconds, not {seconds:g}")
    return micros


def _render_order(answer: Mapping[str, Any]) -> RenderableType:
    table = Table("controller", "mean s", "p95 s", "violations", "late", "repaired", "cost", "final", box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for c in answer["controllers"]:
        share = f"{100 * c['violations']:.2f} %" + ("  " if c["contract_kept"] else " !")
        times = (_seconds(c[k]) for k in ("mean_latency_s", "p95_latency_s"))
        end = "exact" if c["final_exact"] else "WRONG"
        cost = f"{100 * c['repair_cost']:.1f} %"
        table.add_row(c["name"], *times, share, str(c["late_records"]), str(c["repaired_windows"]), cost, end)
    for name in ("oracle", "oracle_strict", "oracle_fixed"):
        table.add_row(name.replace("_", ", "), _seconds(answer[f"{name}_latency_s"]), style="dim")
    head = f"{answer['trace']}: {answer['records']:,} records, {answer['windows']:,} windows, {answer['aggregate']}"
    contract = f"off by {answer['max_error']:g} or more in {100 * (1 - answer['confidence']):.3g} % at most"
    legend = "mean, p95: seconds from the end of a window to its closing; cost: work of repair over that of the stream"
    return Group(f"{head}, {contract}", table, legend)


def _render_trace(answer: Mapping[str, Any]) -> RenderableType:
    return (
        f"{answer['trace']}: {answer['tuples']:,} tuples of {answer['sources']} sources, "
        f"{100 * answer['late_share']:.2f} % late, delay at most {answer['max_delay_s']:.1f} s, "
        f"{1000 * answer['mean_delay_s']:.0f} ms on average"
    )


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1000 else f"{value:.0f}"
