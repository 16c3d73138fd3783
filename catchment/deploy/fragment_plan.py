"""What a site is to run of a fragment: its policy, its controllers, and how it may be shed."""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.query.fragment import Fragment
from catchment.query.sql.view_options import ALWAYS
from catchment.site.policies.base import Policy
from catchment.site.slack import SlackPlan


@dataclass(frozen=True)
class ShedChoice:
    """What the queries of a fragment allow: how wrong, how much it matters, and when what was shed is made good."""

    max_error: float | None = None
    confidence: float = 0.95
    weight: float = 1.0
    any_aggregate: bool = False  # also those whose sampled answers have no bound
    repair: str = ALWAYS
    queries: tuple[str, ...] = ()
    never: bool = False  # one of the queries is not to be sampled

    def is_repaired(self, asked: frozenset[str]) -> bool:
        """Whether it is made good, given the queries whose repair was asked for."""
        return self.repair == ALWAYS or any(q in asked for q in self.queries)


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
