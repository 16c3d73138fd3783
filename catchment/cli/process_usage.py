"""Processor time and peak memory of this process and of those that it started, such as Spark's JVM."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def usage() -> dict[str, float | int]:
    """Seconds of processor time and peak megabytes; children are counted where the system tells (Linux)."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s, peak_kb = mine.ru_utime + mine.ru_stime, mine.ru_maxrss
    for pid in _descendants(os.getpid()):
        used = _of(pid)
        cpu_s, peak_kb = cpu_s + used[0], peak_kb + used[1]
    return {"cpu_s": round(cpu_s, 2), "peak_memory_mb": peak_kb // 1024}


def _descendants(root: int) -> list[int]:
    parents = {int(p.name): parent for p in PROC.glob("[0-9]*") if (parent := _parent(p)) is not None}
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def _parent(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # it has ended meanwhile


def _of(pid: int) -> tuple[float, int]:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return 0.0, 0
    peak = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return (int(fields[11]) + int(fields[12])) / _TICKS, peak
