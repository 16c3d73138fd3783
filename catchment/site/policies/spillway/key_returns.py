"""Will a key come again before its slice is due? A model of its rate, corrected by what the slices before saw.

The model is memoryless: a key's rate is its records in this slice and the slices before over the time they
took, and the chance of another record is 1 - exp(-rate * time left). Real keys come in bursts and fall
silent; so, at a few instants of each slice, spaced evenly on the logarithm of the time left, every key seen so
far is put into a cell: (instant, rate, records so far, age of the last record relative to the time left). When
the slice is over it is known which of them came again. How many times more or fewer came than the model said
is the correction of the cell; thin cells lean on the wider ones around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.site.packed import pack_floats, unpack_floats

Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]

INSTANTS = 44
_SPACING = 0.8  # each instant has this much of the time left of the one before
LEFT = _SPACING ** np.arange(INSTANTS)  # shares of the slice that are left at the instants
_RATES = np.array([0.4, 0.7, 1.0, 1.5, 2.2, 3.2, 5.0, 8.0, 13.0, 22.0, 40.0, 80.0])  # bounds, records a slice
_CENTERS = np.array([0.3, 0.53, 0.84, 1.22, 1.82, 2.65, 4.0, 6.3, 10.0, 17.0, 30.0, 57.0, 120.0])
_RECORDS = np.array([2, 4])  # bounds of the classes of records so far
_AGES = np.array([0.1, 0.3, 1.0, 3.0, 10.0])  # bounds of the classes of age / time left
_CLASSES = (len(_AGES) + 1, len(_RECORDS) + 1, len(_CENTERS))

_PAST = 6.0  # slices' worth of belief in the heat of a key, against one slice of its records
_SILENCE = 1.0  # slices without a record that are believed of a key of which nothing is known: one is no flood
_KEEP = 0.85  # of a slice's weight when the next one is learned
_REACH = 2  # instants to either side that a cell also counts
_LEAN = 100.0  # keys' worth of belief in the wider cell


def instant_of(left: float) -> int:
    """The instant nearest to a share left of the slice."""
    place = np.log(max(left, LEFT[-1])) / np.log(_SPACING)
    return int(min(round(float(place)), INSTANTS - 1))


def rates_of(records: npt.NDArray[np.int64], heat: Floats, left: float, known: float) -> Floats:
    """Records a slice of each key, from those of this slice so far and its heat, of which so much is known
    yet."""
    return np.asarray((_PAST * heat + records) / (max(_PAST * known, _SILENCE) + 1 - left))


def cells_of(rates: Floats, records: npt.NDArray[np.int64], age: Floats) -> Cells:
    """The class of each key: by age over time left, records so far, and rate."""
    by_age = np.searchsorted(_AGES, age, "right")
    by_records = np.searchsorted(_RECORDS, records, "right")
    return (by_age * _CLASSES[1] + by_records) * _CLASSES[2] + np.searchsorted(_RATES, rates, "right")


class ReturnTable:
    """Decayed counts of keys and of returns, per instant and class, and the corrections made of them."""

    def __init__(self, resume: Mapping[str, Any] | None = None) -> None:
        shape = (INSTANTS, int(np.prod(_CLASSES)))
        self._keys = unpack_floats(resume["keys"]).reshape(shape) if resume else np.zeros(shape)
        self._returns = unpack_floats(resume["returns"]).reshape(shape) if resume else np.zeros(shape)
        self._correction = self._corrections()

    def chance(self, rates: Floats, cells: Cells, left: float) -> Floats:
        """The chance that keys of these rates and classes come again when this share of the slice is left."""
        model = 1 - np.exp(-rates * left)
        return np.asarray(np.minimum(model * self._correction[instant_of(left)][cells], 1.0))

    def decay(self) -> None:
        self._keys *= _KEEP
        self._returns *= _KEEP

    def learn(self, instant: int, cells: Cells, returned: npt.NDArray[np.bool_]) -> None:
        size = self._keys.shape[1]
        self._keys[instant] += np.bincount(cells, minlength=size)
        self._returns[instant] += np.bincount(cells[returned], minlength=size)

    def settle(self) -> None:
        """Make the corrections of what was learned."""
        self._correction = self._corrections()

    def dump(self) -> dict[str, Any]:
        return {"keys": pack_floats(self._keys), "returns": pack_floats(self._returns)}

    def _corrections(self) -> Floats:
        """Returns over what the model said, from the whole instant down to single cells."""
        keys, came = (a.reshape(INSTANTS, *_CLASSES) for a in (self._keys, self._returns))
        model = 1 - np.exp(-_CENTERS[None, None, None, :] * LEFT[:, None, None, None])
        said = keys * model
        keys, said, came = (_with_neighbours(a) for a in (keys, said, came))
        correction = np.ones((INSTANTS, 1, 1, 1))
        for axes in ((1, 2, 3), (2, 3), (3,), ()):  # the instant, one age of it, one count of records, the cell
            inside, wanted, found = (a.sum(axis=axes, keepdims=True) for a in (keys, said, came))
            mean = np.where(inside > 0, wanted / np.maximum(inside, 1e-12), model.mean(axis=axes, keepdims=True))
            share = (found + _LEAN * correction * mean) / (inside + _LEAN)
            correction = share / np.maximum(mean, 1e-12)
        return np.asarray(correction.reshape(INSTANTS, -1))


def _with_neighbours(counts: Floats) -> Floats:
    """Counts of each instant with those of the instants around it, nearer ones counting more."""
    out = np.zeros_like(counts)
    for shift in range(-_REACH, _REACH + 1):
        here, there = slice(max(shift, 0), INSTANTS + min(shift, 0)), slice(max(-shift, 0), INSTANTS + min(-shift, 0))
        out[here] += counts[there] * (1 - abs(shift) / (_REACH + 1))
    return out
