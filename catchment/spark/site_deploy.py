"""Bringing a site to what is deployed, between two micro-batches of a stream: nothing restarts, nothing waits.

A fragment that begins during a run states the first instant from which on this site will have computed every record:
just after the newest event time that was read before. Between two batches that is exact; hence the lock of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from catchment.query.fragment import Fragment
from catchment.site.core import SiteCore
from catchment.site.events import Event, FragmentAdded, FragmentBounded, FragmentDropped
from catchment.site.policy import Policy
from catchment.site.slack.query import SlackPlan
from catchment.spark.shedding import ShedChoice
from catchment.timeline import START_OF_TIME_US


@dataclass(frozen=True)
class Watch:
    """What a query waits by, and its own fragment: the records that its controllers are told of."""

    slack: SlackPlan
    fragment: Fragment


@dataclass(frozen=True)
class FragmentPlan:
    """A fragment to run, the policy by which its partials leave, and how it may be shed.

    `begun`: it came while its stream was being read already. `until_us`: only slices before it are wanted.
    `weight`: its share of the link among its peers.
    """

    fragment: Fragment
    policy: Policy
    begun: bool = False
    until_us: int | None = None
    weight: float = 1.0
    shed: ShedChoice = field(default_factory=ShedChoice)
    watches: tuple[Watch, ...] = ()

    @property
    def slacks(self) -> tuple[SlackPlan, ...]:
        return tuple(watch.slack for watch in self.watches)


def changes(core: SiteCore, stream: str, plans: Iterable[FragmentPlan], newest_us: int | None) -> Iterator[Event]:
    """What brings the fragments of one stream to what is wanted; nothing where they are there already."""
    wanted = {p.fragment.name: p for p in plans if p.fragment.stream == stream}
    here = {f.name for f in core.definitions if f.stream == stream}
    yield from (FragmentDropped(name) for name in sorted(here - wanted.keys()))
    for name, plan in wanted.items():
        wants = (plan.policy, plan.weight, plan.slacks)
        if name not in here or (core.policy_of(name), core.weight_of(name), core.slacks_of(name)) != wants:
            begin_us = _begin_us(newest_us) if plan.begun and name not in here else None
            yield FragmentAdded(plan.fragment, plan.policy, plan.weight, begin_us, plan.slacks)
        if plan.until_us is not None and (name not in here or core.until_us(name) != plan.until_us):
            yield FragmentBounded(name, plan.until_us)


def _begin_us(newest_us: int | None) -> int:
    """The first instant whose records are all yet to come; a stream of which nothing was read is all to come."""
    return START_OF_TIME_US + 1 if newest_us is None else newest_us + 1
