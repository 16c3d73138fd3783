"""What the spillway expects of an open slice: which keys will return, and how many new ones will come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from catchment.site.packed import pack_small, unpack_small
from catchment.site.policies.base import Moment, SliceView
from catchment.site.policies.key_rates import HEAT_KEEP
from catchment.site.policies.spillway.key_returns import Cells, Floats, ReturnTable, cells_of, instant_of, rates_of
from catchment.site.policies.spillway.new_keys import NewKeyForecast, NewKeyRate
from catchment.site.slot_table import Slots

_MOST_SAMPLED = 2048  # keys of a slice that are followed for learning, evenly chosen: enough for shares


@dataclass(frozen=True, slots=True)
class SliceForecast:
    """For each slot of the slice, the chance that it has another record; and how many new keys are to come."""

    slots: Slots
    chance: Floats
    new_keys: float


class Forecast(Protocol):
    """Gives an forecast, and learns when a slice is over."""

    def look(self, view: SliceView, moment: Moment) -> SliceForecast: ...

    def close(self, view: SliceView, moment: Moment) -> None: ...

    def dump(self) -> dict[str, Any]: ...


@dataclass
class _Course:
    """What is followed in one open slice: the rate of new keys, and at each instant so far the classes of its
    keys.

    A sample is (time, keys seen, stride, classes of every stride-th of them); slots of a slice keep their
    order, so that is enough to find them again, unless the cache has forgotten some (`forgotten` counts
    that): then samples are void.
    """

    recent: NewKeyRate = field(default_factory=NewKeyRate)
    forgotten: int = 0
    samples: dict[int, tuple[int, int, int, Cells]] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        samples = {
            str(i): [at_us, seen, stride, pack_small(cells)] for i, (at_us, seen, stride, cells) in self.samples.items()
        }
        return {"recent": asdict(self.recent), "forgotten": self.forgotten, "samples": samples}

    @classmethod
    def load(cls, dump: Mapping[str, Any]) -> _Course:
        samples = {
            int(i): (at_us, seen, stride, unpack_small(cells))
            for i, (at_us, seen, stride, cells) in dump["samples"].items()
        }
        return cls(NewKeyRate(**dump["recent"]), dump["forgotten"], samples)


class LearnedForecast:
    """Learns from the slices that are over."""

    def __init__(self, resume: Mapping[str, Any]) -> None:
        self._slices = int(resume.get("slices", 0))
        self._returns = ReturnTable(resume.get("returns"))
        self._inflow = NewKeyForecast(resume.get("inflow"))
        self._courses = {int(s): _Course.load(c) for s, c in resume.get("courses", {}).items()}

    def look(self, view: SliceView, moment: Moment) -> SliceForecast:
        slots = view.slots()
        left = min(moment.left_s / moment.span_s, 1.0)
        records = view.slot_table.arrivals[slots]
        rates = rates_of(records, view.slot_table.heat[slots], left, 1 - HEAT_KEEP**self._slices)
        age = (moment.now_us - view.slot_table.last_us[slots]) / max(moment.left_s * 1e6, 1.0)
        cells = cells_of(rates, records, age)
        course = self._course(view)
        stride = -(-len(slots) // _MOST_SAMPLED)
        course.samples[instant_of(left)] = (moment.now_us, len(slots), stride, cells[::stride])
        recent = course.recent.follow(len(slots), 1 - left)
        new_keys = self._inflow.to_come(len(slots), left, recent)
        return SliceForecast(slots, self._returns.chance(rates, cells, left), new_keys)

    def close(self, view: SliceView, moment: Moment) -> None:
        course, slots = self._course(view), view.slots()
        self._slices += 1
        del self._courses[view.start_us]
        if len(slots):
            self._learn_returns(course, view.slot_table.last_us[slots])
            self._inflow.learn((moment.now_us - view.slot_table.first_us[slots]) / (moment.span_s * 1e6))

    def dump(self) -> dict[str, Any]:
        courses = {str(s): c.dump() for s, c in self._courses.items()}
        told = {"slices": self._slices, "returns": self._returns.dump(), "inflow": self._inflow.dump()}
        return {**told, "courses": courses}

    def _course(self, view: SliceView) -> _Course:
        course = self._courses.setdefault(view.start_us, _Course())
        if course.forgotten != view.slot_table.forgotten:
            course.samples, course.forgotten = {}, view.slot_table.forgotten
        return course

    def _learn_returns(self, course: _Course, last_us: npt.NDArray[np.int64]) -> None:
        self._returns.decay()
        for instant, (at_us, seen, stride, cells) in course.samples.items():
            self._returns.learn(instant, cells, last_us[:seen:stride] > at_us)
        self._returns.settle()
