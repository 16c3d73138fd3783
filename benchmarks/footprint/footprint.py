"""What a process of catchment takes before and beside the work: commands, a cold start, an idle stream, a trickle.

Real processes, as people start them: `catchment run` with one site and the center in one process. Processor time and
memory are those of the process and all that it has started (the JVM, Python workers), read from the operating system.
Resident memory counts shared pages once per process; the proportional one divides them among those that share them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from rich.console import Group, RenderableType
from rich.table import Table

DESCRIPTION = "start-up of commands and of a run, and what an idle site and 1,000 records per second take"
PARTS = ("commands", "run", "generator")
COMMANDS = {
    "--help": ["--help"],
    "show status": ["show", "status"],
    "show windows": ["show", "windows", "totals"],
    "show results": ["show", "results", "totals"],
}
ROWS_PER_S = 1_000
FILE_EVERY_S = 0.25
PATIENCE_S = 180.0

_PROJECT = """
[project]
name = "footprint"
center = "center"
[sites.edge]
[sites.center]
[[links]]
from = "edge"
to = "center"
"""
_SQL = """
CREATE STREAM events (ts TIMESTAMP, key BIGINT, value DOUBLE)
  WITH (event_time = 'ts', sites = 'edge', connector = 'files', path = 'data', format = 'json');
CREATE MATERIALIZED VIEW totals AS
  SELECT window.start, key, count(*) AS n, sum(value) AS total FROM events GROUP BY window(ts, '10 seconds'), key;
"""
_GENERATOR_SQL = _SQL.replace(
    "connector = 'files', path = 'data', format = 'json'", "connector = 'generator', rows_per_s = 1000"
)
_START_S = 1_700_000_000


def run(report: Callable[[str], None], quick: bool, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Measure the parts."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "p"
        measured: dict[str, Any] = {"compared": "one site and the center in one process, JSON lines, defaults on"}
        if "run" in parts or "commands" in parts:
            measured["run"] = measure_run(project, 5.0 if quick else 30.0, report)
        if "generator" in parts:
            measured["generator"] = measure_generator(Path(folder) / "g", 5.0 if quick else 30.0, report)
        if "commands" in parts:
            measured["commands"] = measure_commands(project, 2 if quick else 7, report)
    return measured


def measure_commands(project: Path, turns: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of each command, the commands taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(turns):
        for name, words in COMMANDS.items():
            given = words if name == "--help" else [*words, "-p", str(project)]
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "catchment.cli", *given], check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    for name, all_seconds in seconds.items():
        report(f"catchment {name}: {statistics.median(all_seconds):.2f} s")
    return seconds


def measure_run(project: Path, seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Start a project cold, wait for its first window, leave it idle, then give it a trickle of records."""
    write_project(project)
    records = Records(project / "data")
    records.write(5 * ROWS_PER_S, seconds=25)
    began = time.perf_counter()
    with running(project) as process:
        wait_until(lambda: published(project) > 0, process)
        first_s = time.perf_counter() - began
        report(f"first window after {first_s:.1f} s")
        time.sleep(5.0)
        idle = watch(process, seconds, lambda: None)
        report(f"idle: {idle['core_share']:.1%} of a core, {idle['resident_mb']:.0f} MB resident")
        before = published(project)
        rows_before = rows_read(project)
        trickle = watch(process, seconds, lambda: records.write(int(ROWS_PER_S * FILE_EVERY_S), seconds=FILE_EVERY_S))
        trickle["rows"] = rows_read(project) - rows_before
        report(f"{ROWS_PER_S:,} records per second: {trickle['core_share']:.1%} of a core")
        wait_until(lambda: rows_read(project) == records.rows, process)  # none was lost
        if seconds > 15:
            wait_until(lambda: published(project) > before, process)
    return {"first_window_s": first_s, "idle": idle, "trickle": trickle}


