"""`catchment feeds place`: decide where to compute each pair's view so that devices send and receive least."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from catchment.cli.output import JsonFlag, emit
from catchment.errors import FeedError

if TYPE_CHECKING:
    from catchment.feeds.placement.costs import DeviceCosts

_EPILOG = """Examples:

catchment feeds place rates.csv --upload-cost 1 --download-cost 1 --out decisions.csv

catchment feeds place rates.parquet --upload-cost 2 --budget budgets.csv --out decisions.parquet --json

catchment feeds place rates.parquet --upload-cost 1 --download-cost 1 --engine spark --out decisions.parquet --json

RATES has one row per pair and direction: src,dst,rate (the rate of src's feed that dst demands).

How it works: docs/internals/feeds-placement.md"""


class Engine(StrEnum):
    """Which engine takes the local step."""

    NUMPY = "numpy"
    SPARK = "spark"


def register(feeds: typer.Typer) -> None:
    """Add the command to those of feeds."""
    feeds.command("place", epilog=_EPILOG)(place)


def register_alias(app: typer.Typer) -> None:
    """Add the command under its earlier name, `catchment place`, which help does not list."""
    app.command("place", epilog=_EPILOG, hidden=True)(place)


def place(
    rates: Annotated[Path, typer.Argument(help="CSV or Parquet: src,dst,rate.", show_default=False)],
    upload_cost: Annotated[float, typer.Option(help="Cost of uploading one unit of rate.")] = 1.0,
    download_cost: Annotated[float, typer.Option(help="Cost of downloading one unit of rate.")] = 1.0,
    budget: Annotated[Path | None, typer.Option(help="CSV or Parquet: device,budget (views, or their loads).")] = None,
    engine: Annotated[
        Engine, typer.Option(help="numpy, or spark for graphs that do not fit on one machine.")
    ] = Engine.NUMPY,
    out: Annotated[Path | None, typer.Option(help="Where to write src,dst,decision (U or D).")] = None,
    unshared: Annotated[
        bool, typer.Option("--unshared", help="Each pair needs its own upload: rates do not nest.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Longest search for the optimum in seconds.")] = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Decide for each pair whether a device uploads its feed (U) or downloads the other's (D), at the least cost.

    A pair's view is computed on the device that downloads, or at the cloud if both upload. If the time limit ends the
    search before the optimum is proved, `optimal` is false and `gap` says how much could still be saved at most.
    """
    from catchment.feeds.placement.costs import DeviceCosts

    _check_folder(out)
    costs = DeviceCosts(upload_cost, download_cost)
    if engine is Engine.SPARK:
        if unshared:
            raise FeedError("--unshared does not run on Spark", hint="leave out --engine spark")
        answer = _place_on_spark(rates, costs, budget, out, time_limit)
    else:
        answer = _place_on_one_machine(rates, costs, budget, out, unshared, time_limit)
    emit(answer, as_json, _render)


def _check_folder(out: Path | None) -> None:
    if out is not None and not out.parent.is_dir():
        raise FeedError(f"there is no folder {out.parent} to write to", where=str(out))


def _place_on_one_machine(
    rates: Path, costs: DeviceCosts, budget: Path | None, out: Path | None, unshared: bool, time_limit: float
) -> dict[str, Any]:
    from catchment.feeds.placement.pair_views.assign import assign
    from catchment.feeds.placement.pair_views.assign_unshared import assign_unshared
    from catchment.feeds.placement.pair_views.demand_file import demand_of, read_budget, read_rates, write_decisions

    table = read_rates(rates)
    began = time.perf_counter()
    graph = demand_of(table, rates)
    limits = None if budget is None else read_budget(budget, graph)
    found = (assign_unshared if unshared else assign)(graph, costs, budget=limits, time_limit_s=time_limit)
    seconds = time.perf_counter() - began
    if out is not None:
        write_decisions(found, out)
    return {**found.summary(), "seconds": round(seconds, 6)}


def _place_on_spark(
    rates: Path, costs: DeviceCosts, budget: Path | None, out: Path | None, time_limit: float
) -> dict[str, Any]:
    from catchment.spark.feeds.place_file import place_file

    return place_file(rates, costs, out, budget=budget, time_limit_s=time_limit).summary()


def _render(answer: Mapping[str, Any]) -> RenderableType:
    table = Table(show_header=False, box=None)
    for key, value in answer.items():
        table.add_row(key.replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else str(value))
    return table
