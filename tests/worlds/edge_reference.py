"""Reference implementations for tests of edge aggregation: plain Python, one record at a time, no shared
code.

Written from the paper (Heintz et al., HPDC'15, sections 4 and 5) and as slow as it reads: dictionaries, a
loop for the FIFO queue. They catch errors of vectorising, of steps and of bookkeeping; a misreading of the
paper they would share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf

Record = tuple[int, int]  # time in microseconds, key


@dataclass
class Queue:
    """A single server, one update at a time, constant service."""

    rate: float
    free_s: float = -inf

    def send(self, at_s: float) -> float:
        self.free_s = max(self.free_s, at_s) + 1 / self.rate
        return self.free_s


@dataclass
class Window:
    """What is known inside one window."""

    start_us: int
    length_us: int
    cache: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    miss_rate: float = 1.0

    def arrive(self, at_us: int, key: int) -> None:
        self.miss_rate += 0.02 * ((key not in self.cache) - self.miss_rate)
        self.cache.add(key)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.first.setdefault(key, at_us)
        self.last[key] = at_us


def size_of(name: str, laziness: float | None, now: Window, before: Window | None, at_us: int, rate: float) -> float:
    """The cache size of the paper's formulas."""
    u = (at_us - now.start_us) / now.length_us
    left_s = (now.start_us + now.length_us - at_us) / 1e6
    to_come = sum(now.counts.values()) * (1 - u) / max(u, 1e-9)
    if name == "lazy-pessimistic":
        return rate * left_s - to_come
    if name == "lazy-optimistic":
        return rate * left_s - now.miss_rate * to_come
    if name == "hybrid":
        assert laziness is not None
        lazy = max(rate * left_s - now.miss_rate * to_come, 0)
        return lazy if before is None else laziness * lazy + (1 - laziness) * eager_nonuniform(before, u)
    if before is None:
        return inf
    then_us = at_us - now.start_us + before.start_us
    seen = sum(t <= then_us for t in before.first.values())
    if name == "uniform":
        mean = sum(before.counts.values()) / len(before.counts)
        return float(len(before.counts) * (1 - u**mean - (1 - u) ** mean))
    if name == "nonuniform":
        return eager_nonuniform(before, u)
    if name == "eager-empirical":
        return seen - sum(t <= then_us for t in before.last.values())
    assert name == "lazy-empirical"
    return seen - sum(t * 1e6 <= then_us + 1e-3 for t in lazy_schedule(before, rate))


def eager_nonuniform(before: Window, u: float) -> float:
    return sum(1 - u**n - (1 - u) ** n for n in before.counts.values())


def lazy_schedule(window: Window, rate: float) -> list[float]:
    """When the lazy optimal algorithm sends each key of a window that has the link for itself."""
    queue = Queue(rate)
    end_s = (window.start_us + window.length_us) / 1e6
    lasts = sorted(window.last.values())
    done = [queue.send(t / 1e6) for t in lasts]
    finish = max(done[-1], end_s)
    return [finish - (len(lasts) - i) / rate for i in range(len(lasts))]


def run(
    records: list[Record],
    window_us: int,
    rate: float,
    name: str,
    *,
    laziness: float | None = None,
    eviction: str = "lfu",
    believed: float = 1.0,
    ticks_us: tuple[int, ...] = (),
) -> list[tuple[int, float]]:
    """(updates, staleness in seconds) of each window that has records."""
    queue, out, before = Queue(rate), [], None
    for start in sorted({t // window_us * window_us for t, _ in records}):
        window = Window(start, window_us)
        mine = [(t, 0, k) for t, k in records if start <= t < start + window_us]
        moments = sorted(mine + [(start + t, 1, -1) for t in ticks_us], key=lambda m: m[:2])
        updates = 0
        for at_us, is_tick, key in moments:
            if not is_tick:
                window.arrive(at_us, key)
            if name == "streaming":
                excess = float(len(window.cache))
            elif name == "batching":
                excess = 0.0
            else:
                excess = len(window.cache) - max(size_of(name, laziness, window, before, at_us, rate * believed), 0.0)
            for _ in range(ceil(max(excess, 0.0) - 1e-9)):
                window.cache.remove(victim(window, eviction))
                queue.send(at_us / 1e6)
                updates += 1
        end_s = (start + window_us) / 1e6
        for _ in sorted(window.cache):
            queue.send(end_s)
            updates += 1
        out.append((updates, max(queue.free_s - end_s, 0.0)))
        before = window
    return out


def victim(window: Window, eviction: str) -> int:
    if eviction == "lru":
        return min(window.cache, key=lambda k: window.last[k])
    return min(window.cache, key=lambda k: (window.counts[k], window.last[k]))
