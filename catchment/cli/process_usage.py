"""Processor time and memory of this process and of those that it started, such as Spark's JVM."""

from __future__ import annotations

import resource
import sys

_MAX_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
_MB = 1 << 20


def usage() -> dict[str, float | int]:
    """Return seconds of processor time and megabytes: the peak of this process, and what its children hold now."""
    import psutil  # no other command needs it

    mine = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = mine.ru_utime + mine.ru_stime
    memory = mine.ru_maxrss * _MAX_RSS_UNIT
    for child in psutil.Process().children(recursive=True):
        try:
            with child.oneshot():
                times = child.cpu_times()
                held = child.memory_info().rss
        except psutil.Error:
            continue  # it has ended meanwhile
        cpu_s += times.user + times.system
        memory += held
    return {"cpu_s": round(cpu_s, 2), "peak_memory_mb": memory // _MB}
