"""All that is remembered of the windows of one query, as one plain record; the modules beside it change it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from catchment.center.late.registry import LateRegistry
from catchment.center.windows.closed import ClosedWindow
from catchment.center.windows.deferred import DeferralName, DeferredBatch
from catchment.center.windows.learned import LearnedErrors
from catchment.center.windows.looked_up import VersionsOfTables
from catchment.center.windows.outstanding import OutstandingBatch, SiteBatch
from catchment.center.windows.recent import EarlyWindow, RecentWindows
from catchment.center.windows.unfinished import UnfinishedState
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US


@stored()
@dataclass
class FormerWindow:
    """What a window had before it was computed again: records per site, and what was published of it if it was closed.

    `counts` are the most that it ever had: more than `known` has, if it was computed again before that was whole; of a
    final window whose exact answer stands, what that has.
    `is_stale`: what readers see is still the former answer. `is_kept`: it stands for good; `came` counts what was sent
    again. `named`: the sites of which the window says that it has fewer records than before.
    """

    counts: dict[str, int]
    known: ClosedWindow | None
    is_stale: bool
    is_kept: bool = False
    named: tuple[str, ...] = ()
    came: dict[str, int] = field(default_factory=dict)

    @property
    def is_pending(self) -> bool:
        """Whether the window is closed, and its former answer still stands until the new one is whole."""
        return self.is_stale and self.known is not None


@stored(
    # version 3 has deferred, version 4 overflowed, version 5 renewed, version 6 learned, version 7 looked_up
    version=7,
    migrations={
        1: lambda fields: fields | {"unmerged_of_sites": {}, "skipped": {}},
        2: dict,
        3: dict,
        4: dict,
        5: dict,
        6: dict,
    },
)
@dataclass
class WindowsState:
    """Open slices and published windows of one query. Windows are named by their start."""

    slices: dict[int, list[pa.Table]] = field(default_factory=dict)  # partials of open slices
    records: dict[int, dict[str, int]] = field(default_factory=dict)  # open slice -> site -> raw records
    closed: dict[int, ClosedWindow] = field(default_factory=dict)
    closed_us: int = START_OF_TIME_US  # every window that ends here or before is closed
    final_us: int = START_OF_TIME_US  # every window that ends here or before is final
    furthest: list[tuple[int, int]] = field(default_factory=list)  # mark of the furthest site, and when it was there
    usual: dict[str, int] = field(default_factory=dict)  # site -> its records in the newest complete window
    outstanding: dict[SiteBatch, OutstandingBatch] = field(default_factory=dict)  # what sites have shed
    skipped: dict[int, dict[str, int]] = field(default_factory=dict)  # window -> site -> records that it has skipped
    late: LateRegistry = field(default_factory=LateRegistry)
    expired: dict[int, list[pa.Table]] = field(default_factory=dict)  # window -> late partials that are not merged
    late_records: int = 0  # raw records that came to a closed window
    unmerged_records: int = 0  # those of them that are registered for good
    unmerged_of_sites: dict[str, int] = field(default_factory=dict)  # site -> those of them that it sent
    recent: RecentWindows = field(default_factory=RecentWindows)
    early: dict[int, EarlyWindow] = field(default_factory=dict)
    early_at_us: int = START_OF_TIME_US  # when early answers were last published
    unfinished: UnfinishedState = field(default_factory=UnfinishedState)
    deferred: dict[DeferralName, DeferredBatch] = field(default_factory=dict)  # groups whose partials wait
    overflowed: set[int] = field(default_factory=set)  # windows with a sum that does not fit
    renewed: dict[int, FormerWindow] = field(default_factory=dict)  # what windows had that are computed again
    learned: LearnedErrors = field(default_factory=LearnedErrors)  # what windows lacked, of joins and explode
    looked_up: dict[int, VersionsOfTables] = field(default_factory=dict)  # window -> in which versions of tables
