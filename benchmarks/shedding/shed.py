"""A real burst, shed live: the busiest hours of a web log, replayed so that many times what a site can take arrives.

One site and a center run in this process (`_shed_world` has the log and the seven views). First the site's capacity is
measured, from what its micro-batches cost per row while it is not overloaded. Then the burst is replayed at 2 to 20
times that: shed as planned, and with one rate for all (uniform at the source) for the same load; at 10 times in turns,
twice, and also not at all (`none`). What dropping the newest or the oldest records of each batch would have answered is
computed from the raw log and the batches of the uniform run. `costs` is what being able to shed adds to a micro-batch.
`picture` is one run of each at 10 times, which `--plot` draws.
`simulated` needs no Spark and little time: planned against uniform over many hours and seeds.

Freshness is from the end of a window to its first answer; "usual" is that of the windows before the burst, and a
window belongs to the burst if it ends within it. Errors are those of the windows of the burst. Each part measures the
capacity anew, so that it can be run alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.shedding.live import MOST_ROWS, MOST_ROWS_QUICK, Burst, capacity_of, measure, overhead
from benchmarks.shedding.monitors import Never, Planned, Uniform
from benchmarks.shedding.plot import plot_burst
from benchmarks.shedding.world import BURST_HOURS, COPIES, Log, read_log

DESCRIPTION = "a burst of 2 to 20 times the capacity: planned shedding against none, uniform and dropping"
KINDS: dict[str, type[Planned]] = {"planned": Planned, "uniform": Uniform, "none": Never}
# Who meets which burst, one after another: (times, how).
PARTS: dict[str, tuple[tuple[int, str], ...]] = {
    "simulated": (),
    "costs": (),
    "x10": ((10, "planned"), (10, "uniform"), (10, "planned"), (10, "uniform")),
    "x2": ((2, "planned"), (2, "uniform")),
    "x5": ((5, "planned"), (5, "uniform")),
    "x20": ((20, "planned"), (20, "uniform")),
    "none": ((10, "none"),),
    "picture": ((10, "planned"), (10, "uniform")),
}
QUICK = ("costs", "x10")


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = ()) -> dict[str, Any]:
    """Measure every cell of the chosen parts."""
    chosen = tuple(parts) or (QUICK if quick else tuple(part for part in PARTS if part != "picture"))
    result: dict[str, Any] = {
        "compared": "planned shedding, one rate at the source, none; seven views over one stream at one site",
        "data": f"EDGAR web log, hours {BURST_HOURS}, each record {COPIES} times",
        "parts": list(chosen),
        "cells": [],
    }
    if "simulated" in chosen:
        from benchmarks.shedding.simulated import (
            simulate,  # it loads Spark's modules, which listing benchmarks should not
        )

        result["simulated"] = simulate(report, quick)
    live = [part for part in chosen if part != "simulated"]
    return result | (_live(report, quick, live) if live else {})


def _live(report: Callable[[str], None], quick: bool, parts: Sequence[str]) -> dict[str, Any]:
    from catchment.project.sections import SparkConfig
    from catchment.spark.session import make_session

    spark = make_session("bench shed", SparkConfig(master="local[2]", memory="3g"))
    log, found = read_log(), dict[str, Any]()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if "costs" in parts:
                found["batch_s"] = overhead(spark, Path(scratch), log, *((200_000, 3) if quick else (1_000_000, 15)))
                report(f"seconds of one batch: {found['batch_s']}")
            if any(PARTS[part] for part in parts):
                found["capacity"] = capacity_of(spark, Path(scratch), log, report)
                found["cells"] = list(_cells(spark, Path(scratch), log, found["capacity"], parts, quick, report))
                found["ratios"] = ratios(found["cells"])
    finally:
        spark.stop()
    return found


def _cells(
    spark: Any,
    scratch: Path,
    log: Log,
    capacity: Mapping[str, float],
    parts: Sequence[str],
    quick: bool,
    report: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for part in parts:
        seen: set[str] = set()
        for times, how in PARTS[part][: 2 if quick else None]:
            first = how not in seen
            burst = Burst(
                times,
                how,
                KINDS[how],
                capacity["capacity_rows_per_s"],
                MOST_ROWS_QUICK if quick else MOST_ROWS,
                repairs=first and how == "planned",
                drops=first and how == "uniform",
            )
            cells = measure(spark, scratch, log, burst)
            seen.add(how)
            report(f"{times} times, {how}: { {k: v for k, v in cells[0].items() if k not in ('course', 'answers')} }")
            yield from cells


def ratios(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many times lower the worst error is as planned than at one rate: of each pair of runs, in their order.

    Both aim at the same load; where they have learned different costs they read different shares, and errors fall with
    the root of what is read: `ratio_for_as_much_read`.
    """
    found = []
    for times in sorted({c["times"] for c in cells}):
        by = {how: [c for c in cells if c["times"] == times and c["how"] == how] for how in ("planned", "uniform")}
        found += [
            {
                "times": times,
                "planned": p["error"],
                "uniform": u["error"],
                "ratio": u["error"] / p["error"],
                "ratio_for_as_much_read": u["error"] / p["error"] * (u["read_share"] / p["read_share"]) ** 0.5,
                "read_planned": p["read_share"],
                "read_uniform": u["read_share"],
            }
            for p, u in zip(by["planned"], by["uniform"], strict=False)
            if p["error"] and u["error"]
        ]
    return found


