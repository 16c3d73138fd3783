"""What a site's journal and snapshots are written of."""

from __future__ import annotations

from catchment.durable.definitions import FRAGMENTS
from catchment.quality.coverage import Contract, Measure
from catchment.quality.measured import Measured
from catchment.sampling import GroupRates
from catchment.site.debts import BatchRepaired, BatchShed, Taken
from catchment.site.events import (
    Absorbed,
    FragmentAdded,
    FragmentBounded,
    FragmentDropped,
    LinkMeasured,
    LowMarkRaised,
    Observed,
    Ticked,
)
from catchment.site.extremes import Batching, Streaming
from catchment.site.policy_early import EarlyPolicy
from catchment.site.size_policies import SizePolicy
from catchment.site.slack.query import SlackPlan
from catchment.site.spillway import Spillway

POLICIES = (Streaming, Batching, SizePolicy, Spillway, EarlyPolicy)
CONTRACTS = (SlackPlan, Measured, Measure, Contract)
JOURNALLED = (
    Absorbed, LowMarkRaised, LinkMeasured, Ticked, FragmentAdded, FragmentDropped, FragmentBounded, BatchShed,
    BatchRepaired, Taken, GroupRates, Observed, *CONTRACTS, *POLICIES, *FRAGMENTS,
)  # fmt: skip
