"""What a site's journal and snapshots are written of."""

from __future__ import annotations

from catchment.progress.definitions import FRAGMENTS
from catchment.quality.contract_measures import Measured
from catchment.quality.coverage import Contract, Measure
from catchment.shedding.debts import BatchRepaired, BatchShed, Taken
from catchment.shedding.places import GroupRates
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
from catchment.site.policies.early import EarlyPolicy
from catchment.site.policies.extremes import Batching, Streaming
from catchment.site.policies.sized import SizePolicy
from catchment.site.policies.spillway.policy import Spillway
from catchment.site.slack.query import SlackPlan

POLICIES = (Streaming, Batching, SizePolicy, Spillway, EarlyPolicy)
CONTRACTS = (SlackPlan, Measured, Measure, Contract)
JOURNALLED = (
    Absorbed, LowMarkRaised, LinkMeasured, Ticked, FragmentAdded, FragmentDropped, FragmentBounded, BatchShed,
    BatchRepaired, Taken, GroupRates, Observed, *CONTRACTS, *POLICIES, *FRAGMENTS,
)  # fmt: skip