def plot(result: Mapping[str, Any], path: Path) -> None:
    """The burst of ten times the capacity, or the first there is, as a picture."""
    plot_burst([c for c in result["cells"] if "course" in c], path)


def render(result: Mapping[str, Any]) -> RenderableType:
    """One line a cell."""
    shown: list[RenderableType] = []
    if result["cells"]:
        shown.append(_cells_table(result))
        for r in result["ratios"]:
            shown.append(
                f"{r['times']} times: {_percent(r['planned'])} of {_percent(r['read_planned'])} read, uniform "
                f"{_percent(r['uniform'])} of {_percent(r['read_uniform'])}: {r['ratio']:.2f} times lower "
                f"({r['ratio_for_as_much_read']:.2f} for as much read)"
            )
    if "batch_s" in result:
        costs = result["batch_s"]
        added = {name: 100 * costs[f"added_{name}"] for name in ("on", "looking", "sampling")}
        shown.append(
            f"the same batch: able to shed {added['on']:+.1f} %, looking at values too {added['looking']:+.1f} %, "
            f"with a sampler {added['sampling']:+.1f} %"
        )
    return Group(*shown, *([_simulated_table(result["simulated"])] if "simulated" in result else []))


def _cells_table(result: Mapping[str, Any]) -> Table:
    title = f"capacity {result['capacity']['capacity_rows_per_s']:,.0f} rows/s; {result['data']}"
    heads = (
        "times",
        "how",
        "usual",
        "freshness",
        "worst",
        "batch",
        "read",
        "rows/s taken",
        "all taken",
        "predicted",
        "achieved",
        "bounds missed",
        "exact",
    )
    table = Table(*heads, title=title, title_justify="left")
    for c in result["cells"]:
        missed = f"{c['missed']} of {c['bounds']}" if c.get("bounds") else "-"
        taken = f"{c['taken_rows_per_s']:,.0f}" if c.get("taken_rows_per_s") else "-"
        table.add_row(
            str(c["times"]),
            c["how"],
            _seconds(c.get("usual_freshness_s")),
            _seconds(c.get("freshness_median_s")),
            _seconds(c.get("freshness_worst_s")),
            _seconds(c.get("micro_batch_median_s")),
            _percent(c.get("read_share")),
            taken,
            _seconds(c.get("all_taken_after_s")),
            _percent(c.get("predicted_error")),
            _percent(c["error"]),
            missed,
            f"{c['rows_exact']} of {c['rows_answered']}" if "rows_exact" in c else "-",
        )
    return table


def _simulated_table(found: Mapping[str, Any]) -> Table:
    title = f"without Spark: hours {found['hours']}, seeds {found['seeds']}; worst errors, medians over bursts"
    heads = (
        "times",
        "bursts",
        "planned",
        "foreseen",
        "uniform",
        "read",
        "uniform",
        "ratio",
        "worst",
        "as much read",
        "worst",
        "missed",
    )
    table = Table(*heads, title=title, title_justify="left")
    for r in found["ratios"]:
        table.add_row(
            f"{r['times']:g}",
            str(r["bursts"]),
            _percent(r["planned"]),
            _percent(r["predicted"]),
            _percent(r["uniform"]),
            _percent(r["read_planned"]),
            _percent(r["read_uniform"]),
            f"{r['median']:.2f}",
            f"{r['worst']:.2f}",
            f"{r['median_for_as_much_read']:.2f}",
            f"{r['worst_for_as_much_read']:.2f}",
            f"{r['missed']}/{r['bounds']}",
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
