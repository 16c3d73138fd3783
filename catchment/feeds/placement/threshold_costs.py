"""The local step: what each device would choose for itself, and what any other choice would cost it.

Device i chooses a threshold t: it uploads at rate t and downloads on every pair with r_ij > t, for
`cost_i(t) = Cu * t + Cd * sum{r_ji : r_ij > t}` over t in {0} and {r_ij}. Ties take the largest t, which is
what makes the choices of all devices fit together when Cu <= Cd (Chandramouli et al., VLDB'13, section
3.5.2; as printed, its argmax breaks on ties). Pairs of equal rate are one step of the curve.

No device's rates are sorted whole. If Cd * r_ji >= Cu * (r_ij - t) then raising t to r_ij costs nothing, so
the best threshold is at least the largest such r_ij: a linear pass gives each device a floor, and only the
few pairs above it are sorted. The floor also holds the law in floating point: a pair above both its floors
would need fl(Cd r_ji) < fl(Cu r_ij) and fl(Cd r_ij) < fl(Cu r_ji), impossible for Cu <= Cd.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catchment.arrays import Floats, Ints
from catchment.feeds.placement.segmented_sums import starts_of, suffix_minima, suffix_sums

BLOCK_ROWS = 1 << 17  # rows that a pass works on at once: the temporaries of one block stay in the cache
WORTH_ANOTHER_PASS = 0.05  # raising the floors again pays while it drops at least this share of the rows


@dataclass(frozen=True, eq=False)
class Curves:
    """Cost curves above the floors: one step per distinct rate, ascending within a device.

    Invariant: `cost[k]` is cost_i at t = `rate[k]` for i = `device[k]`, `inf` where a budget forbids it; the
    device's choice is `threshold[i]`, at `best[i]`; `down` are the rows above their device's threshold.
    """

    device: Ints
    rate: Floats
    cost: Floats
    threshold: Floats  # per device
    best: Floats  # per device
    down: Ints

    def least_cost_from(self) -> Floats:
        """Return for each step the least cost of a threshold at or above it."""
        return suffix_minima(self.cost, self.device)


@dataclass(frozen=True, eq=False)
class Edges:
    """Rows grouped by device (ascending): own rate, and what downloading on the row would cost the device."""

    start: Ints
    rate: Floats
    peer: Floats
    download: Floats  # per device; downloading on a row costs download * peer
    load: Floats | None = None

    @property
    def devices(self) -> int:
        return int(self.start.shape[0]) - 1


def cost_curves(edges: Edges, upload: Floats, capacity: Floats | None = None) -> Curves:
    """Return each device's curve and choice; `capacity` bounds the load of what a device downloads on."""
    blocks = [_block_curves(edges, upload, capacity, first, last) for first, last in _blocks(edges.start)]
    parts = zip(*((c.device, c.rate, c.cost, c.threshold, c.best, c.down) for c in blocks), strict=True)
    return Curves(*(np.concatenate(part) for part in parts))


def _blocks(start: Ints) -> list[tuple[int, int]]:
    """Return ranges of whole devices with about BLOCK_ROWS rows each."""
    devices = start.shape[0] - 1
    cuts = np.searchsorted(start, np.arange(BLOCK_ROWS, int(start[-1]), BLOCK_ROWS))
    bounds = np.unique(np.concatenate(([0], cuts, [devices])))
    return [(int(a), int(b)) for a, b in pairwise(bounds)] or [(0, 0)]


def _block_curves(edges: Edges, upload: Floats, capacity: Floats | None, first: int, last: int) -> Curves:
    begin = int(edges.start[first])
    end = int(edges.start[last])
    device = np.repeat(np.arange(first, last), np.diff(edges.start[first : last + 1]))
    rows = _Rows(
        np.arange(begin, end),
        device,
        edges.rate[begin:end],
        edges.download[device] * edges.peer[begin:end],
        None if edges.load is None or capacity is None else edges.load[begin:end],
    )
    floor, rows = _raise_floors(rows, upload, first, last)
    rows = rows.take(np.lexsort((rows.rate, rows.device)))
    curve = _curves(rows, upload, capacity, floor, first, last)
    down = np.sort(rows.row[rows.rate > curve.threshold[rows.device - first]])
    return replace(curve, down=down)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a block, those of a device together."""

    row: Ints
    device: Ints
    rate: Floats
    download_cost: Floats
    load: Floats | None

    def take(self, which: NDArray[Any]) -> _Rows:
        load = None if self.load is None else self.load[which]
        return _Rows(self.row[which], self.device[which], self.rate[which], self.download_cost[which], load)


def _raise_floors(rows: _Rows, upload: Floats, first: int, last: int) -> tuple[Floats, _Rows]:
    """Return a floor under each threshold, raised with its own help as long as that pays; and the rows above."""
    floor = np.zeros(last - first)
    while rows.rate.shape[0]:
        at = rows.device - first
        free = rows.download_cost >= upload[rows.device] * (rows.rate - floor[at])
        starts = starts_of(rows.device)
        lifts = np.maximum.reduceat(np.where(free, rows.rate, 0.0), starts)
        floor[at[starts]] = np.maximum(floor[at[starts]], lifts)
        above = np.flatnonzero(rows.rate > floor[at])
        before = rows.rate.shape[0]
        rows = rows.take(above)
        if rows.rate.shape[0] > (1 - WORTH_ANOTHER_PASS) * before:
            break
    return floor, rows


def _curves(rows: _Rows, upload: Floats, capacity: Floats | None, floor: Floats, first: int, last: int) -> Curves:
    own = rows.rate
    device = rows.device
    starts = starts_of(device)
    who = device[starts]
    downloads = suffix_sums(rows.download_cost, device)
    cost = upload[device] * own + _beyond(downloads, device)
    at_floor = upload[first:last] * floor
    at_floor[who - first] += downloads[starts]
    if capacity is not None:
        load = suffix_sums(np.ones_like(own) if rows.load is None else rows.load, device)
        cost[_beyond(load, device) > capacity[device]] = np.inf
        at_floor[(who - first)[load[starts] > capacity[who]]] = np.inf
    step = _ends_of_steps(own, device)
    curve = Curves(device[step], own[step], cost[step], floor, at_floor, down=rows.row[:0])
    return _choose(curve, first)


def _ends_of_steps(own: Floats, device: Ints) -> Ints:
    """Return the last row of each run of equal rates of one device: only there is the curve's sum complete."""
    follows = (own[1:] != own[:-1]) | (device[1:] != device[:-1])
    return np.flatnonzero(np.append(follows, True)[: own.shape[0]])


def _beyond(inclusive: Floats, device: Ints) -> Floats:
    """Return suffix sums that leave out their own position."""
    shifted = np.append(inclusive[1:], 0.0)[: inclusive.shape[0]]
    shifted[:-1][device[1:] != device[:-1]] = 0.0
    return shifted


def _choose(curve: Curves, first: int) -> Curves:
    """Return the same curve with each device at its least cost in place of its floor, ties at the largest rate."""
    if curve.rate.shape[0] == 0:
        return curve
    starts = starts_of(curve.device)
    who = curve.device[starts] - first
    least = np.minimum.reduceat(curve.cost, starts)
    tied = curve.cost == np.repeat(least, np.diff(np.append(starts, curve.rate.shape[0])))
    largest = np.maximum.reduceat(np.where(tied, curve.rate, 0.0), starts)
    above = least <= curve.best[who]
    curve.threshold[who[above]] = largest[above]
    curve.best[who[above]] = least[above]
    return curve
