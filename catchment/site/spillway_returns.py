"""Will a key come again before its slice is due? Learned from the slices before.

At a few instants of each slice, spaced evenly on the logarithm of the time left, every key seen so far is put
into a cell: (instant, records so far, heat from the slices before, age of the last record relative to the
time left). When the slice is over it is known which of them came again. A cell's share of returns is the
estimate; thin cells lean on the wider ones around them, and those on the memoryless guess 1 - u^n for a key
with n records at elapsed share u.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]

INSTANTS = 44
_SPACING = 0.8  # each instant has this much of the time left of the one before
LEFT = _SPACING ** np.arange(INSTANTS)  # shares of the slice that are left at the instants
_RECORDS = np.array([1, 2, 3, 4, 6, 9, 14, 22, 40])  # the least number of records of each class
_AGES = np.array([0.1, 0.3, 1.0, 3.0, 10.0])  # bounds of the classes of age / time left
_HEATS = np.array([0.3, 1.0, 2.5])  # bounds of the classes of arrivals a slice in the slices before
_CLASSES = (len(_RECORDS), len(_HEATS) + 1, len(_AGES) + 1)

_KEEP = 0.75  # of a slice's weight when the next one is learned
_LEAN = 20.0  # keys' worth of belief in the wider cell


def instant_of(left: float) -> int:
    """The instant nearest to a share left of the slice."""
    place = np.log(max(left, LEFT[-1])) / np.log(_SPACING)
    return int(min(round(float(place)), INSTANTS - 1))


def cells_of(records: npt.NDArray[np.int64], heat: Floats, age: Floats) -> Cells:
    """The class of each key: by records so far, heat, and age over time left."""
    by_records = np.searchsorted(_RECORDS, records, "right") - 1
    by_heat = np.searchsorted(_HEATS, heat, "right")
    return (by_records * _CLASSES[1] + by_heat) * _CLASSES[2] + np.searchsorted(_AGES, age, "right")


class ReturnTable:
    """Decayed counts of keys and of returns, per instant and class, and the estimate made of them."""

    def __init__(self, resume: Mapping[str, Any] | None = None) -> None:
        shape = (INSTANTS, int(np.prod(_CLASSES)))
        self._keys = np.asarray(resume["keys"], dtype=np.float64) if resume else np.zeros(shape)
        self._returns = np.asarray(resume["returns"], dtype=np.float64) if resume else np.zeros(shape)
        self._estimate = self._estimated()

    def chance(self, cells: Cells, left: float) -> Floats:
        """The chance that keys of these classes come again when this share of the slice is left."""
        instant = instant_of(left)
        scale = min(left / LEFT[instant], 1 / _SPACING)
        return np.asarray(np.minimum(self._estimate[instant][cells] * scale, 1.0))

    def decay(self) -> None:
        self._keys *= _KEEP
        self._returns *= _KEEP

    def learn(self, instant: int, cells: Cells, returned: npt.NDArray[np.bool_]) -> None:
        size = self._keys.shape[1]
        self._keys[instant] += np.bincount(cells, minlength=size)
        self._returns[instant] += np.bincount(cells[returned], minlength=size)

    def settle(self) -> None:
        """Make the estimate of what was learned."""
        self._estimate = self._estimated()

    def dump(self) -> dict[str, Any]:
        return {"keys": self._keys.tolist(), "returns": self._returns.tolist()}

    def _estimated(self) -> Floats:
        keys = self._keys.reshape(INSTANTS, *_CLASSES)
        returns = self._returns.reshape(INSTANTS, *_CLASSES)
        guess = _memoryless()
        for axes in ((2, 3), (3,), ()):  # from all keys with so many records, to those of one heat, and of one age
            inside, came = keys.sum(axis=axes, keepdims=True), returns.sum(axis=axes, keepdims=True)
            guess = (came + _LEAN * guess) / (inside + _LEAN)
        return np.asarray(guess.reshape(INSTANTS, -1))


def _memoryless() -> Floats:
    """1 - u^n, for each instant and class of records."""
    chance = 1.0 - (1.0 - LEFT)[:, None] ** _RECORDS[None, :]
    return np.asarray(chance[:, :, None, None])
