"""What the center's journal and snapshots are written of."""

from __future__ import annotations

from catchment.center.events import (
    CenterQuery,
    Merged,
    QueryAdded,
    QueryDropped,
    QueryMoved,
    Recalled,
    Ticked,
)
from catchment.center.late import RepairRule
from catchment.progress.definitions import DEFINITIONS
from catchment.progress.landed import Landed
from catchment.quality.coverage import Contract
from catchment.quality.merge_sites import Estimate
from catchment.query.join import Join, JoinedKey, KeyComparison, PairAggregate
from catchment.wire.messages import Closing, Counted, Progress, Relayed, Repaired, Shed, Standing

JOURNALLED = (
    Recalled, Merged, Landed, Ticked, Progress, Shed, Repaired, QueryAdded, QueryDropped, QueryMoved, CenterQuery,
    Standing, Closing, Counted, Relayed, Estimate, Contract, RepairRule, Join, JoinedKey, PairAggregate, KeyComparison,
    *DEFINITIONS,
)  # fmt: skip
