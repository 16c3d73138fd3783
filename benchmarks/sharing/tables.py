"""What `catchment bench sharing` shows a person: one function per table, by part."""

from __future__ import annotations

import statistics as stats
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

Told = Mapping[str, Any]


def _many(planned: Told) -> str:
    many = planned["many"]
    times = {name: many[f"{name}_cpu_s"] for name in ("read", "plan", "further_mean", "further_worst")}
    return (
        f"{many['queries']} queries on one stream, CPU: read {times['read']:.2f} s, planned {times['plan']:.2f} s; "
        f"each further one {1000 * times['further_mean']:.1f} ms, at worst {1000 * times['further_worst']:.1f} ms."
    )


def _star(planned: Told) -> Table:
    draws = planned["star_draws"]
    table = Table("sharing", "bytes saved: mean", "median", "least", "most", title=f"a star, {len(draws)} random draws")
    for name in draws[0]:
        saved = [1 - d[name] / d["none"] for d in draws]
        told = (stats.fmean(saved), stats.median(saved), min(saved), max(saved))
        table.add_row(name, *(f"{100 * v:.1f} %" for v in told))
    return table


def _strengths(planned: Told) -> Table:
    table = Table("world", "sharing", "planner", "fragments", "WAN MB/s", "over capacity", "throughput")
    for row in planned["strengths"]:
        exact = " (optimal)" if row["optimal"] else ""
        table.add_row(
            row["world"],
            row["sharing"],
            row["planner"] + exact,
            str(row["fragments"]),
            f"{row['wan_bytes_per_s'] / 1e6:.4f}",
            f"{row['over_capacity_bytes_per_s'] / 1e6:.2f}",
            f"{100 * row['throughput']:.0f} %",
        )
    return table


def _one_by_one(planned: Told) -> Table:
    table = Table("query, in order of arrival", "adds KB/s", "fragments")
    for row in planned["one_by_one"]:
        table.add_row(row["query"], f"{row['added_bytes_per_s'] / 1e3:.2f}", str(row["fragments"]))
    return table


def _gaps(planned: Told) -> Table:
    table = Table("rule", "mean gap", "worst gap", "more over capacity", title=f"{planned['gaps']['worlds']} worlds")
    for row in planned["gaps"]["rules"]:
        gaps = (f"{100 * row[k]:.1f} %" for k in ("mean_gap", "worst_gap"))
        table.add_row(row["rule"], *gaps, str(row["more_over_capacity"]))
    return table


def _live(rows: Sequence[Told]) -> Table:
    table = Table("sharing", "fragments", "WAN bytes", "records/s", "in all s", title="live, shaped links")
    for row in rows:
        seconds = f"{row['seconds']:.1f}"
        table.add_row(
            row["sharing"], str(row["fragments"]), f"{row['wan_bytes']:,}", f"{row['records_per_s']:,.0f}", seconds
        )
    return table


def _relay(row: Told) -> Table:
    table = Table("link", "partials", "bytes", "bytes by the plan", title="live, over a relay")
    for link, sent in row["bytes_by_link"].items():
        partials, planned = row["partials_by_link"][link], row["planned_by_link"][link]
        table.add_row(link, f"{partials:,}", f"{sent:,}", f"{planned:,.0f}")
    return table


def _arrivals(told: Told) -> Table:
    table = Table("query", "came at s", title=f"submitted {told['every_s']:g} s apart, live")
    for run in told["runs"]:
        table.add_column(f"{run['sharing']}: its own bytes/s")
        table.add_column("WAN bytes/s then")
    for rows in zip(*(run["queries"] for run in told["runs"]), strict=True):
        cells = (f"{row[k]:,.0f}" for row in rows for k in ("own_bytes_per_s", "wan_bytes_per_s"))
        table.add_row(rows[0]["query"], f"{rows[0]['at_s']:.0f}", *cells)
    return table


def _answers(told: Told) -> Table:
    is_comparable = told.get("is_comparable", True)  # older results do not say
    title = "answers against DuckDB's" if is_comparable else "answers against DuckDB's; the bytes are not comparable"
    table = Table("sharing", "WAN bytes", "micro-batches", "rows", "wrong", "lost", "highest revision", title=title)
    for run in told["runs"]:
        sums = (sum(a[k] for a in run["answers"]) for k in ("rows", "wrong", "lost"))
        highest = max(a["highest_revision"] for a in run["answers"])
        batches = str(run.get("batches", "?"))
        table.add_row(run["sharing"], f"{run['wan_bytes']:,}", batches, *(f"{n:,}" for n in sums), str(highest))
    return table


def _replayed(rows: Sequence[Told]) -> Table:
    table = Table("workload", "rule", "bytes", "of no sharing", "sent twice", title="arrivals, counted")
    for row in rows:
        cells = f"{row['bytes']:,}", f"{row['of_none']:.0%}", f"{row['twice']:,}"
        table.add_row(row["workload"], row["rule"], *cells)
    return table


PLANNED_TABLES: Sequence[Callable[[Any], Table | str]] = (_strengths, _star, _one_by_one, _gaps, _many)
LIVE_TABLES: Mapping[str, Sequence[Callable[[Any], Table | str]]] = {
    "live": (_live,),
    "dense": (_live,),
    "relay": (_relay,),
    "arrivals": (_arrivals, _answers),
    "replayed": (_replayed,),
}
