"""The events of a relay core (what it carries, what landed, what its link measures), and what it asks to send on."""

from __future__ import annotations

from dataclasses import dataclass

from catchment.errors import SiteError
from catchment.progress.blocking import SiteBlocked, SiteResumed
from catchment.progress.events import DeferredMerged, Gathered, Landed, PartialsDeferred, Ticked
from catchment.query.fragment import Fragment
from catchment.site.events import FragmentDropped, LinkMeasured
from catchment.site.policies.base import Policy
from catchment.storage.codec import stored
from catchment.wire.messages import Relayed, Updates


@stored(version=2, migrations={1: dict})  # version 2 has exit_name
@dataclass(frozen=True, slots=True)
class Carried:
    """Partials of this fragment come through here from now on, from these origins, and leave by an exit."""

    fragment: Fragment
    policy: Policy
    origins: tuple[tuple[str, str], ...]  # (origin, the neighbour that sends its partials here)
    weight: float = 1.0
    exit_name: str = ""  # that of the declared route, if it has none

    def __post_init__(self) -> None:
        if not self.origins:
            raise SiteError(f"fragment {self.fragment.name!r} comes from no site that is behind this relay")


@stored()
@dataclass(frozen=True, slots=True)
class Flushed:
    """Nothing more will come for now: do not wait for sites that are behind."""


@stored()
@dataclass(frozen=True, slots=True)
class LifeBegun:
    """A site or a relay that sends here goes on in its `life`-th life.

    Its numbers begin anew, unless nothing of a former one has ever come.
    """

    site: str
    life: int
    begins_anew: bool = True


Received = Gathered | PartialsDeferred | DeferredMerged | Landed | SiteBlocked | SiteResumed
Event = Carried | FragmentDropped | LifeBegun | Received | LinkMeasured | Ticked | Flushed


@dataclass(frozen=True, slots=True)
class Forward:
    """Put these into the outbox of an exit: updates first, facts after them, in this order."""

    updates: tuple[Updates, ...] = ()
    facts: tuple[Relayed, ...] = ()
    exit_name: str = ""

    def __post_init__(self) -> None:
        if not self.updates and not self.facts:
            raise SiteError("nothing to forward")


Action = Forward
