"""What a center core is told, and what it wants done. All frozen; all facts that stay true."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from catchment.center.late import RepairRule
from catchment.errors import CenterError
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.events import Gathered, Landed, Ticked
from catchment.quality.contract import Contract
from catchment.query.fragment import Fragment
from catchment.query.join import Join
from catchment.storage.codec import stored
from catchment.timeline import Window, WindowSpec

# How far along a published window is. A status never goes back.
EARLY, ON_TIME, EXACT, FINAL = "early", "on_time", "exact", "final"
STATUSES = (EARLY, ON_TIME, EXACT, FINAL)


@stored()
@dataclass(frozen=True)
class CenterQuery:
    """What the center needs to know of a query: its own fragment, its window, who feeds it and how long to wait.

    With a derivation its partials are derived from those of a shared fragment; without, its own fragment is run.

    With a `contract` its sites say what they lack when they let a window go. `early_us` asks for early answers that
    often; without `repair` what is late is registered and counted, not merged. `source_key` is the key, if any, that is
    the stream's source, so that coverage is known row by row. With a `join` it has two `sides`, each with a derivation
    of its own, and its fragment is the pairing of both.
    """

    name: str
    fragment: Fragment
    window: WindowSpec
    sites: tuple[str, ...]
    repair_horizon_us: int
    freshness_us: int | None = None
    derivation: Derivation | None = None
    contract: Contract | None = None
    early_us: int | None = None
    repair: RepairRule | None = field(default_factory=RepairRule)
    source_key: str | None = None
    join: Join | None = None
    sides: tuple[CenterQuery, ...] = ()

    @property
    def parts(self) -> tuple[CenterQuery, ...]:
        """What it is made of over one stream each: itself, or its sides."""
        return self.sides or (self,)

    @property
    def feed(self) -> str:
        """The fragment that its partials come from."""
        return self.derivation.fragment if self.derivation is not None else self.fragment.name

    def __post_init__(self) -> None:
        if not self.sites:
            raise CenterError(f"query {self.name!r} has no sites that feed it")
        if self.repair_horizon_us < 0 or (self.freshness_us is not None and self.freshness_us < 0):
            raise CenterError(f"query {self.name!r} has a negative horizon or freshness")
        if (self.join is None) != (not self.sides):
            raise CenterError(f"query {self.name!r} has a join without sides, or sides without a join")


@stored()
@dataclass(frozen=True, slots=True)
class QueryAdded:
    """A query begins. `waits`: its fragment was begun during a run, and the first mark of each site says where."""

    query: CenterQuery
    waits: bool = False


GroupLowest = tuple[float, tuple[tuple[str, float], ...]]  # the lowest rate of groups not named, and of those named


@stored()
@dataclass(frozen=True, slots=True)
class QueryDropped:
    name: str


@stored()
@dataclass(frozen=True, slots=True)
class QueryMoved:
    """From where every site has begun it, a query takes its slices from another fragment."""

    name: str
    derivation: Derivation
    waits: bool = True


@stored()
@dataclass(frozen=True, slots=True)
class Recalled:
    """A repair is due: these windows, and the published states that their late partials touch, fetched for it: a table
    (window_start_us, keys..., states...)."""

    query: str
    windows: tuple[int, ...]
    states: pa.Table = field(repr=False)
    reason: str = ""


Event = QueryAdded | QueryDropped | QueryMoved | Recalled | Gathered | Landed | Ticked


@dataclass(frozen=True, slots=True)
class Publish:
    """A new revision of a window: the rows that changed, as (keys..., states...), or none if only its status did.

    `errors`: per aggregate, by how much what is not in yet may change it, relative; None where that is not known.
    `sources`: the (site, source, share of its window) that are known to be missing. `kept`: of a join, the partials of
    its sides that changed, from which the window can be answered again.
    """

    query: str
    window: Window
    revision: int
    status: str
    coverage: float
    missing_sites: tuple[str, ...]
    reason: str
    rows: pa.Table = field(repr=False)
    published_us: int = 0
    lowest_rate: float = 1.0  # at which a site has sampled the window's records and not sent the rest yet
    errors: tuple[tuple[str, float | None], ...] = ()
    sources: tuple[tuple[str, str, float], ...] = ()
    kept: pa.Table | None = field(default=None, repr=False)
    group_rates: GroupLowest | None = None  # the lowest rate by group, where rates were


@dataclass(frozen=True, slots=True)
class Expired:
    """Partials that came after the repair horizon, or to a query without repair: registered and counted, never merged,
    never dropped in silence."""

    query: str
    window: Window
    rows: pa.Table = field(repr=False)
    registered_us: int = 0


Action = Publish | Expired
