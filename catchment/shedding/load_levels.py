"""From which load on less is done than asked for, and when that ends: the same for reading and for merging."""

from __future__ import annotations

ENTER_LOAD = 0.9  # shedding begins above this load
LEAVE_LOAD = 0.6  # a batch under this load is calm
DRAIN_S = 10.0  # seconds in which a backlog should be worked off
