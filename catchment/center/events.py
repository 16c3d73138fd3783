"""The events that a center core handles, and the actions that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from catchment.center.composed.query import ComposedQuery
from catchment.center.query import CenterQuery
from catchment.optimizer.sharing.derive import Derivation
from catchment.progress.blocking import SiteBlocked, SiteResumed
from catchment.progress.events import DeferredMerged, Gathered, Landed, LeftOut, PartialsDeferred, Ticked
from catchment.quality.merge_sites import Lateness
from catchment.storage.codec import stored
from catchment.timeline import Window

GroupLowest = tuple[float, tuple[tuple[str, float], ...]]  # the lowest rate of groups not named, and of those named


@stored()
@dataclass(frozen=True, slots=True)
class QueryAdded:
    """A query begins. `waits`: its fragment was begun during a run, and the first mark of each site says where."""

    query: CenterQuery
    waits: bool = False


@stored()
@dataclass(frozen=True, slots=True)
class QueryDropped:
    """A query ends; what it has published stays."""

    name: str


@stored(version=2, migrations={1: dict})  # version 2 has takes_over
@dataclass(frozen=True, slots=True)
class QueryMoved:
    """From where every site has begun it, a query takes its slices from another fragment.

    `takes_over`: each site ends the one where it begins the other, so that slices of both are taken.
    """

    name: str
    derivation: Derivation
    waits: bool = True
    takes_over: bool = False


@stored()
@dataclass(frozen=True, slots=True)
class SiteJoined:
    """A site counts for some queries, or sides of joins, from an instant on; None: from behind all that was heard.

    It counts from no earlier than the windows that are still open.
    """

    queries: tuple[str, ...]
    site: str
    from_us: int | None = None


@stored()
@dataclass(frozen=True, slots=True)
class SiteRetired:
    """A site counts for some queries, or sides of joins, until an instant; None: until behind all that was heard.

    It counts for all that was merged of it.
    """

    queries: tuple[str, ...]
    site: str
    until_us: int | None = None


@stored()
@dataclass(frozen=True, slots=True)
class SiteReplaced:
    """A site goes on with an empty disk, in its `life`-th life: numbers begin anew, and what was merged stays.

    The new life counts from an instant on; None: from behind all that was heard.
    """

    site: str
    life: int
    from_us: int | None = None


@stored()
@dataclass(frozen=True, slots=True)
class Recalled:
    """A repair is due: of these windows, with the published states that their late partials change.

    `states` is a table (window_start_us, keys..., states...) that was fetched for it.
    """

    query: str
    windows: tuple[int, ...]
    states: pa.Table = field(repr=False)
    reason: str = ""


@stored()
@dataclass(frozen=True, slots=True)
class PartsFolded:
    """The parts of an open slice were merged: these stand in their place (`catchment.center.shards`)."""

    query: str
    slice_us: int
    parts: pa.Table = field(repr=False)


@stored(version=2, migrations={1: dict})  # version 2 has overflows
@dataclass(frozen=True, slots=True)
class UnfinishedRevision:
    """What was to be published of a window, but for its rows: its answer could not be finished.

    `overflows`: it cannot be finished ever, because a sum of the window does not fit.
    """

    start_us: int
    revision: int
    status: str
    coverage: float
    missing_sites: tuple[str, ...]
    lowest_rate: float = 1.0
    late: Lateness | None = None
    overflows: bool = False

    @classmethod
    def of(cls, publish: Publish) -> UnfinishedRevision:
        """Return what is remembered of a revision."""
        return cls(
            publish.window.start_us,
            publish.revision,
            publish.status,
            publish.coverage,
            publish.missing_sites,
            publish.lowest_rate,
            publish.late,
        )


@stored()
@dataclass(frozen=True, slots=True)
class AnswersSuspended:
    """The last step of a query has failed on a row of these windows: their answers were written without columns."""

    query: str
    windows: tuple[UnfinishedRevision, ...]
    reason: str


@stored()
@dataclass(frozen=True, slots=True)
class AnswersResumed:
    """The last step of a query is taken again from now on."""

    query: str


@stored()
@dataclass(frozen=True, slots=True)
class AnswersRecalled:
    """Windows of a resumed query whose answers were not finished, with their states, as in `Recalled`."""

    query: str
    windows: tuple[int, ...]
    states: pa.Table = field(repr=False)


@stored()
@dataclass(frozen=True, slots=True)
class ComposedAdded:
    """A query over the windows of another view begins."""

    query: ComposedQuery


@stored()
@dataclass(frozen=True, slots=True)
class SiteHealed:
    """A site or a relay goes on with whatever state it has, in its `life`-th life; all that it sends is computed again.

    Numbers begin anew where it sends directly to the center.
    """

    site: str
    life: int
    is_direct: bool = True


@stored()
@dataclass(frozen=True, slots=True)
class QueryRenewed:
    """The windows of a query that are not final are computed again, by the fragments of this definition."""

    query: CenterQuery


@stored()
@dataclass(frozen=True, slots=True)
class RestatedWindow:
    """What was published of a window that was final before: computed again on request, or made exact."""

    start_us: int
    revision: int
    status: str
    coverage: float
    missing_sites: tuple[str, ...]


@stored()
@dataclass(frozen=True, slots=True)
class WindowsRestated:
    """Final windows of a query were published again: views that read it follow."""

    query: str
    windows: tuple[RestatedWindow, ...]


RosterChange = SiteJoined | SiteRetired | SiteReplaced | SiteHealed
SiteChange = RosterChange | SiteBlocked | SiteResumed
AnswersChange = AnswersSuspended | AnswersResumed | AnswersRecalled | WindowsRestated
QueryChange = QueryAdded | ComposedAdded | QueryDropped | QueryMoved | QueryRenewed | AnswersChange
DeferralEvent = PartialsDeferred | DeferredMerged
Event = QueryChange | SiteChange | Recalled | PartsFolded | Gathered | LeftOut | DeferralEvent | Landed | Ticked


@dataclass(frozen=True, slots=True)
class DeferredRows:
    """Which rows of a window may lack deferred partials, and at most how many records each lacks (None: unknown).

    A row is complete if the place of its `keys` is below the share, for each pair (keys, share); without keys it never
    is.
    """

    shares: tuple[tuple[tuple[str, ...], float], ...]
    records: float | None


@dataclass(frozen=True, slots=True)
class Publish:
    """A new revision of a window: the rows that changed, as (keys..., states...), or none if only its status did.

    `late`: what records that are not in yet may change; None where none is expected.
    `sources`: the (site, source, share of its window) that are known to be missing. `kept`: of a join, the partials of
    its sides that changed, from which the window can be answered again. What is not `is_finished` is written without
    the columns of the view; with `leaves_out_failing` a row that cannot be finished is left out, the others are not.
    What `replaces` was computed anew: nothing of the revisions before it counts any more.
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
    lowest_rate: float = 1.0  # lowest rate at which a site has sampled the window without sending the rest yet
    late: Lateness | None = None
    sources: tuple[tuple[str, str, float], ...] = ()
    kept: pa.Table | None = field(default=None, repr=False)
    group_rates: GroupLowest | None = None  # the lowest rates by group, where rates differ by group
    is_finished: bool = True
    leaves_out_failing: bool = False
    deferred: DeferredRows | None = None  # which rows lack partials that were deferred, if any do
    has_answer: bool = True  # False if only the status has changed
    replaces: bool = False  # whether rows that were published before, and are not among these, hold no more
    as_of: str = ""  # what the reason says of the versions of tables that records were looked up in
    mixed_signs: frozenset[str] = frozenset()  # sums that are known to have both signs, beyond what these rows show


@dataclass(frozen=True, slots=True)
class Expired:
    """Partials that came after the repair horizon, or to a query without repair.

    They are registered and counted: never merged, and never silently dropped.
    """

    query: str
    window: Window
    rows: pa.Table = field(repr=False)
    registered_us: int = 0


@dataclass(frozen=True, slots=True)
class Compose:
    """A new revision or status of a window of a composed query, whose rows follow from those of lower windows.

    `lowers`: the start of each lower window in it, and the revision up to which its rows count. Without `has_new_rows`
    only the status has changed. A window that `is_restated` was final and is forgotten: its tables know its revision,
    its status and the lower windows in it, of which one was published again.
    """

    query: str
    window: Window
    revision: int
    status: str
    coverage: float
    missing_sites: tuple[str, ...]
    reason: str
    published_us: int
    lowers: tuple[tuple[int, int], ...]
    has_new_rows: bool
    is_restated: bool = False


Action = Publish | Expired | Compose