def measure_generator(project: Path, seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Return what a source takes that Structured Streaming reads, at the same rate, once it has answered a window."""
    write_project(project, _GENERATOR_SQL)
    with running(project) as process:
        wait_until(lambda: published(project) > 0, process)
        rows_before = rows_read(project)
        used = watch(process, seconds, lambda: None)
        used["rows"] = rows_read(project) - rows_before
    report(f"{used['rows'] / used['seconds']:,.0f} generated records per second: {used['core_share']:.1%} of a core")
    return used


class Records:
    """Makes files of records in order of event time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows = 0
        self._files = 0
        self._at_us = _START_S * 1_000_000

    def write(self, rows: int, seconds: float) -> None:
        """Write a file of so many records, which span so much event time, in one step."""
        step_us = int(seconds * 1_000_000 / rows)
        lines = []
        for _ in range(rows):
            self._at_us += step_us
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self._at_us // 1_000_000))
            lines.append(f'{{"ts":"{at}.{self._at_us % 1_000_000:06d}Z","key":{self.rows % 100},"value":1.5}}\n')
            self.rows += 1
        path = self._folder / f"{self._files:06d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(lines))
        hidden.rename(path)
        self._files += 1


def write_project(folder: Path, sql: str = _SQL) -> None:
    (folder / "queries").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "catchment.toml").write_text(_PROJECT)
    (folder / "queries" / "q.sql").write_text(sql)


@contextmanager
def running(project: Path) -> Iterator[psutil.Process]:
    """Run a project in a process of its own, until the end of the block."""
    words = [sys.executable, "-m", "catchment.cli", "run", "-p", str(project), "--json"]
    started = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait(PATIENCE_S)


def published(project: Path) -> int:
    """Return how many revisions the center says that it has published."""
    try:
        return int(json.loads((project / "state" / "center" / "status.json").read_text())["published"])
    except (OSError, ValueError, KeyError):
        return 0


def rows_read(project: Path) -> int:
    """Return how many records the site says that it has read."""
    try:
        return int(json.loads((project / "state" / "sites" / "edge" / "status.json").read_text())["rows"])
    except (OSError, ValueError, KeyError):
        return 0


def wait_until(condition: Callable[[], bool], process: psutil.Process) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            raise RuntimeError("the run has ended")
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was published within {PATIENCE_S:.0f} s")
        time.sleep(0.05)


def watch(process: psutil.Process, seconds: float, feed: Callable[[], None]) -> dict[str, Any]:
    """Return the share of a core and the memory of a process and all that it has started, while it is fed."""
    before = _processor_s(process)
    began = time.monotonic()
    turn = 0
    while time.monotonic() - began < seconds:
        feed()
        turn += 1
        time.sleep(max(0.0, began + turn * FILE_EVERY_S - time.monotonic()))
    took = time.monotonic() - began
    after = _processor_s(process)
    used = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after}
    memory = [p.memory_full_info() for p in _family(process)]
    return {
        "seconds": took,
        "core_share": sum(used.values()) / took,
        "core_share_by_program": {name: seconds / took for name, seconds in used.items()},
        "resident_mb": sum(m.rss for m in memory) / 1e6,
        "proportional_mb": sum(getattr(m, "pss", m.rss) for m in memory) / 1e6,
        "processes": len(memory),
    }


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _processor_s(process: psutil.Process) -> dict[str, float]:
    """Return the seconds of processor time by program; the process itself apart from the workers that it has."""
    found: dict[str, float] = {}
    for member in _family(process):
        name = "catchment" if member.pid == process.pid else member.name()
        times = member.cpu_times()
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def render(result: Mapping[str, Any]) -> RenderableType:
    """Show one table of commands and one of the run."""
    shown = []
    if "commands" in result:
        commands = Table("command", "seconds (median)", "lowest", "highest", title="commands", title_justify="left")
        for name, seconds in result["commands"].items():
            commands.add_row(
                f"catchment {name}", f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}", f"{max(seconds):.2f}"
            )
        shown.append(commands)
    if "run" in result:
        found = result["run"]
        head = (
            f"one site and the center in one process; first window {found['first_window_s']:.1f} s after a cold start"
        )
        table = Table("", "share of a core", "of it the JVM", "resident MB", "proportional MB", title=head)
        cells = {"idle": found["idle"], f"{ROWS_PER_S:,} records per second in files": found["trickle"]}
        if "generator" in result:
            cells[f"{ROWS_PER_S:,} records per second, generated"] = result["generator"]
        for title, cell in cells.items():
            table.add_row(
                title,
                f"{cell['core_share']:.1%}",
                f"{cell['core_share_by_program'].get('java', 0.0):.1%}",
                f"{cell['resident_mb']:.0f}",
                f"{cell['proportional_mb']:.0f}",
            )
        shown.append(table)
    return Group(*shown)
