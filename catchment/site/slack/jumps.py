"""How far event time may jump: a record from the future moves no clock, several sources together do.

Beyond the longest wait ahead of the front, event time is believed as far as several sources have come. Where there is
no front to go by, in a first micro-batch or after a long silence, what lies beyond a long gap is believed if it is of
several sources, or of as many that are wholly there as there are wholly before it; not if it is a few stray records.
Invariant: no source alone moves a front that there is by more than the longest wait.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from catchment.site.slack.batch import Batch, Ints

JUMPING = 0.1  # of the sources, how many must have jumped for a jump to be believed; two at least, if there are two


class Jumps:
    """Which sources are ahead of what is believed, and how far; at most one entry a source."""

    def __init__(self, max_wait_us: int) -> None:
        self._wait_us = max_wait_us
        self._ahead: dict[int, int] = {}  # row of a source -> its newest event time that was not believed yet

    def believed_us(self, rows: Ints, batch: Batch, far_us: int, sources: int, lonely: bool) -> int:
        """Up to where a batch is believed that goes beyond `far_us`; `lonely`: there is no front to go by."""
        need = ceil(min(max(JUMPING * sources, 2), sources))
        beyond = batch.newest_us > far_us
        for row, newest in zip(rows[beyond].tolist(), batch.newest_us[beyond].tolist(), strict=True):
            self._ahead[row] = max(self._ahead.get(row, newest), newest)
        if lonely:
            believed = self._highest_us(rows, batch, need)
        elif len(self._ahead) < need:
            return far_us
        else:
            believed = sorted(self._ahead.values())[-need] + self._wait_us
        self._ahead = {row: newest for row, newest in self._ahead.items() if newest > believed}
        return believed

    def _highest_us(self, rows: Ints, batch: Batch, need: int) -> int:
        """The newest event time below which no long gap is crossed by a few stray records."""
        order = np.argsort(batch.oldest_us, kind="stable")
        reach = np.maximum.accumulate(batch.newest_us[order])
        gaps = np.flatnonzero(batch.oldest_us[order][1:] - reach[:-1] > self._wait_us) + 1
        for first in reversed(gaps.tolist()):
            above, below = set(rows[order[first:]].tolist()), set(rows[order[:first]].tolist())
            if len(above) >= need or len(above - below) >= len(below - above) > 0:
                break
            reach = reach[:first]
        return int(reach[-1])

    def snapshot(self) -> list[list[int]]:
        return [list(item) for item in sorted(self._ahead.items())]

    def restore(self, state: list[Any]) -> None:
        self._ahead = dict(state)
