"""What crosses a link: facts and progress.

Every message is a statement that stays true forever, so duplicates, resends and any order are harmless: an `Updates` is
a set of partials to be merged once, a `Progress` says how many of them there are and how far every query is served, a
`QueryMark` that one query is served further, a `Shed` that some partials stand for more records than they hold, a
`Repaired` that they no longer do, and a `Standing` what a site believed that windows lacked when it closed them. A
`Suspended` says that a fragment takes nothing in at a site, because its expression failed there, a `Skipped` what it
therefore lacks, and a `Resumed` that it takes part again. A `Backfilling` says that a fragment reads its past from
history, a `Backfilled` that it has. A `LookedUp` says in which version of a table records were looked up. What a relay
states of other sites is `Relayed`, under the name of the site that it is true of; a `Deferred` says that partials wait
at the relay, and a `Delivered` that they were sent on. A light site, which does not compute, sends `Records`. A
`Segment` is the unit of durability and of acknowledgement: numbered without gaps per (origin, destination), merged
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from catchment.errors import WireError
from catchment.quality.merge_sites import SiteEstimate
from catchment.storage.codec import stored


@dataclass(frozen=True, slots=True)
class Updates:
    """Partials of one fragment: a table (slice_us, keys..., states...).

    `records` counts, per slice, the raw records that these partials stand for.
    """

    fragment: str
    table: pa.Table = field(repr=False)
    records: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.fragment:
            raise WireError("an update names no fragment")
        if self.table.num_rows and "slice_us" not in self.table.column_names:
            raise WireError(f"an update of {self.fragment!r} has no column slice_us, only {self.table.column_names}")

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)


@stored()
@dataclass(frozen=True, slots=True)
class Progress:
    """The origin has sent all it will normally send for slices that end at or before `low_mark_us`.

    That is so for every query of the fragment: the mark is that of the query which waits longest. `updates_total`
    counts the update rows of this fragment that it has sent so far.
    """

    fragment: str
    low_mark_us: int
    updates_total: int

    def __post_init__(self) -> None:
        if not self.fragment or self.updates_total < 0:
            raise WireError(
                f"a progress names fragment {self.fragment!r} and counts {self.updates_total} updates, not 0 or more"
            )


@stored()
@dataclass(frozen=True, slots=True)
class QueryMark:
    """The origin has sent all that one query waits for, of slices that end at or before `low_mark_us`.

    It is stated where other queries of the fragment wait longer. Without the name of a query it is true of all that
    have no contract, and so wait as long as their stream says.
    """

    fragment: str
    query: str
    low_mark_us: int

    def __post_init__(self) -> None:
        if not self.fragment:
            raise WireError(f"a mark of query {self.query!r} names no fragment")


@stored()
@dataclass(frozen=True, slots=True)
class Shed:
    """The origin let only the share `rate` of a micro-batch into this fragment's partials.

    `lacking` has the slices that this may touch, each with about how many records it lacks. With `groups` the rate is
    that of a record's group, by the text of its key, and 1 for groups that are not named; `rate` is the lowest.
    """

    fragment: str
    batch: int
    rate: float
    lacking: tuple[tuple[int, int], ...]
    groups: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if not self.fragment or self.batch < 0 or not 0.0 < self.rate < 1.0:
            raise WireError(
                f"a shed batch has fragment {self.fragment!r}, number {self.batch} and rate {self.rate}, not in (0, 1)"
            )


@stored()
@dataclass(frozen=True, slots=True)
class Repaired:
    """The origin has sent what it had shed of a micro-batch; or, where it `gave_up`, it never will."""

    fragment: str
    batch: int
    gave_up: bool = False

    def __post_init__(self) -> None:
        if not self.fragment or self.batch < 0:
            raise WireError(f"a repair names fragment {self.fragment!r} and batch {self.batch}, not one of 0 or more")


@stored()
@dataclass(frozen=True, slots=True)
class Closing:
    """The origin no longer waits for the window that ends at `end_us`.

    It says why, what the window is believed to lack of each watched quantity, and which sources owe it something, each
    with the share of its window that is missing.
    """

    end_us: int
    reason: str
    estimates: tuple[SiteEstimate, ...]
    sources: tuple[tuple[str, float], ...] = ()


@stored()
@dataclass(frozen=True, slots=True)
class Standing:
    """How the windows of one query stand at the origin.

    No more is expected for those that end at or before `complete_until_us`; `closings` are those closed since the
    last standing.
    """

    fragment: str
    query: str
    complete_until_us: int
    closings: tuple[Closing, ...] = ()

    def __post_init__(self) -> None:
        if not self.fragment or not self.query:
            raise WireError(
                f"a standing names fragment {self.fragment!r} and query {self.query!r}; neither may be empty"
            )


@stored()
@dataclass(frozen=True, slots=True)
class Counted:
    """How many raw records of the origin, per slice, stand behind the partials that a relay has sent of a fragment."""

    fragment: str
    records: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.fragment or not self.records:
            raise WireError(f"a count of fragment {self.fragment!r} names no slice")


@stored()
@dataclass(frozen=True, slots=True)
class Suspended:
    """From a micro-batch on, the origin takes nothing into this fragment: an expression of it has failed on a record.

    Slices from `from_us` on may lack records. What is not known of the expression and the record is empty.
    """

    fragment: str
    batch: int
    from_us: int
    reason: str
    expression: str = ""
    record: str = ""

    def __post_init__(self) -> None:
        if not self.fragment or self.batch < 0 or not self.reason:
            raise WireError(
                f"a suspension names fragment {self.fragment!r}, batch {self.batch} and reason {self.reason!r}; "
                "names may not be empty, nor numbers negative"
            )


@stored()
@dataclass(frozen=True, slots=True)
class Skipped:
    """The origin, where this fragment is suspended, has read these records per slice since the last such statement.

    None of them is in the fragment's partials. `batch` is the newest micro-batch that they are of.
    """

    fragment: str
    batch: int
    lacking: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.fragment or self.batch < 0 or any(count < 0 for _, count in self.lacking):
            raise WireError(
                f"what was skipped has fragment {self.fragment!r}, batch {self.batch} and counts of 0 or more, "
                f"not {self.lacking}"
            )


@stored()
@dataclass(frozen=True, slots=True)
class Resumed:
    """This fragment takes part again at the origin."""

    fragment: str

    def __post_init__(self) -> None:
        if not self.fragment:
            raise WireError("a resumption names no fragment")


@stored()
@dataclass(frozen=True, slots=True)
class Deferred:
    """Partials of this fragment wait at a relay, the `place`, under a number: it could not merge all that landed.

    They are those of groups whose `keys` have a place beyond `share`; `lacking` has their slices, each with the raw
    records behind them, counted or about as many (`catchment.progress.deferred`).
    """

    fragment: str
    place: str
    number: int
    share: float
    keys: tuple[str, ...]
    lacking: tuple[tuple[int, int], ...]
    is_counted: bool

    def __post_init__(self) -> None:
        if not self.fragment or not self.place or self.number < 0 or not 0.0 < self.share < 1.0 or not self.keys:
            raise WireError(
                f"deferred partials have fragment {self.fragment!r}, place {self.place!r}, number {self.number}, keys "
                f"{self.keys} and a share of {self.share}; names may not be empty, and a share is in (0, 1)"
            )


@stored()
@dataclass(frozen=True, slots=True)
class Backfilling:
    """The origin has read records that this fragment has not taken in: slices in [from, until) lack those.

    They came before the fragment began, or while it was suspended. The origin sends them, from its history, before it
    states that they are `Backfilled`.
    """

    fragment: str
    from_us: int
    until_us: int

    def __post_init__(self) -> None:
        if not self.fragment or self.from_us >= self.until_us:
            raise WireError(f"a backfill of {self.fragment!r} is of no event times: [{self.from_us}, {self.until_us})")


@stored()
@dataclass(frozen=True, slots=True)
class Delivered:
    """What waited of this fragment at a place under a number has been sent on."""

    fragment: str
    place: str
    number: int

    def __post_init__(self) -> None:
        if not self.fragment or not self.place or self.number < 0:
            raise WireError(
                f"delivered partials have fragment {self.fragment!r}, place {self.place!r} and number {self.number}; "
                "names may not be empty, nor numbers negative"
            )


@stored()
@dataclass(frozen=True, slots=True)
class Backfilled:
    """The origin has sent what this fragment had not taken in.

    Of event times in `lost` its history no longer held everything, or the fragment fails on it: that never comes.
    """

    fragment: str
    lost: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.fragment or any(low_us >= high_us for low_us, high_us in self.lost):
            raise WireError(f"a backfill of {self.fragment!r} lost the event times {self.lost}, of which some are none")


@stored()
@dataclass(frozen=True, slots=True)
class LookedUp:
    """The origin has looked up records of these slices in a version of a table that may change, for this fragment.

    That is so whether they found a row or not.
    """

    fragment: str
    table: str
    version: str
    slices: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.fragment or not self.table or not self.version or not self.slices:
            raise WireError(
                f"what was looked up has fragment {self.fragment!r}, table {self.table!r}, version {self.version!r} "
                f"and {len(self.slices)} slices; none of these may be empty"
            )


SuspensionFact = Suspended | Skipped | Resumed
BackfillFact = Backfilling | Backfilled
MarkFact = Progress | QueryMark
OwnFact = (
    MarkFact | Shed | Repaired | Standing | SuspensionFact | BackfillFact | LookedUp
)  # what a site states of itself
RelayFact = Counted | Deferred | Delivered  # what only a relay states of a site
Fact = OwnFact | RelayFact


@stored()
@dataclass(frozen=True, slots=True)
class Relayed:
    """A fact of another site, passed on by a relay.

    A progress counts the update rows that the relay itself has sent: those of several sites may be merged in them.
    """

    origin: str
    fact: Fact

    def __post_init__(self) -> None:
        if not self.origin:
            raise WireError(f"a relay passes on a {type(self.fact).__name__} without the name of its site")

    @property
    def fragment(self) -> str:
        return self.fact.fragment


@stored()
@dataclass(frozen=True, slots=True)
class Records:
    """Records of a stream as they were read: complete lines of text, compressed with zstd.

    `raw_bytes` is their size before that. Without any, the origin has looked at the stream, and nothing was new.
    """

    stream: str
    rows: int
    raw_bytes: int
    block: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.stream or self.rows < 0 or self.raw_bytes < 0:
            raise WireError(
                f"records have stream {self.stream!r}, {self.rows} rows and {self.raw_bytes} bytes; a name may not be "
                "empty, nor numbers negative"
            )

    @property
    def fragment(self) -> str:
        """Under what its bytes are counted: records are of no fragment, and are counted under their stream."""
        return self.stream


Message = Updates | OwnFact | Relayed | Records


@dataclass(frozen=True, slots=True)
class Segment:
    """A numbered batch of messages from one site; `epoch` names the life of the origin's state folder."""

    origin: str
    epoch: str
    sequence: int
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if not self.origin or not self.epoch or self.sequence < 0:
            raise WireError(
                f"a segment from {self.origin!r} has epoch {self.epoch!r} and number {self.sequence}; "
                "names may not be empty, nor numbers negative"
            )

    def updates(self) -> Iterator[Updates]:
        return (m for m in self.messages if isinstance(m, Updates))

    def progress(self) -> Iterator[Progress]:
        return (m for m in self.messages if isinstance(m, Progress))

    def marks(self) -> Iterator[MarkFact]:
        return (m for m in self.messages if isinstance(m, MarkFact))

    def shed(self) -> Iterator[Shed | Repaired]:
        return (m for m in self.messages if isinstance(m, Shed | Repaired))

    def standings(self) -> Iterator[Standing]:
        return (m for m in self.messages if isinstance(m, Standing))

    def suspensions(self) -> Iterator[SuspensionFact]:
        return (m for m in self.messages if isinstance(m, SuspensionFact))

    def backfills(self) -> Iterator[BackfillFact]:
        return (m for m in self.messages if isinstance(m, BackfillFact))

    def looked_up(self) -> Iterator[LookedUp]:
        return (m for m in self.messages if isinstance(m, LookedUp))

    def records(self) -> Iterator[Records]:
        return (m for m in self.messages if isinstance(m, Records))

    def relayed(self) -> Iterator[Relayed]:
        return (m for m in self.messages if isinstance(m, Relayed))


def counted_in(segment: Segment) -> Iterator[tuple[str, str, tuple[tuple[int, int], ...]]]:
    """Yield (fragment, site, raw records per slice) of everything that a segment holds partials of."""
    yield from ((u.fragment, segment.origin, u.records) for u in segment.updates() if u.records)
    for relayed in segment.relayed():
        if isinstance(relayed.fact, Counted):
            yield relayed.fragment, relayed.origin, relayed.fact.records
