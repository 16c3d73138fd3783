"""What a size policy remembers of the last finished slice: how often and when its keys came.

Times are positions in the slice, 0 at its start and 1 when it is due, so that slices of any pace compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from catchment.site.policies.base import Moment, SliceView

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SliceHistory:
    """Arrivals per key as (value, how many keys), and the sorted positions of first and last arrivals."""

    arrivals: Floats
    keys: Floats
    first: Floats
    last: Floats

    @classmethod
    def of(cls, view: SliceView, moment: Moment) -> SliceHistory | None:
        """What a slice that is over was like (None if nothing came)."""
        slots = view.slots()
        if not len(slots):
            return None
        arrivals, keys = np.unique(view.slot_table.arrivals[slots], return_counts=True)
        span_us = moment.span_s * 1e6
        first = 1 - (moment.now_us - view.slot_table.first_us[slots]) / span_us
        last = 1 - (moment.now_us - view.slot_table.last_us[slots]) / span_us
        return cls(arrivals.astype(np.float64), keys.astype(np.float64), np.sort(first), np.sort(last))

    @property
    def distinct(self) -> float:
        return float(self.keys.sum())

    @property
    def mean_arrivals(self) -> float:
        return float((self.arrivals * self.keys).sum()) / self.distinct

    def dump(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("arrivals", "keys", "first", "last")}

    @classmethod
    def load(cls, dump: Mapping[str, Any] | None) -> SliceHistory | None:
        return cls(**{name: np.asarray(v, dtype=np.float64) for name, v in dump.items()}) if dump else None
