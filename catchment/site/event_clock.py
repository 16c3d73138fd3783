"""How event time and the clock run together: when will a slice be due?

A live stream's low mark rises a second each second; a replayed one many times faster. From the marks it has
seen, the clock knows the pace, and so how many seconds of real time a slice has left.
"""

from __future__ import annotations

from dataclasses import dataclass

from catchment.timeline import END_OF_TIME_US, SECOND_US, START_OF_TIME_US

_PACE_GAIN = 0.3  # of the newest pair of marks, in the moving average of the pace
_LEAST_PACE, _MOST_PACE = 1e-3, 1e6  # a stream that stands still, or is read from history, has no useful pace


@dataclass
class EventClock:
    """The low mark of one stream and the pace (event time per real time) at which it rises."""

    low_mark_us: int = START_OF_TIME_US
    seen_at_us: int = 0
    pace: float = 1.0
    pairs: int = 0  # of marks that the pace was told from

    def raise_to(self, low_mark_us: int, now_us: int) -> bool:
        """Take a higher mark; a lower one changes nothing. Tells whether the mark rose."""
        if low_mark_us <= self.low_mark_us:
            return False
        if self.low_mark_us > START_OF_TIME_US and low_mark_us < END_OF_TIME_US and now_us > self.seen_at_us:
            seen = (low_mark_us - self.low_mark_us) / (now_us - self.seen_at_us)
            self.pairs += 1
            gain = max(_PACE_GAIN, 1 / self.pairs)  # the first pair is all that is known
            self.pace += gain * (min(max(seen, _LEAST_PACE), _MOST_PACE) - self.pace)
        self.low_mark_us, self.seen_at_us = low_mark_us, now_us
        return True

    def mark_at(self, now_us: int) -> float:
        """Where the low mark should be by now, had it gone on rising at its pace."""
        return self.low_mark_us + self.pace * max(now_us - self.seen_at_us, 0)

    def elapsed(self, start_us: int, end_us: int, now_us: int) -> float:
        """The share of [start, end) that the mark has passed by now."""
        return min(max((self.mark_at(now_us) - start_us) / (end_us - start_us), 0.0), 1.0)

    def seconds_until(self, instant_us: int, now_us: int) -> float:
        """Real seconds until the mark passes an instant (0 when it should have passed)."""
        return max(instant_us - self.mark_at(now_us), 0.0) / self.pace / SECOND_US
