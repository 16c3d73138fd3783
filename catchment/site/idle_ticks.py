"""How soon a site asks its policy again, where nothing comes and nothing leaves.

Every question is an entry of the journal, and a sync of the disk. Most policies let go of what they hold when records
or acknowledgements come, and some as time passes: so the question is asked again, but less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.timeline import SECOND_US, START_OF_TIME_US, Clock

MAX_WAIT_US = SECOND_US
FIRST_WAIT_US = SECOND_US // 4


@dataclass
class IdleTicks:
    """When the next tick of a site is due whose cache holds something; the wait doubles while ticks lead to nothing."""

    clock: Clock
    _wait_us: int = field(default=0, init=False)
    _next_us: int = field(default=START_OF_TIME_US, init=False)
    _acked: int = field(default=0, init=False)

    def is_due(self) -> bool:
        """Return whether the policy is to be asked now."""
        return self.clock.now_us() >= self._next_us

    def note(self, has_left: bool) -> None:
        """Note whether something left at a tick."""
        if has_left:
            self.reset()
            return
        self._wait_us = min(max(2 * self._wait_us, FIRST_WAIT_US), MAX_WAIT_US)
        self._next_us = self.clock.now_us() + self._wait_us

    def note_acked(self, lowest_unacked: int) -> None:
        """Note up to where the link has taken what left; where that has changed it may take more."""
        if lowest_unacked != self._acked:
            self._acked = lowest_unacked
            self.reset()

    def reset(self) -> None:
        """Note that records came, or that something left: the next tick is due at once."""
        self._wait_us = 0
        self._next_us = START_OF_TIME_US
