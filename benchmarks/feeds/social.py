"""Social graphs and demand rates for the placement benchmarks.

The graph is the real one of SNAP (ego-Facebook) or a random one with given numbers of friends. Rates are drawn as
by Chandramouli et al. (VLDB'13, section 5.2): every device's feed has rate 1, and a friend demands of it a share drawn
from the probabilities of meeting in real trajectories. Theirs were 167 people of GeoLife and 100 m; these are 842
aircraft over Switzerland and the distance that they fly in the time in which GeoLife's people, at their mean of
20.8 km/h, move 100 m. The probability of meeting is the share of the trace in which two were that near, for each two
that ever were.
"""

from __future__ import annotations

import csv

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import open_text

MEETING_KM = 4.0  # 17.3 s at the aircrafts' mean ground speed of 449 knots
KM_PER_DEGREE = 111.2

Pairs = NDArray[np.int64]  # one row a pair


def facebook() -> tuple[int, Pairs]:
    """Users and friend pairs of the ego-Facebook graph."""
    with open_text("facebook") as lines:
        pairs = np.loadtxt(lines, dtype=np.int64)
    return int(pairs.max()) + 1, np.sort(pairs, axis=1)


def meeting_probabilities() -> NDArray[np.float64]:
    """For each two aircraft that met, the share of the trace in which they were near, ascending."""
    craft: dict[str, int] = {}
    moments: dict[str, list[tuple[int, float, float]]] = {}
    with open_text("aircraft") as lines:
        for row in csv.DictReader(lines):
            who = craft.setdefault(row["icao24"], len(craft))
            moments.setdefault(row["timestamp"], []).append((who, float(row["latitude"]), float(row["longitude"])))
    near = np.zeros((len(craft), len(craft)), dtype=np.int64)
    for seen in moments.values():
        who, latitude, longitude = np.asarray(seen).T
        north = np.subtract.outer(latitude, latitude)
        east = np.subtract.outer(longitude, longitude) * np.cos(np.radians(latitude.mean()))
        near[np.ix_(who.astype(int), who.astype(int))] += np.hypot(north, east) * KM_PER_DEGREE < MEETING_KM
    met = np.triu(near, 1)
    return np.sort(met[met > 0] / len(moments))


def random_graph(rng: np.random.Generator, wanted: NDArray[np.float64], pairs: int) -> Pairs:
    """Distinct pairs, each end chosen in proportion to the number of friends that it wants."""
    users = wanted.shape[0]
    ladder = np.cumsum(wanted / wanted.sum())
    keys = np.zeros(0, dtype=np.int64)
    while keys.shape[0] < pairs:
        more = int(1.1 * (pairs - keys.shape[0])) + 1000
        a, b = (np.minimum(np.searchsorted(ladder, rng.random(more)), users - 1) for _ in range(2))
        fresh = (np.minimum(a, b) * users + np.maximum(a, b))[a != b]
        keys = np.unique(np.concatenate((keys, fresh)))
    chosen = rng.permutation(keys)[:pairs]
    return np.stack((chosen // users, chosen % users), axis=1)


def zipf(rng: np.random.Generator, exponent: float, highest: int, count: int) -> NDArray[np.float64]:
    """Whole numbers from 1 to the highest, by Zipf's law."""
    values = np.arange(1, highest + 1)
    weight = values.astype(float) ** -exponent
    return rng.choice(values, count, p=weight / weight.sum()).astype(np.float64)


def pareto(rng: np.random.Generator, exponent: float, decades: int, count: int) -> NDArray[np.float64]:
    """Rates up to 1 with a heavy tail over some decades."""
    return np.minimum(1.0, 10.0**-decades * (1.0 + rng.pareto(exponent, count)))


def both_ways(
    rng: np.random.Generator, pairs: Pairs, rates: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Demand rows in random order, a rate for each direction."""
    rows = np.concatenate((pairs, pairs[:, ::-1])).astype(np.int32)
    order = rng.permutation(rows.shape[0])
    return rows[order, 0], rows[order, 1], rates[order]
