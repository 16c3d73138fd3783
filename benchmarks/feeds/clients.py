"""Fleets of several sizes, each in a process of its own and in virtual time: traffic, processor time and memory.

Devices, bus and cloud are the real cores in one process, so traffic does not depend on the machine, and processor time
and memory are those of all devices and the cloud together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from benchmarks.data import VARIABLE
from catchment.errors import FeedError

PROJECT = Path(__file__).parents[2] / "examples" / "nearby_friends"
SIZES = (100, 200, 300, 400, 500)
MANY = 5000  # light devices: they record a tenth as often
SECONDS = 65


def run(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """One run per size and strategy."""
    sizes = (20,) if quick else SIZES
    seconds = 20 if quick else SECONDS
    found = []
    for users in sizes:
        for strategy in ("ours", "cloud"):
            report(f"{users} devices, {strategy}")
            found.append(_run(users, 1.0, strategy, check=True, seconds=seconds))
    return {"data": found[0]["data"], "seconds": seconds, "fleets": found}


def run_many(report: Callable[[str], None], quick: bool) -> dict[str, Any]:
    """Run very many light devices, of a made-up world: no data set has so many users."""
    users = 200 if quick else MANY
    seconds = 20 if quick else SECONDS
    report(f"{users} devices")
    found = _run(users, 0.1, "ours", check=False, seconds=seconds, made_up=True)
    return {"data": found["data"], "seconds": seconds, "fleets": [found]}


def _run(
    users: int, rate_unit: float, strategy: str, *, check: bool, seconds: int, made_up: bool = False
) -> dict[str, Any]:
    """Run one fleet in a process of its own; return what it reports and what it took."""
    words = ["feeds", "run", "-p", str(PROJECT), "--users", str(users), "--rate-unit", str(rate_unit)]
    words += ["--seconds", str(seconds), "--strategy", strategy, "--check" if check else "--no-check", "--json"]
    environment = {name: value for name, value in os.environ.items() if not made_up or name != VARIABLE}
    process = subprocess.Popen([sys.executable, "-m", "catchment.cli", *words], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    answer = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        raise FeedError(f"the run of {users} devices failed: catchment {' '.join(words)}")
    (found,) = json.loads(answer)["runs"]
    phase = found["phases"][0]
    kept = ("data", "devices", "views", "strategy", "views_at_cloud", "cloud_cpu_s", "notices", "doubled")
    return {
        **{name: found[name] for name in kept},
        **{name: found[name] for name in ("expected", "lost", "invented") if name in found},
        "measured": phase["measured"],
        "predicted": phase["predicted"],
        "off": phase["off"],
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_memory_mb": usage.ru_maxrss // 1024,
    }


def render(result: Mapping[str, Any]) -> RenderableType:
    """A row per fleet."""
    table = Table(title=f"fleets in virtual time, {result['seconds']} s each ({result['data']})")
    for head in ("devices", "views", "strategy", "bytes/s up", "down", "off", "cloud CPU s", "all CPU s", "MB", "lost"):
        table.add_column(head, justify="right")
    for fleet in result["fleets"]:
        measured = fleet["measured"]
        table.add_row(
            f"{fleet['devices']:,}",
            f"{fleet['views']:,}",
            fleet["strategy"],
            f"{measured['bytes_up']:,.0f}",
            f"{measured['bytes_down']:,.0f}",
            f"{max(fleet['off'].values()):.1%}",
            f"{fleet['cloud_cpu_s']:.1f}",
            f"{fleet['cpu_s']:.1f}",
            f"{fleet['peak_memory_mb']:,}",
            str(fleet.get("lost", "not checked")),
        )
    return table
