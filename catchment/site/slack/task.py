"""The task of a slack controller: the windows it closes, and how wrong and how late they may be."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.errors import SiteError
from catchment.quality.contract import Contract, Measure
from catchment.storage.codec import stored
from catchment.timeline import SECOND_US, WindowSpec

stored()(WindowSpec)  # a task holds one; the time line itself knows nothing of storage

# Unless told otherwise, a window waits for the longer of these two, and then closes as it is.
DEFAULT_WAIT_US = 60 * SECOND_US
DEFAULT_WAIT_WINDOWS = 10  # multiples of the window size


@stored()
@dataclass(frozen=True)
class SlackTask:
    """What a controller works for: the windows, what is measured of them, and the contract on its error.

    `max_wait_us` bounds the wait for any window, in event time behind the front of the stream; 0 stands for the
    default. `max_ahead_us` is how far ahead of the clock a record may push event time; records beyond it are counted
    and push nothing.
    """

    window: WindowSpec
    measure: Measure
    contract: Contract
    max_wait_us: int = 0
    max_ahead_us: int = 60 * SECOND_US

    def __post_init__(self) -> None:
        if self.max_wait_us < 0 or self.max_ahead_us < 0:
            raise SiteError(
                f"the longest wait and the largest advance are not negative:"
                f" given {self.max_wait_us} us and {self.max_ahead_us} us"
            )
        if not self.max_wait_us:
            longest = max(DEFAULT_WAIT_US, DEFAULT_WAIT_WINDOWS * self.window.size_us)
            object.__setattr__(self, "max_wait_us", longest)
