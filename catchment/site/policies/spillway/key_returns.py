"""Will a key come again before its slice is due? A model of its rate, corrected by what earlier slices saw.

The model is memoryless: a key's rate is its records in this slice and the slices before, over the time they took, and
the chance of another record is 1 - exp(-rate * time left). Real keys come in bursts and fall silent. So, at each
instant, every key seen so far is put into a cell: (instant, rate, records so far, age of the last record relative to
the time left). When the slice is over it is known which of them came again. The ratio of keys that came again to keys
that the model expected is the correction of the cell; thin cells lean on the wider ones around them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from catchment.arrays import Floats, Ints, Mask
from catchment.site.policies.spillway.instants import INSTANTS, LEFT, instant_of
from catchment.storage.codec import stored

_RATE_EDGES = np.array([0.4, 0.7, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0, 13.0, 22.0, 40.0, 80.0])  # records per slice
_RATE_CENTERS = np.array([0.3, 0.53, 0.84, 1.22, 1.82, 2.65, 4.0, 6.3, 10.0, 17.0, 30.0, 57.0, 120.0])
_RECORD_EDGES = np.array([2, 4])  # records so far
_AGE_EDGES = np.array([0.1, 0.3, 1.0, 3.0, 10.0])  # age of the last record over the time left
_CELL_SHAPE = (len(_AGE_EDGES) + 1, len(_RECORD_EDGES) + 1, len(_RATE_CENTERS))
_CELLS = int(np.prod(_CELL_SHAPE))
_MODEL = 1 - np.exp(-_RATE_CENTERS[None, None, None, :] * LEFT[:, None, None, None])  # the chance to return, by rate

_PAST_WEIGHT = 6.0  # the past rate of a key counts as much as its records in this many slices
_MIN_PAST_SLICES = 1.0  # slices without a record assumed of an unknown key: one record does not make a flood
_COUNT_DECAY = 0.85  # weight of the counts so far, per finished slice
_NEIGHBOURS = 2  # instants on either side that a cell also counts
_PRIOR_KEYS = 100.0  # the wider cell counts as much as this many keys


def estimate_rates(records: Ints, past_rates: Floats, left: float, known: float) -> Floats:
    """Return the records per slice of each key, from its records in this slice so far and its past rate.

    `known` is how much of a past rate can be known yet, from 0 (no slice is over) to 1.
    """
    past_slices = max(_PAST_WEIGHT * known, _MIN_PAST_SLICES)
    return np.asarray((_PAST_WEIGHT * past_rates + records) / (past_slices + 1 - left))


def cells_of(rates: Floats, records: Ints, age: Floats) -> Ints:
    """Return the cell of each key within an instant: by age over time left, records so far, and rate."""
    by_age = np.searchsorted(_AGE_EDGES, age, "right")
    by_records = np.searchsorted(_RECORD_EDGES, records, "right")
    by_rate = np.searchsorted(_RATE_EDGES, rates, "right")
    return (by_age * _CELL_SHAPE[1] + by_records) * _CELL_SHAPE[2] + by_rate


def _no_counts() -> Floats:
    return np.zeros((INSTANTS, _CELLS))


@stored()
@dataclass(eq=False)
class ReturnTable:
    """Decayed counts of keys and of returns, per instant and cell, and the corrections that follow from them.

    Corrections are derived when they are asked for: of many fragments most close slices without asking.
    """

    keys: Floats = field(default_factory=_no_counts)
    returns: Floats = field(default_factory=_no_counts)
    _corrections: Floats | None = field(init=False, repr=False, default=None, metadata={"stored": False})

    def chance(self, rates: Floats, cells: Ints, left: float) -> Floats:
        """Return the chance that keys of these rates and cells come again when this share of the slice is left."""
        model = 1 - np.exp(-rates * left)
        if self._corrections is None:
            self._corrections = self._derive_corrections()
        return np.asarray(np.minimum(model * self._corrections[instant_of(left)][cells], 1.0))

    def decay(self) -> None:
        """Let what was learned so far count less: another slice is over."""
        self.keys *= _COUNT_DECAY
        self.returns *= _COUNT_DECAY

    def learn(self, instant: int, cells: Ints, returned: Mask) -> None:
        """Count keys of these cells at an instant, and those of them that came again."""
        self.keys[instant] += np.bincount(cells, minlength=_CELLS)
        self.returns[instant] += np.bincount(cells[returned], minlength=_CELLS)

    def settle(self) -> None:
        """Let chances follow from what was learned by now."""
        self._corrections = None

    def _derive_corrections(self) -> Floats:
        """Return the corrections that follow from what was learned: from the whole instant down to single cells."""
        shape = (INSTANTS, *_CELL_SHAPE)
        keys = _with_neighbours(self.keys.reshape(shape))
        expected = _with_neighbours(self.keys.reshape(shape) * _MODEL)
        returns = _with_neighbours(self.returns.reshape(shape))
        correction = np.ones((INSTANTS, 1, 1, 1))
        for axes in ((1, 2, 3), (2, 3), (3,), ()):  # the instant, one age of it, one count of records, the cell
            counted = keys.sum(axis=axes, keepdims=True)
            believed = expected.sum(axis=axes, keepdims=True) / np.maximum(counted, 1e-12)
            mean = np.where(counted > 0, believed, _MODEL.mean(axis=axes, keepdims=True))
            came = returns.sum(axis=axes, keepdims=True)
            share = (came + _PRIOR_KEYS * correction * mean) / (counted + _PRIOR_KEYS)
            correction = share / np.maximum(mean, 1e-12)
        return np.asarray(correction.reshape(INSTANTS, -1))


def _with_neighbours(counts: Floats) -> Floats:
    """Return the counts of each instant with those of the instants around it, nearer ones counting more."""
    total = np.zeros_like(counts)
    for shift in range(-_NEIGHBOURS, _NEIGHBOURS + 1):
        here = slice(max(shift, 0), INSTANTS + min(shift, 0))
        there = slice(max(-shift, 0), INSTANTS + min(-shift, 0))
        total[here] += counts[there] * (1 - abs(shift) / (_NEIGHBOURS + 1))
    return total
