"""The room of an outbox: how much of what may leave the cache it takes now.

Rows are counted as they are before they are compressed. So what a commit adds to an outbox is no more than the room
that it had, and the next commit, which sees how much is left, sends more. That needs no guess at what rows will cost on
the wire: a guess that is too low is what a bound must not rest on.

Where not all of the cache fits, updates wait until there is room for more than a few. Otherwise every segment that is
acknowledged would be followed by a smaller one, because of what is lost by rounding, until each has one update in it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from catchment.arrays import Ints
from catchment.site.slot_table import Slots

COUNT_BYTES = 19  # of a slice and its count of records in the header of a segment, at most
LEAST_ROOM = 1 / 3  # of what is queued: a quarter of the outbox

Fits = Callable[[Slots], int]  # how many of these slots, from the first on, may leave


class Room:
    """What an outbox takes of one commit: updates as long as they fit; if it is empty, the first one in any case.

    An update that is larger than the whole outbox would wait for ever otherwise.
    """

    def __init__(self, room_bytes: float, *, is_of_empty: bool = False) -> None:
        self._left_bytes = room_bytes
        self._takes_any = is_of_empty
        self.is_short = False  # whether something had to stay

    def for_updates(self, sizes: Ints) -> Fits:
        """Return what says how many slots, whose updates have these sizes, may leave, and takes their bytes off."""
        return lambda slots: self._take(sizes[slots])

    def _take(self, sizes: Ints) -> int:
        """Take off the updates of one slice that fit; return how many these are."""
        reached = COUNT_BYTES + np.cumsum(sizes)
        fitting = int(np.searchsorted(reached, self._left_bytes, side="right"))
        if self._takes_any and len(sizes):
            fitting = max(fitting, 1)
            self._takes_any = False
        if fitting:
            self._left_bytes -= int(reached[fitting - 1])
        self.is_short |= fitting < len(sizes)
        return fitting
