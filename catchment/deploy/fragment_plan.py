"""The plan by which a site runs a fragment: its policy, its slack controllers, and how it may be shed."""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.query.fragment import Fragment
from catchment.query.view_start import ViewStart
from catchment.shedding.sheddable import ShedChoice
from catchment.site.policies.base import Policy
from catchment.site.slack import SlackPlan


@dataclass(frozen=True)
class Watch:
    """The slack plan of a query, and the fragment whose records its controllers observe."""

    slack: SlackPlan
    fragment: Fragment


@dataclass(frozen=True)
class FragmentPlan:
    """A fragment to run, the policy by which its partials leave, and how it may be shed.

    `begun`: it was added while its stream was already being read. `start`: where in the past it begins, if it does.
    `until_us`: only slices before it are wanted. `weight`: its share of the link among its peers.
    """

    fragment: Fragment
    policy: Policy
    begun: bool = False
    until_us: int | None = None
    weight: float = 1.0
    shed: ShedChoice = field(default_factory=ShedChoice)
    watches: tuple[Watch, ...] = ()
    max_errors: int | None = None  # failing records per window that are set aside; None: the first one suspends it
    start: ViewStart | None = None
    goes_by_stream: bool = False  # whether it serves views without a contract beside others with one
    ends: tuple[str, ...] = ()  # fragments that end where it begins
    exit_name: str = ""  # by which it leaves the site (`catchment.project.routings`)

    @property
    def slacks(self) -> tuple[SlackPlan, ...]:
        return tuple(watch.slack for watch in self.watches)
