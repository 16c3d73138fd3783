"""Generated streams with the disorder of two measured ones.

Yang et al. (HPM, Table 1) measured two streams of position sensors, game1 and game2: how many tuples, which
share of them late, the longest and the mean delay. Delay is the distance behind the newest event time seen so
far; a tuple with none is on time. `generate` makes a stream with those four figures for any seed.

Model: sensors report at a steady pace, each through one of a few receivers; a record takes a short time that
differs from sensor to sensor; **within a sensor order is kept**, and disorder is between sensors, as in
measured data. Now and then, in bursts, a sensor or a whole receiver stalls: what it sends meanwhile arrives
together when the stall ends. Three knobs are turned until the figures are met, one for each: the spread of
the short times (late share), the lengths of the common stalls (mean delay), the one longest stall (maximum
delay).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from catchment.arrays import Floats, Ints
from catchment.errors import SimulationError
from catchment.sim.order.trace import ArrivalTrace
from catchment.timeline import SECOND_US

ROUNDS = 6  # rounds in which each of the three knobs is turned once
STEPS = 7  # secant steps for one knob in one round


@dataclass(frozen=True)
class Disorder:
    """The figures that a generated stream shall have, and the shape of what causes them."""

    name: str
    tuples: int
    late_share: float
    max_delay_s: float
    mean_delay_s: float
    rate_hz: float = 1140.0
    sources: int = 16
    receivers: int = 4
    burst_every_s: float = 20.0
    receiver_share: float = 0.3  # share of the bursts that hit a whole receiver

    def __post_init__(self) -> None:
        if self.tuples < 1000 or self.sources < 2 or not 1 <= self.receivers <= self.sources:
            raise SimulationError(
                f"cannot generate {self.tuples} tuples of {self.sources} sources behind {self.receivers} receivers",
                hint="a generated stream needs 1000 tuples or more and 2 sources or more",
            )
        if not 0 < self.late_share < 1 or not 0 < self.mean_delay_s < self.max_delay_s < self.duration_s:
            raise SimulationError(
                f"cannot generate a late share of {self.late_share} with a mean delay of {self.mean_delay_s} s and a "
                f"maximum of {self.max_delay_s} s in {self.duration_s:.0f} s"
            )

    @property
    def duration_s(self) -> float:
        return self.tuples / self.rate_hz

    def shorten(self, tuples: int) -> Disorder:
        """Return the same rates and shares in a shorter stream; the longest stall shrinks with it."""
        part = tuples / self.tuples
        return replace(
            self,
            tuples=tuples,
            max_delay_s=max(self.max_delay_s * part, 20 * self.mean_delay_s),
            burst_every_s=min(self.burst_every_s, tuples / self.rate_hz / 4),
        )


LIKE = {
    "game1": Disorder("game1", 544_223, 0.5758, 14.2, 0.034),
    "game2": Disorder("game2", 559_211, 0.6682, 17.1, 0.064),
}


@dataclass(frozen=True)
class Figures:
    """What Table 1 of the paper reports of a stream."""

    tuples: int
    late_share: float
    max_delay_s: float
    mean_delay_s: float


def measure(event_us: Ints) -> Figures:
    """Return the disorder of event times given in arrival order."""
    delay = np.maximum.accumulate(event_us) - event_us
    return Figures(
        len(event_us), float(np.mean(delay > 0)), float(delay.max()) / SECOND_US, float(delay.mean()) / SECOND_US
    )


@dataclass
class _Stalls:
    """Intervals in which a source sends nothing; the first one is the longest."""

    source: Ints
    start_s: Floats
    length_s: Floats


@dataclass
class _Knobs:
    spread_s: float
    stretch: float
    longest_s: float


@dataclass(frozen=True)
class _Raw:
    """A stream before its delays: sorted by source, then by event time."""

    source: Ints
    event_s: Floats
    value: Floats
    jitter: Floats  # in units of the spread
    stalls: _Stalls


def generate(wanted: Disorder, seed: int) -> ArrivalTrace:
    """Return a stream with the wanted figures; the same seed gives the same stream."""
    rng = np.random.default_rng(seed)
    raw = _draw(wanted, rng)
    knobs = _Knobs(spread_s=0.001, stretch=1.0, longest_s=wanted.max_delay_s)
    for _ in range(ROUNDS):
        _turn(raw, knobs, "spread_s", lambda f: f.late_share, wanted.late_share)
        _turn(raw, knobs, "stretch", lambda f: f.mean_delay_s, wanted.mean_delay_s)
        knobs.longest_s += wanted.max_delay_s - _figures(raw, knobs).max_delay_s
    return _trace(raw, knobs, wanted)


def _turn(raw: _Raw, knobs: _Knobs, name: str, figure: Callable[[Figures], float], target: float) -> None:
    """Turn one knob by secant steps of its logarithm until its figure is met; every figure grows with its knob."""
    at = np.log(getattr(knobs, name))
    got = figure(_figures(raw, knobs))
    slope = max(got, target)  # a first guess: the figure is proportional to the knob
    for _ in range(STEPS):
        if abs(got - target) < 2e-4 * target:
            return
        step = float(np.clip((target - got) / slope, -0.7, 0.7))
        setattr(knobs, name, float(np.exp(at + step)))
        after = figure(_figures(raw, knobs))
        slope = max((after - got) / step, 0.05 * target)
        at = at + step
        got = after


def _draw(wanted: Disorder, rng: np.random.Generator) -> _Raw:
    """Return everything random about a stream, drawn once, so that the knobs act on one and the same stream."""
    counts = rng.multinomial(wanted.tuples, rng.dirichlet(np.full(wanted.sources, 60.0)))
    source = np.repeat(np.arange(wanted.sources), counts)
    rank = np.concatenate([np.arange(n) for n in counts])
    pace = (wanted.duration_s / counts)[source]
    event_s = (rank + rng.uniform(0.0, 1.0, wanted.tuples)) * pace
    value = _values(source, event_s, wanted, rng)
    nearness = rng.uniform(0.0, 2.0, wanted.sources)[source]
    jitter = nearness + rng.exponential(1.0, wanted.tuples)
    return _Raw(source, event_s, value, jitter, _draw_stalls(wanted, rng))


def _values(source: Ints, event_s: Floats, wanted: Disorder, rng: np.random.Generator) -> Floats:
    """Return speeds: each sensor has a level that drifts, plus noise; the coefficient of variation is about 0.65."""
    level = rng.lognormal(0.0, 0.25, wanted.sources)[source]
    phase = rng.uniform(0, 2 * np.pi, wanted.sources)[source]
    drift = 1 + 0.25 * np.sin(2 * np.pi * event_s / 45.0 + phase)
    return np.asarray(3.0 * level * drift * rng.gamma(3.2, 1 / 3.2, len(source)), dtype=np.float64)


def _draw_stalls(wanted: Disorder, rng: np.random.Generator) -> _Stalls:
    """Return one longest stall of one sensor, and bursts of shorter ones of a sensor or of a receiver."""
    source = [int(rng.integers(wanted.sources))]
    start = [0.0]
    length = [0.0]
    start[0] = float(rng.uniform(0.15, 0.8) * (wanted.duration_s - wanted.max_delay_s))
    for burst in rng.uniform(0, wanted.duration_s, max(2, round(wanted.duration_s / wanted.burst_every_s))):
        hit = _hit(wanted, rng)
        at = burst
        for _ in range(int(rng.integers(1, 4))):
            stall = min(0.25 * (1 + rng.pareto(1.6)), 6.0)
            source += hit
            start += [at] * len(hit)
            length += [stall] * len(hit)
            at += stall * rng.uniform(1.2, 2.5)
    return _Stalls(np.array(source), np.array(start), np.array(length))


def _hit(wanted: Disorder, rng: np.random.Generator) -> list[int]:
    if rng.uniform() >= wanted.receiver_share:
        return [int(rng.integers(wanted.sources))]
    receiver = int(rng.integers(wanted.receivers))
    return [s for s in range(wanted.sources) if s % wanted.receivers == receiver]


def _arrivals(raw: _Raw, knobs: _Knobs) -> Floats:
    """Return when each record arrives: after its short time, the stall it was sent in, and its predecessors."""
    arrival = raw.event_s + knobs.spread_s * raw.jitter
    lengths = np.minimum(raw.stalls.length_s * knobs.stretch, 0.8 * knobs.longest_s)
    lengths[0] = knobs.longest_s
    first = np.searchsorted(raw.source, np.arange(raw.source[-1] + 2))
    for s, start, length in zip(raw.stalls.source, raw.stalls.start_s, lengths, strict=True):
        mine = slice(first[s], first[s + 1])
        low, high = np.searchsorted(raw.event_s[mine], [start, start + length]) + first[s]
        np.maximum(arrival[low:high], start + length, out=arrival[low:high])
    for low, high in pairwise(first):
        np.maximum.accumulate(arrival[low:high], out=arrival[low:high])
    return arrival


def _in_arrival_order(raw: _Raw, knobs: _Knobs) -> tuple[Floats, Ints]:
    arrival = _arrivals(raw, knobs)
    return arrival, np.argsort(arrival, kind="stable")


def _figures(raw: _Raw, knobs: _Knobs) -> Figures:
    _, order = _in_arrival_order(raw, knobs)
    return measure(_micros(raw.event_s[order]))


def _micros(seconds: Floats) -> Ints:
    return np.asarray(np.floor(seconds * SECOND_US), dtype=np.int64)


def _trace(raw: _Raw, knobs: _Knobs, wanted: Disorder) -> ArrivalTrace:
    arrival, order = _in_arrival_order(raw, knobs)
    return ArrivalTrace(
        event_us=_micros(raw.event_s[order]),
        arrival_us=_micros(arrival[order]) + 1,
        value=np.round(raw.value[order], 4),
        source=raw.source[order].astype(np.int32),
        sources=tuple(f"sensor{s:02d}" for s in range(wanted.sources)),
        name=wanted.name,
    )
