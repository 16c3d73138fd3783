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

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from catchment.feeds.segments import starts_of, suffix_minima, suffix_sums

Floats = NDArray[np.float64]
Index = NDArray[np.int64]

BLOCK_ROWS = 1 << 18  # rows a pass works on at once: the temporaries of one block stay in the cache
KEEP_PRUNING_BELOW = 0.8  # another round of floors pays while it drops at least a fifth of the rows


@dataclass(frozen=True, eq=False)
class Curves:
    """Cost curves above the floors: one step a distinct rate, ascending within a device.

    Invariant: `cost[k]` is cost_i at t = `rate[k]` for i = `device[k]`, `inf` where a budget forbids it; the
    device's choice is `threshold[i]`, at `best[i]`.
    """

    device: Index
    rate: Floats
    cost: Floats
    threshold: Floats  # a device
    best: Floats  # a device

    def least_cost_from(self) -> Floats:
        """For each step the least cost of a threshold at or above it."""
        return suffix_minima(self.cost, self.device)


@dataclass(frozen=True, eq=False)
class Edges:
    """Rows grouped by device (ascending): own rate, and what downloading on the row would cost the device."""

    start: Index
    rate: Floats
    download_cost: Floats  # Cd * r_ji
    load: Floats | None = None

    @property
    def devices(self) -> int:
        return int(self.start.shape[0]) - 1


def cost_curves(edges: Edges, upload: Floats, capacity: Floats | None = None) -> Curves:
    """Each device's curve and choice; `capacity` bounds the load of what a device downloads on."""
    floor, kept = _floors(edges, upload)
    device = _owners(edges.start, kept)
    floor, kept, device = _raise_floors(edges, upload, floor, kept, device)
    order = np.lexsort((edges.rate[kept], device))
    kept, device = kept[order], device[order]
    return _curves(edges, upload, capacity, floor, kept, device)


def _floors(edges: Edges, upload: Floats) -> tuple[Floats, Index]:
    """A floor under each device's threshold, and the rows above the floors."""
    floor = np.zeros(edges.devices)
    kept = [np.zeros(0, dtype=np.int64)]
    for first, last in _blocks(edges.start):
        begin, end = int(edges.start[first]), int(edges.start[last])
        if begin == end:
            continue
        counts = np.diff(edges.start[first : last + 1])
        own = edges.rate[begin:end]
        free = edges.download_cost[begin:end] >= np.repeat(upload[first:last], counts) * own
        filled = np.flatnonzero(counts)
        lifts = np.where(free, own, 0.0)
        floor[first + filled] = np.maximum.reduceat(lifts, edges.start[first + filled] - begin)
        kept.append(begin + np.flatnonzero(own > np.repeat(floor[first:last], counts)))
    return floor, np.concatenate(kept)


def _blocks(start: Index) -> list[tuple[int, int]]:
    """Ranges of whole devices with about BLOCK_ROWS rows each."""
    devices = start.shape[0] - 1
    cuts = np.searchsorted(start, np.arange(BLOCK_ROWS, int(start[-1]), BLOCK_ROWS))
    bounds = np.unique(np.concatenate(([0], cuts, [devices])))
    return [(int(a), int(b)) for a, b in pairwise(bounds)]


def _owners(start: Index, rows: Index) -> Index:
    """The device of each of some ascending rows."""
    counts = np.diff(np.searchsorted(rows, start))
    return np.repeat(np.arange(counts.shape[0], dtype=np.int64), counts)


def _raise_floors(
    edges: Edges, upload: Floats, floor: Floats, kept: Index, device: Index
) -> tuple[Floats, Index, Index]:
    """Use each floor to find a higher one, for as long as that still drops many rows."""
    while kept.shape[0]:
        own = edges.rate[kept]
        free = edges.download_cost[kept] >= upload[device] * (own - floor[device])
        floor = floor.copy()
        np.maximum.at(floor, device[free], own[free])
        above = own > floor[device]
        before = kept.shape[0]
        kept, device = kept[above], device[above]
        if kept.shape[0] > KEEP_PRUNING_BELOW * before:
            break
    return floor, kept, device


def _curves(
    edges: Edges, upload: Floats, capacity: Floats | None, floor: Floats, kept: Index, device: Index
) -> Curves:
    own = edges.rate[kept]
    starts = starts_of(device)
    last_of_step = np.append((own[1:] != own[:-1]) | (device[1:] != device[:-1]), True)[: own.shape[0]]
    downloads = suffix_sums(edges.download_cost[kept], device)
    cost = upload[device] * own + _beyond(downloads, device)
    at_floor = upload * floor
    at_floor[device[starts]] += downloads[starts]
    if capacity is not None:
        load = suffix_sums(np.ones_like(own) if edges.load is None else edges.load[kept], device)
        cost[_beyond(load, device) > capacity[device]] = np.inf
        over = device[starts][load[starts] > capacity[device[starts]]]
        at_floor[over] = np.inf
    cost[~last_of_step] = np.inf
    threshold, best = _choose(own, cost, device, starts, floor, at_floor)
    return Curves(device[last_of_step], own[last_of_step], cost[last_of_step], threshold, best)


def _beyond(inclusive: Floats, device: Index) -> Floats:
    """Suffix sums that leave out their own position."""
    shifted = np.append(inclusive[1:], 0.0)[: inclusive.shape[0]]
    shifted[:-1][device[1:] != device[:-1]] = 0.0
    return shifted


def _choose(
    own: Floats, cost: Floats, device: Index, starts: Index, floor: Floats, at_floor: Floats
) -> tuple[Floats, Floats]:
    threshold, best = floor.copy(), at_floor.copy()
    if own.shape[0] == 0:
        return threshold, best
    who = device[starts]
    least = np.minimum.reduceat(cost, starts)
    tied = cost == np.repeat(least, np.diff(np.append(starts, own.shape[0])))
    largest = np.maximum.reduceat(np.where(tied, own, 0.0), starts)
    step = least <= at_floor[who]
    threshold[who[step]], best[who[step]] = largest[step], least[step]
    return threshold, best
