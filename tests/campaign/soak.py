"""The command `python -m tests.campaign.soak`: a deployment lives for an hour under steady records, and must not grow.

Every other second each site writes a file; files are removed after some minutes, as an operator would. Everything that
may be kept for a while is kept for minutes here, so that the deployment is steady after a quarter. Once a minute
memory, open files, threads, the files and bytes of each part of the state, the processor time that was spent, the
durations of batches and the lag of answers are sampled. Records come at one rate, so processor time per minute is the
cost of a batch whatever else the machine does; durations and lags follow the machine's load as well. The verdict
compares the median of the last quarter with that of the second (`soak_report`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from deltalake import DeltaTable

from catchment.center.results.read import read_windows
from tests.campaign.campaign import commit_of_code, wait_for_rest
from tests.campaign.feed import WINDOW_S
from tests.campaign.living import Living
from tests.campaign.machines import Machine
from tests.campaign.soak_report import Sample, find_growth, plot, render
from tests.campaign.verdict import TOTALS, find_false_claims, show

SAMPLE_S = 60.0
FEED_S = 2.0  # between two files of a site
SOURCE_FILES_KEEP_S = 180.0
HORIZON = "4 min"
LIMITS = """\
history_keep = "4 min"
replaced_files_keep = "4 min"
"""
COLLECTION_MINUTES = 5  # between two collections of garbage, after which the live heap is read
MB = 2**20


@dataclass
class Sampler:
    """Looks at the processes and folders of a deployment."""

    living: Living
    _batches_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _last_progress_us: dict[str, int] = field(default_factory=dict)
    _last_cpu_s: dict[str, float] = field(default_factory=dict)

    def note_batches(self) -> None:
        """Note the batch that each site has ended last, if it is another than before."""
        for site in self.living.sites:
            reader = self.living.machines[site].status.get("streams", {}).get("events", {})
            ended_us = reader.get("last_progress_us")
            if ended_us is not None and ended_us != self._last_progress_us.get(site):
                self._last_progress_us[site] = ended_us
                self._batches_s[site].append(reader["last_batch_us"] / 1e6)

    def sample(self, minute: int) -> Sample:
        """Return what there is now, by series: `role / what`."""
        values: dict[str, float] = {}
        for role, machine in self.living.machines.items():
            process = _look_at_process(machine, with_collection=minute % COLLECTION_MINUTES == 0)
            values |= {f"{role} / {what}": value for what, value in process.items()}
            values |= {f"{role} / {what}": value for what, value in _look_at_folders(machine.state).items()}
            cpu_s = _cpu_s(machine)
            if role in self._last_cpu_s:
                values[f"{role} / processor s per minute"] = cpu_s - self._last_cpu_s[role]
            self._last_cpu_s[role] = cpu_s
        for part in ("results", "windows", "logs"):
            files, size_bytes = _size_of(self.living.state / part)
            values |= {f"center / files in {part}": files, f"center / MB in {part}": size_bytes / MB}
        for part in ("results", "windows"):
            tables = [
                DeltaTable(path) for path in (self.living.state / part).iterdir() if (path / "_delta_log").exists()
            ]
            values[f"center / files of {part} in use"] = max((len(t.file_uris()) for t in tables), default=0)
        for site, batches_s in self._batches_s.items():
            values[f"{site} / batch s"] = round(statistics.median(batches_s), 3)
        self._batches_s.clear()
        values["machine / load"] = os.getloadavg()[0]
        lags_s = self._recent_lags_s()
        if lags_s:
            values["center / lag of answers s"] = round(statistics.median(lags_s), 3)
        return Sample(minute, {name: round(value, 3) for name, value in values.items()})

    def _recent_lags_s(self) -> list[float]:
        """Return by how much the windows that ended within the last minute were answered after their end."""
        first: dict[float, float] = {}
        for entry in read_windows(self.living.state, TOTALS).to_pylist():
            end_s = entry["window_start"].timestamp() + WINDOW_S
            if time.time() - end_s < SAMPLE_S + WINDOW_S:
                first.setdefault(end_s, entry["published_at"].timestamp() - end_s)
        return list(first.values())


def main(
    minutes: Annotated[int, typer.Option(help="how long the deployment lives under records")] = 60,
    folder: Annotated[Path, typer.Option(help="where the deployment is made")] = Path("faults/soak"),
    report: Annotated[Path | None, typer.Option(help="print the table of these samples, and run nothing")] = None,
    image: Annotated[Path | None, typer.Option(help="where the plot of the samples is written")] = None,
) -> None:
    """Let a deployment live under steady records, sample it every minute, and say what grows."""
    samples = _read(report) if report is not None else _run(folder.absolute(), minutes)
    if image is not None:
        plot(samples, image)
    print(render(samples))
    if find_growth(samples):
        sys.exit(1)


def _run(folder: Path, minutes: int) -> list[Sample]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kept = folder / "samples.jsonl"
    samples = []
    with Living(
        folder, 1, horizon=HORIZON, limits=LIMITS, with_namespace=False, with_small_disks=False
    ).running() as living:
        living.feed.write_now(living.sites)
        living.wait_until_up()
        sampler = Sampler(living)
        began_s = time.monotonic()
        for minute in range(1, minutes + 1):
            _feed_until(living, sampler, began_s + minute * SAMPLE_S)
            samples.append(sampler.sample(minute))
            with kept.open("a") as file:
                file.write(json.dumps({"commit": commit_of_code(), **samples[-1].to_json()}) + "\n")
            living.feed.remove_older(SOURCE_FILES_KEEP_S)
            dead = [m.name for m in living.machines.values() if not m.is_alive]
            assert not dead, f"{dead} ended"
            false = find_false_claims(living)
            assert not false, f"windows claim what is not so:\n{show(false)}"
        wait_for_rest(living, living.feed.close_now(living.sites))
    return samples


def _feed_until(living: Living, sampler: Sampler, end_s: float) -> None:
    """Write what every site records now, again and again, until an instant."""
    next_s = time.monotonic()
    while time.monotonic() < end_s:
        living.feed.write_now(living.sites)
        sampler.note_batches()
        next_s += FEED_S
        time.sleep(max(0.0, next_s - time.monotonic()))


def _look_at_process(machine: Machine, *, with_collection: bool) -> dict[str, float]:
    process = psutil.Process(machine.pid)
    found = {
        "python MB": process.memory_info().rss / MB,
        "open files": process.num_fds(),
        "threads": process.num_threads(),
    }
    java = machine.java_pid()
    if java is not None:
        found["JVM MB"] = psutil.Process(java).memory_info().rss / MB
        found["JVM open files"] = psutil.Process(java).num_fds()
        if with_collection and (heap_mb := _live_heap_mb(java)) is not None:
            found["JVM live heap MB"] = heap_mb
    return found


def _cpu_s(machine: Machine) -> float:
    """Return the processor time that a machine's process and its JVM have taken so far."""
    pids = [machine.pid, machine.java_pid()]
    times = [psutil.Process(pid).cpu_times() for pid in pids if pid is not None]
    return float(sum(spent.user + spent.system for spent in times))


