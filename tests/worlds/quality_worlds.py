"""Populations to sample from, and what sampling them many times over gives: the oracle of the quality tests.

Nothing here uses the inequalities under test: a world is an array of values, a trial is one coin per record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catchment.quality.populations import Population, SampledPart

Floats = NDArray[np.float64]

WORLDS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda r, n: r.normal(10, 3, n),
    "uniform": lambda r, n: r.uniform(0, 1, n),
    "lognormal": lambda r, n: r.lognormal(0, 1.5, n),
    "pareto 1.5": lambda r, n: r.pareto(1.5, n) + 1,
    "pareto 1.1": lambda r, n: r.pareto(1.1, n) + 1,
    "bimodal": lambda r, n: np.where(r.random(n) < 0.5, 1, 100) + r.normal(0, 1, n),
    "mostly zeros": lambda r, n: np.where(r.random(n) < 0.95, 0, r.exponential(10, n)),
    "both signs": lambda r, n: r.normal(2, 10, n),
    "all negative": lambda r, n: -r.lognormal(0, 1, n),
    "constant": lambda r, n: np.full(n, 7.0),
    "small integers": lambda r, n: r.integers(0, 4, n).astype(float),
    "one huge": lambda r, n: np.r_[np.full(n - 1, 1.0), 1000.0],
}


def population(values: Floats, ranged: bool) -> Population:
    """What is known of a world; with its range of values or without."""
    spread = float(values.std())
    kurtosis = float(np.mean((values - values.mean()) ** 4) / spread**4) if spread > 1e-12 else None
    limits = (float(values.min()), float(values.max())) if ranged else None
    mean = float(values.mean()) if limits is None else float(np.clip(values.mean(), *limits))
    return Population(len(values), mean, spread, limits, None if ranged else kurtosis)


@dataclass(frozen=True)
class Trials:
    """Many samplings of the same records: `kept[t, i]` says whether trial t kept record i."""

    values: Floats
    rates: Floats
    kept: NDArray[np.bool_]

    @classmethod
    def draw(cls, rng: np.random.Generator, values: Floats, rates: Floats | float, trials: int) -> Trials:
        each = np.broadcast_to(np.asarray(rates, dtype=float), values.shape)
        return cls(values, each, rng.random((trials, len(values))) < each)

    @property
    def weights(self) -> Floats:
        return np.asarray(self.kept / self.rates)

    def answers(self, aggregate: str) -> Floats:
        """The scaled answer of every trial; NaN where nothing was kept."""
        weights = self.weights
        with np.errstate(divide="ignore", invalid="ignore"):
            if aggregate == "count":
                return np.asarray(weights.sum(1))
            if aggregate == "sum":
                return np.asarray(weights @ self.values)
            mean = weights @ self.values / weights.sum(1)
            if aggregate == "avg":
                return np.asarray(mean)
            variance = (weights * (self.values - mean[:, None]) ** 2).sum(1) / weights.sum(1)
            return np.asarray(variance if aggregate == "variance" else np.sqrt(variance))

    def truth(self, aggregate: str) -> float:
        x = self.values
        answers = {"count": len(x), "sum": x.sum(), "avg": x.mean(), "variance": x.var(), "stddev": x.std()}
        return float(answers[aggregate])

    def misses(self, aggregate: str, half_width: Floats | float, answers: Floats | None = None) -> float:
        """The share of trials whose answer is off by more than the half width (and a rounding error)."""
        truth = self.truth(aggregate)
        slack = 1e-9 * (abs(truth) + float(np.abs(self.values).max()))
        found = self.answers(aggregate) if answers is None else answers
        return float(np.mean(~(np.abs(found - truth) <= np.asarray(half_width) + slack)))

    def rank_errors(self, q: float) -> Floats:
        """How far, in share of records, the weighted q-quantile of each trial lies from the true one."""
        order = np.argsort(self.values, kind="stable")
        ranked, weights = self.values[order], self.weights[:, order]
        share = np.cumsum(weights, axis=1) / np.maximum(weights.sum(1, keepdims=True), 1e-300)
        picked = ranked[np.argmax(share >= q - 1e-12, axis=1)]
        below = np.searchsorted(ranked, picked, side="left") / len(ranked)
        upto = np.searchsorted(ranked, picked, side="right") / len(ranked)
        errors = np.maximum(np.maximum(below - q, q - upto), 0.0)
        return np.where(self.kept.any(1), errors, 1.0)


def parts_of(values: list[Floats], rates: list[float], ranged: bool) -> list[SampledPart]:
    """One part per site."""
    return [SampledPart(population(v, ranged), r) for v, r in zip(values, rates, strict=True)]
