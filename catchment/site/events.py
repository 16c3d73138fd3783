"""The events of a site core and the actions it asks for.

Every event is a frozen fact with no clock in it: the runner passes the time beside it, journals both, and
replays them after a crash to reach the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from catchment.errors import SiteError
from catchment.progress.events import Ticked
from catchment.query.fragment import SLICE_COLUMN, Fragment
from catchment.shedding.debts import BatchGivenUp, BatchRepaired, BatchShed
from catchment.site.account import BatchAccepted
from catchment.site.backfill import PastAbsorbed, PastBatches
from catchment.site.known_files import FilesRead, FolderSeen
from catchment.site.policies.base import Policy
from catchment.site.reader import ReadingPaused, ReadingResumed
from catchment.site.retry import RecordsRetried, RetryBegun
from catchment.site.slack import SlackPlan
from catchment.site.stated_progress import ProgressStated
from catchment.site.suspension import BatchSkipped, FragmentResumed, FragmentSuspended, RecordsQuarantined
from catchment.storage.codec import stored
from catchment.timeline import START_OF_TIME_US
from catchment.wire.messages import BackfillFact, LookedUp, MarkFact, Repaired, Shed, Standing, SuspensionFact, Updates


# Version 2 has past, version 3 goes_by_stream, version 4 from_us, version 5 sink.
@stored(version=5, migrations={1: dict, 2: dict, 3: dict, 4: dict})
@dataclass(frozen=True, slots=True)
class FragmentAdded:
    """Partials of this fragment will come from now on; `weight` is its share of the link among its peers.

    `slacks` has one plan per query with a contract. Queries without one wait as long as their stream says: where there
    are such beside others, the fragment `goes_by_stream` too; without any slack it does in any case.

    `begin_us` is the first mark that is stated of the fragment, where the stream has been read before: records from
    this instant on are all yet to come. None: the stream is read from its beginning. With a `past`, some of them come
    from history. Slices that start before `from_us` are not wanted: another fragment has them. `sink` is the exit by
    which it leaves (`catchment.project.routings`): that towards the center, if it is empty.
    """

    fragment: Fragment
    policy: Policy
    weight: float = 1.0
    begin_us: int | None = None
    slacks: tuple[SlackPlan, ...] = ()
    past: PastBatches | None = None
    goes_by_stream: bool = False
    from_us: int = START_OF_TIME_US
    sink: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise SiteError(
                f"the weight {self.weight} is not a positive number",
                where=f"fragment {self.fragment.name!r}",
                hint="a fragment of weight 2 gets twice the link of a fragment of weight 1",
            )


@stored()
@dataclass(frozen=True, slots=True)
class FragmentDropped:
    """Nobody wants this fragment any more: what is pending for it is forgotten."""

    name: str


@stored(version=2, migrations={1: dict})  # version 2 has heir
@dataclass(frozen=True, slots=True)
class FragmentBounded:
    """Nobody wants slices of this fragment that start at this instant or after; those before it go on.

    The `heir`, if there is one, has them from now on. What waits of them here is of records ahead of the wall clock: it
    goes to the heir, where that computes the same.
    """

    name: str
    until_us: int
    heir: str = ""


@stored()
@dataclass(frozen=True, slots=True)
class Absorbed:
    """The partials of one micro-batch, one row per (slice, key); `records` counts raw records per slice."""

    fragment: str
    partials: pa.Table = field(repr=False)
    records: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.partials.num_rows and SLICE_COLUMN not in self.partials.column_names:
            raise SiteError(
                f"partials have no column {SLICE_COLUMN}, only {self.partials.column_names}",
                where=f"fragment {self.fragment!r}",
            )
        if any(count < 0 for _, count in self.records):
            raise SiteError(f"negative record counts {self.records}", where=f"fragment {self.fragment!r}")


@stored(version=2, migrations={1: dict})  # version 2 has read_us
@dataclass(frozen=True, slots=True)
class LowMarkRaised:
    """Everything of this stream before the mark is normally in (END_OF_TIME_US at the end of the stream).

    Fragments with slack controllers of their own follow it only when the stream has `ended`. `read_us` is the newest
    event time that was read, that of held records included.
    """

    stream: str
    low_mark_us: int
    ended: bool = False
    read_us: int | None = None


@stored()
@dataclass(frozen=True, slots=True)
class Observed:
    """What the slack controllers of a query observe of a micro-batch: one row per (source, slice)."""

    fragment: str
    query: str
    table: pa.Table = field(repr=False)


@stored(version=4, migrations={1: dict, 2: dict, 3: dict})  # version 2 has sink, 3 room_bytes, 4 beside
@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """The outbox of an exit as its sender sees it; of that towards the center, if `sink` names no other."""

    goodput_bytes_per_s: float | None
    queued_bytes: int
    blocked: bool  # the outbox is at its bound: hold updates in the cache, where they merge
    wire_ratio: float = 1.0  # wire bytes per Arrow byte of the rows that were sent lately
    frame_bytes: float = 0.0  # wire bytes around the rows of a segment, however many they are
    sink: str = ""
    room_bytes: int | None = None  # what the outbox takes until it is at its bound; None: however much there is
    beside: tuple[str, ...] = ()  # the other exits that use the same link now, and are told the same of it

    def __post_init__(self) -> None:
        if self.queued_bytes < 0 or (self.goodput_bytes_per_s is not None and self.goodput_bytes_per_s < 0):
            raise SiteError(f"a link cannot have goodput {self.goodput_bytes_per_s} and queue {self.queued_bytes}")
        if not 0 < self.wire_ratio < float("inf"):
            raise SiteError(f"the wire ratio {self.wire_ratio} is not a positive number")
        if not 0 <= self.frame_bytes < float("inf"):
            raise SiteError(f"a frame cannot have {self.frame_bytes} bytes")
        if self.room_bytes is not None and self.room_bytes < 0:
            raise SiteError(f"an outbox cannot have room for {self.room_bytes} bytes")


Event = (
    FragmentAdded
    | FragmentDropped
    | FragmentBounded
    | Absorbed
    | PastAbsorbed
    | LowMarkRaised
    | Observed
    | ProgressStated
    | LinkMeasured
    | BatchShed
    | BatchRepaired
    | BatchGivenUp
    | BatchAccepted
    | FragmentSuspended
    | BatchSkipped
    | FragmentResumed
    | RecordsQuarantined
    | RetryBegun
    | RecordsRetried
    | ReadingPaused
    | ReadingResumed
    | FilesRead
    | FolderSeen
    | LookedUp
    | Ticked
)


SentMessage = Updates | MarkFact | Standing | Shed | Repaired | SuspensionFact | BackfillFact | LookedUp


@dataclass(frozen=True, slots=True)
class Send:
    """Put these messages into the outbox of an exit, in this order; of that towards the center, if none is named.

    There is at most one progress per fragment, after all updates.
    """

    messages: tuple[SentMessage, ...]
    sink: str = ""

    def __post_init__(self) -> None:
        if not self.messages:
            raise SiteError("nothing to send")

    @property
    def rows(self) -> int:
        return sum(m.rows for m in self.messages if isinstance(m, Updates))


Action = Send
