"""Placement on one machine: how fast, in how much memory, and how much it saves."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from benchmarks.feeds import social as social
from catchment.feeds.placement.costs import DeviceCosts
from catchment.feeds.placement.pair_views.assign import assign
from catchment.feeds.placement.pair_views.demand import DemandGraph

DESCRIPTION = "Placement of feed views: seconds, peak memory, and saving by cost ratio on the Facebook graph."
RATIOS = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
REPEATS = {186_000: 20, 372_000: 20}  # demand edges -> runs of which the fastest counts; else FEW
FEW = 5
SEED = 20130826

# name -> users, pairs, which rates. A demand edge is one direction: a pair has two.
SPEED_CASES: dict[str, tuple[int, int, str]] = {
    "20k users, 186k demand edges": (20_000, 93_000, "zipf"),
    "20k users, 186k pairs": (20_000, 186_000, "zipf"),
    "100k users, 8.6M demand edges": (100_000, 4_300_000, "meeting"),
    "100k users, 8.6M pairs": (100_000, 8_600_000, "meeting"),
}


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Measure the speed cases, each in a process of its own, and the saving table."""
    rng = np.random.default_rng(SEED)
    meeting = social.meeting_probabilities()
    users, pairs = social.facebook()
    friends = np.bincount(pairs.ravel(), minlength=users).astype(np.float64)
    speed = []
    for name, (count, wanted, kind) in SPEED_CASES.items():
        if quick and count > 20_000:
            continue
        report(f"speed: {name}")
        speed.append({"case": name, **_measure(*_generate(rng, count, wanted, kind, friends, meeting))})
    report("saving on the Facebook graph")
    return {
        "compared": "placement by catchment against uploading every feed (all views at the cloud)",
        "graph": f"SNAP ego-Facebook: {users} users, {len(pairs)} friend pairs; speed: random graphs, friends by "
        "Zipf's law (20k) or as many as Facebook's users have (100k)",
        "rates": {
            "meeting": f"shares of the trace in which two aircraft were within {social.MEETING_KM:g} km "
            f"({len(meeting)} pairs that met, from {meeting[0]:.2g} to {meeting[-1]:.2g})",
            "zipf": "Zipf's law with exponent 2, from 1 to 10",
            "pareto": "Pareto's law with exponent 1 over three decades",
        },
        "speed": speed,
        "saving": _saving(rng, users, pairs, meeting),
    }


def _generate(
    rng: np.random.Generator, users: int, pairs: int, kind: str, friends: Any, meeting: Any
) -> tuple[int, Any, Any, Any]:
    if kind == "zipf":
        wanted = social.zipf(rng, 2.0, min(4956, users // 10), users)
        rates = social.zipf(rng, 2.0, 10, 2 * pairs)
    else:
        wanted, rates = rng.choice(friends, users), rng.choice(meeting, 2 * pairs)
    return users, *social.both_ways(rng, social.random_graph(rng, wanted, pairs), rates)


def _measure(users: int, src: Any, dst: Any, rate: Any) -> dict[str, Any]:
    """Seconds and peak memory of a fresh process that reads the rows, builds the graph and assigns."""
    with tempfile.TemporaryDirectory() as folder:
        for name, column in (("src", src), ("dst", dst), ("rate", rate)):
            np.save(Path(folder, f"{name}.npy"), column)
        told = subprocess.run(
            [sys.executable, __file__, folder, str(users)], check=True, capture_output=True, text=True
        ).stdout
    result: dict[str, Any] = json.loads(told)
    return result


def _measured_process(folder: Path, users: int) -> dict[str, Any]:
    src, dst, rate = (np.load(folder / f"{name}.npy") for name in ("src", "dst", "rate"))
    runs = []
    for _ in range(REPEATS.get(src.shape[0], FEW)):
        began = (time.perf_counter(), time.process_time())
        graph = DemandGraph.from_edges(src, dst, rate, devices=users)
        built = time.perf_counter()
        found = assign(graph, DeviceCosts(1.0, 1.0))
        ended = (time.perf_counter(), time.process_time())
        runs.append((ended[0] - began[0], built - began[0], ended[1] - began[1]))
    seconds, build, cpu = min(runs)
    return {
        "demand_edges": graph.edges,
        "seconds": round(seconds, 4),
        "of_which_building_the_graph": round(build, 4),
        "cpu_seconds": round(cpu, 4),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "improvement": round(found.improvement, 3),
        "optimal": found.optimal,
    }


def _saving(rng: np.random.Generator, users: int, pairs: Any, meeting: Any) -> list[dict[str, Any]]:
    """A row for each kind of rates and each cost ratio."""
    count = 2 * len(pairs)
    kinds = {
        "meeting": rng.choice(meeting, count),
        "zipf": social.zipf(rng, 2.0, 10, count),
        "pareto": social.pareto(rng, 1.0, 3, count),
    }
    rows = []
    for kind, rates in kinds.items():
        graph = DemandGraph.from_edges(*social.both_ways(rng, pairs, rates), devices=users)
        for ratio in RATIOS:
            found = assign(graph, DeviceCosts(1.0, ratio))
            rows.append({"rates": kind, "download_to_upload": ratio, **found.summary(), **found.residual_kinds})
    return rows


def render(result: Mapping[str, Any]) -> RenderableType:
    """Tables of speed and saving."""
    speed = Table(title="speed (fastest run, graph built from unsorted rows)")
    for column in ("case", "seconds", "of it building", "CPU seconds", "peak MB"):
        speed.add_column(column, justify="left" if column == "case" else "right")
    for row in result["speed"]:
        numbers = (row["seconds"], row["of_which_building_the_graph"], row["cpu_seconds"], row["peak_memory_mb"])
        speed.add_row(row["case"], *map(str, numbers))
    return Group(speed, *(_saving_table(kind, told, result) for kind, told in result["rates"].items()))


def _saving_table(kind: str, told: str, result: Mapping[str, Any]) -> Table:
    table = Table(title=f"saving on the Facebook graph, rates: {told}")
    for column in ("download / upload cost", "improvement", "conflicts", "components", "optimal", "seconds"):
        table.add_column(column, justify="right")
    for row in (row for row in result["saving"] if row["rates"] == kind):
        keys = ("conflicts", "residual_components", "optimal", "seconds")
        table.add_row(f"{row['download_to_upload']:g}", f"{row['improvement']:.2f}", *(str(row[k]) for k in keys))
    return table


if __name__ == "__main__":
    print(json.dumps(_measured_process(Path(sys.argv[1]), int(sys.argv[2]))))
