"""What the center's journal and snapshots are written of."""

from __future__ import annotations

from catchment.center.events import (
    CenterQuery,
    Landed,
    Merged,
    QueryAdded,
    QueryDropped,
    QueryMoved,
    Recalled,
    Ticked,
)
from catchment.durable.definitions import DEFINITIONS
from catchment.wire.messages import Progress, Repaired, Shed

JOURNALLED = (
    Recalled, Merged, Landed, Ticked, Progress, Shed, Repaired, QueryAdded, QueryDropped, QueryMoved, CenterQuery,
    *DEFINITIONS,
)  # fmt: skip
