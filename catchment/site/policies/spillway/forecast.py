"""What the spillway expects of an open slice: which keys will return, and how many new ones will come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from catchment.arrays import Floats, Ints
from catchment.site.policies.base import Moment, SliceView
from catchment.site.policies.key_rates import KEY_RATE_DECAY
from catchment.site.policies.spillway.instants import instant_of
from catchment.site.policies.spillway.key_returns import ReturnTable, cells_of, estimate_rates
from catchment.site.policies.spillway.new_keys import NewKeyForecast, NewKeyRate
from catchment.site.slot_table import Slots
from catchment.storage.codec import stored

_MAX_SAMPLED_KEYS = 2048  # keys of a slice that are followed for learning, evenly chosen: enough for shares


@dataclass(frozen=True, slots=True)
class SliceForecast:
    """For each slot of the slice, the chance that it has another record; and how many new keys are to come."""

    slots: Slots
    chance: Floats
    new_keys: float


class Forecaster(Protocol):
    """Forecasts open slices, and learns when one is over."""

    def forecast(self, view: SliceView, moment: Moment) -> SliceForecast: ...

    def close(self, view: SliceView, moment: Moment) -> None: ...


@stored()
@dataclass(eq=False)
class KeySample:
    """The cells of the keys of an open slice at one time: of every `stride`-th of the `seen` ones.

    Slots of a slice keep their order, so that is enough to find the keys again when the slice is over.
    """

    at_us: int
    seen: int
    stride: int
    cells: npt.NDArray[np.uint16]


@stored()
@dataclass
class FollowedSlice:
    """What is followed in one open slice: the rate of new keys, and a sample of its keys at each instant so far."""

    new_key_rate: NewKeyRate = field(default_factory=NewKeyRate)
    samples: dict[int, KeySample] = field(default_factory=dict)  # by instant
    forgotten: int = 0  # `SlotTable.forgotten` when the samples were taken: when it grows they are void


@stored()
@dataclass
class LearnedForecaster:
    """Learns from the slices that are over."""

    finished_slices: int = 0
    returns: ReturnTable = field(default_factory=ReturnTable)
    new_keys: NewKeyForecast = field(default_factory=NewKeyForecast)
    open_slices: dict[int, FollowedSlice] = field(default_factory=dict)  # by start

    def forecast(self, view: SliceView, moment: Moment) -> SliceForecast:
        table = view.slot_table
        slots = view.slots()
        left = moment.left
        records = table.arrivals[slots]
        rates = estimate_rates(records, table.past_rate[slots], left, 1 - KEY_RATE_DECAY**self.finished_slices)
        age = (moment.now_us - table.last_us[slots]) / max(moment.left_s * 1e6, 1.0)
        cells = cells_of(rates, records, age)
        followed = self._follow(view)
        followed.samples[instant_of(left)] = _sample(cells, moment.now_us)
        new_key_rate = followed.new_key_rate.follow(len(slots), 1 - left)
        new_keys = self.new_keys.to_come(len(slots), left, new_key_rate)
        return SliceForecast(slots, self.returns.chance(rates, cells, left), new_keys)

    def close(self, view: SliceView, moment: Moment) -> None:
        followed = self._follow(view)
        slots = view.slots()
        self.finished_slices += 1
        del self.open_slices[view.start_us]
        if len(slots):
            self._learn_returns(followed, view.slot_table.last_us[slots])
            self.new_keys.learn((moment.now_us - view.slot_table.first_us[slots]) / (moment.span_s * 1e6))

    def _follow(self, view: SliceView) -> FollowedSlice:
        followed = self.open_slices.setdefault(view.start_us, FollowedSlice())
        if followed.forgotten != view.slot_table.forgotten:
            followed.samples = {}
            followed.forgotten = view.slot_table.forgotten
        return followed

    def _learn_returns(self, followed: FollowedSlice, last_us: Ints) -> None:
        self.returns.decay()
        for instant, sample in followed.samples.items():
            returned = last_us[: sample.seen : sample.stride] > sample.at_us
            self.returns.learn(instant, sample.cells.astype(np.int64), returned)
        self.returns.settle()


def _sample(cells: Ints, now_us: int) -> KeySample:
    stride = -(-len(cells) // _MAX_SAMPLED_KEYS)
    return KeySample(now_us, len(cells), stride, cells[::stride].astype(np.uint16))
