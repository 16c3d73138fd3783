"""How event time and the clock run together: when will a slice be due?

The low mark of a live stream rises a second per second; that of a replayed one many times faster. From the marks it has
seen, the clock knows the pace, and so how many seconds of real time a slice has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from catchment.site.ewma import move_average
from catchment.storage.codec import stored
from catchment.timeline import END_OF_TIME_US, SECOND_US, START_OF_TIME_US

_PACE_GAIN = 0.3  # share of the newest pair of marks in the moving average of the pace
_MIN_PACE = 1e-3  # a stream that stands still has no useful pace
_MAX_PACE = 1e6  # a stream that is read from history has none either


def _add_end(fields: dict[str, Any]) -> dict[str, Any]:
    """Make the fields of version 3: of a stream that is over, the mark says so."""
    is_over = fields["low_mark_us"] >= END_OF_TIME_US
    return fields | {"ended_us": END_OF_TIME_US if is_over else START_OF_TIME_US}


@stored(version=3, migrations={1: dict, 2: _add_end})  # version 2 has read_us, version 3 ended_us
@dataclass
class EventClock:
    """The low mark of one stream and the pace (event time per real time) at which it rises."""

    low_mark_us: int = START_OF_TIME_US
    seen_at_us: int = 0
    pace: float = 1.0
    pairs: int = 0  # pairs of marks that the pace was measured from
    read_us: int | None = None  # the newest event time that was read, if it is known
    ended_us: int = START_OF_TIME_US  # nothing before it is waited for: the stream was read to its end

    def raise_to(self, low_mark_us: int, now_us: int) -> None:
        """Take a higher mark; a lower one changes nothing."""
        if low_mark_us <= self.low_mark_us:
            return
        if self.low_mark_us > START_OF_TIME_US and low_mark_us < END_OF_TIME_US and now_us > self.seen_at_us:
            seen_pace = (low_mark_us - self.low_mark_us) / (now_us - self.seen_at_us)
            self.pairs += 1
            gain = max(_PACE_GAIN, 1 / self.pairs)  # the first pair is all that is known
            self.pace = move_average(self.pace, min(max(seen_pace, _MIN_PACE), _MAX_PACE), gain)
        self.low_mark_us = low_mark_us
        self.seen_at_us = now_us

    def note_read(self, read_us: int | None) -> None:
        """Remember how far the stream has been read; less than that changes nothing."""
        if read_us is not None:
            self.read_us = read_us if self.read_us is None else max(self.read_us, read_us)

    def end(self, mark_us: int) -> None:
        """Note that the stream is over, or was read to its end."""
        self.ended_us = max(self.ended_us, mark_us)

    def mark_at(self, now_us: int) -> float:
        """Return where the low mark should be by now, had it gone on rising at its pace."""
        return self.low_mark_us + self.pace * max(now_us - self.seen_at_us, 0)

    def elapsed(self, start_us: int, end_us: int, now_us: int) -> float:
        """Return the share of [start, end) that the mark has passed by now."""
        return min(max((self.mark_at(now_us) - start_us) / (end_us - start_us), 0.0), 1.0)

    def seconds_until(self, instant_us: int, now_us: int) -> float:
        """Return the real seconds until the mark passes an instant; 0 when it should have passed."""
        return max(instant_us - self.mark_at(now_us), 0.0) / self.pace / SECOND_US
