"""The nouns that every slack controller shares: its setting, and its outlook on a window.

A `Setting` is what the query asks for; an `Outlook` is what closing one window at this moment would mean. An
outlook is pure knowledge: it serves early results, and it becomes a closing only when its controller says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.errors import SiteError
from catchment.quality.coverage import Contract, Measure
from catchment.timeline import SECOND_US, WindowSpec

LEAST_WAIT_US = 60 * SECOND_US  # without a freshness wish, a window waits this long ...
WAIT_WINDOWS = 10  # ... or this many times its size, whichever is longer, and then closes as it is


@dataclass(frozen=True)
class Setting:
    """What a controller works for: the windows, what is measured, how wrong it may be, how long it may take.

    `max_wait_us` bounds the wait for any window (in event time behind the front of the stream);
    `max_ahead_us` is how far ahead of the clock a record may push event time: one beyond it is counted, and
    pushes nothing.
    """

    window: WindowSpec
    measure: Measure
    contract: Contract
    max_wait_us: int = field(default=0)
    max_ahead_us: int = 60 * SECOND_US

    def __post_init__(self) -> None:
        if self.max_wait_us < 0 or self.max_ahead_us < 0:
            raise SiteError(
                f"a longest wait and a largest advance are not negative: {self.max_wait_us}, {self.max_ahead_us} us"
            )
        if not self.max_wait_us:
            object.__setattr__(self, "max_wait_us", max(LEAST_WAIT_US, WAIT_WINDOWS * self.window.size_us))

    @property
    def slices_per_window(self) -> float:
        return self.window.size_us / self.window.slide_us


@dataclass(frozen=True, slots=True)
class Outlook:
    """What closing the window that ends at `end_us` would mean now.

    `close` is the controller's answer and `reason` its ground: `open` (event time has not reached the end),
    `waiting`, `covered` (the contract is kept), `budget` (a violation that the ledger can afford), `idle`
    (only sources that are not waited for any more owe it records), `limit` (the longest wait has passed).
    `bound` is the error the answer stays under but for a chance delta, `coverage` the expected share of its
    records that are in, `risk` the chance that the error exceeds the contract's. `idle` sources are silent
    and not waited for; `missing` ones are expected to have records of this window that are not in.
    `missing_count` and `missing_total` say how many, and what their values sum to.
    """

    end_us: int
    at_us: int
    close: bool
    reason: str
    coverage: float
    bound: float
    risk: float
    slack_us: int
    idle: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    missing_count: float = 0.0
    missing_total: float = 0.0
    predicted: float = 1.0  # the risk before it was corrected by experience
    owed: tuple[float, ...] = ()  # of each missing source, the share of the window that it owes
