"""What a site's journal and snapshots are written of."""

from __future__ import annotations

from catchment.durable.definitions import FRAGMENTS
from catchment.site.debts import BatchRepaired, BatchShed, Taken
from catchment.site.events import (
    Absorbed,
    FragmentAdded,
    FragmentBounded,
    FragmentDropped,
    LinkMeasured,
    LowMarkRaised,
    Ticked,
)
from catchment.site.extremes import Batching, Streaming
from catchment.site.size_policies import SizePolicy
from catchment.site.spillway import Spillway

POLICIES = (Streaming, Batching, SizePolicy, Spillway)
JOURNALLED = (
    Absorbed, LowMarkRaised, LinkMeasured, Ticked, FragmentAdded, FragmentDropped, FragmentBounded, BatchShed,
    BatchRepaired, Taken, *POLICIES, *FRAGMENTS,
)  # fmt: skip