def _live_heap_mb(java: int) -> float | None:
    """Collect garbage, and return how much of the heap is in use after that; None without the tools of the JDK."""
    if shutil.which("jstat") is None or shutil.which("jcmd") is None:
        return None
    subprocess.run(["jcmd", str(java), "GC.run"], capture_output=True, check=False)
    told = subprocess.run(["jstat", "-gc", str(java)], capture_output=True, text=True, check=False).stdout.split()
    columns = dict(zip(told[: len(told) // 2], told[len(told) // 2 :], strict=True))
    return float(columns["OU"]) / 1024 if "OU" in columns else None


def _look_at_folders(state: Path) -> dict[str, float]:
    """Return the files and bytes of each part of a role's state."""
    found: dict[str, float] = {}
    for part in (path for path in state.iterdir() if path.is_dir()):
        files, size_bytes = _size_of(part)
        found |= {f"files in {part.name}": files, f"MB in {part.name}": size_bytes / MB}
    return found


def _size_of(folder: Path) -> tuple[int, int]:
    """Return the number and the bytes of all files below a folder; what is removed while we look counts for nothing."""
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append((Path(parent) / name).stat().st_size)
    return len(sizes), sum(sizes)


def _read(path: Path) -> list[Sample]:
    return [Sample.from_json(json.loads(line)) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    typer.run(main)
