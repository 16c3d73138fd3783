"""What a site still owes: micro-batches of which only a sample is in the answers, until they are repaired.

The debts are part of the site core's state, and as durable. A debt says where the records of its batch are, how each
fragment sampled them, and which event times were accepted, so that a repair finds exactly the records that were left
out. A site has at most `MAX_DEBTS` debts: at the bound it gives up the oldest and tells the center.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from catchment.errors import SiteError
from catchment.shedding.sampler import Sampler
from catchment.storage.codec import stored
from catchment.wire.messages import Repaired, Shed

MAX_DEBTS = 10_000  # debts of a site; at the bound the oldest is given up

LackingRecords = tuple[tuple[int, int], ...]  # (slice, about how many records it lacks)
EventTimeLimits = tuple[int, int, int, int]  # the fields of `catchment.site.plausible.PlausibleTimes`


@stored()
@dataclass(frozen=True, slots=True)
class FragmentSample:
    """How one fragment sampled a batch and what its slices lack; `repair` says whether it will get the rest."""

    fragment: str
    sampler: Sampler
    lacking: LackingRecords
    repair: bool = True


@stored(version=2, migrations={1: dict})  # version 2 has source_place
@dataclass(frozen=True, slots=True)
class BatchShed:
    """A micro-batch was sampled, or only the writing of its history was deferred.

    Its records are the rows [start, end) of its source, or in history where `source_rows` is None. With a
    `source_place`, which the source understands, these numbers are counted within the batch. `limits` are the event
    times that were accepted; None accepts all of them.
    """

    stream: str
    batch: int
    samples: tuple[FragmentSample, ...]
    source_rows: tuple[int, int] | None = None
    limits: EventTimeLimits | None = None
    source_place: str = ""

    def __post_init__(self) -> None:
        nothing_shed = not self.samples and self.source_rows is None
        if nothing_shed or any(not 0.0 < s.sampler.lowest_rate < 1.0 for s in self.samples):
            raise SiteError(
                f"batch {self.batch} of stream {self.stream!r} was shed by {self.samples}: a rate is between 0 and 1"
            )


@stored()
@dataclass(frozen=True, slots=True)
class BatchRepaired:
    """A batch is in history and these fragments have received the rest of it; there may be none."""

    stream: str
    batch: int
    fragments: tuple[str, ...]


@stored()
@dataclass(frozen=True, slots=True)
class BatchGivenUp:
    """What is owed of a batch will never be sent: its source no longer has the records."""

    stream: str
    batch: int


@stored(version=2, migrations={1: dict})  # version 2 has source_place
@dataclass(frozen=True, slots=True)
class ShedDebt:
    """What a site still owes of one batch: the rest of what each of some fragments sampled."""

    batch: int
    samplers: tuple[tuple[str, Sampler], ...]  # by fragment
    source_rows: tuple[int, int] | None = None
    limits: EventTimeLimits | None = None
    is_written: bool = False  # its records were read from the source again and written to history
    source_place: str = ""

    @property
    def fragments(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.samplers)

    @property
    def is_in_history(self) -> bool:
        """Whether its records are in history."""
        return self.source_rows is None or self.is_written

    @property
    def highest_rate(self) -> float:
        """Return the highest rate at which any fragment sampled the batch."""
        return max((sampler.highest_rate for _, sampler in self.samplers), default=1.0)


@stored()
@dataclass
class ShedDebts:
    """The debts of a site by stream and batch, oldest first."""

    debts: dict[tuple[str, int], ShedDebt] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.debts)

    def of(self, stream: str) -> tuple[ShedDebt, ...]:
        # Repairs look from another thread: iterate over a copy.
        return tuple(debt for (owner, _), debt in list(self.debts.items()) if owner == stream)

    def add(self, event: BatchShed) -> Iterator[Shed | Repaired]:
        """Add the debt of a batch and yield the facts that the center must hear."""
        for sample in event.samples:
            yield _shed_fact(event.batch, sample)
            if not sample.repair:
                yield Repaired(sample.fragment, event.batch, gave_up=True)
        samplers = tuple((s.fragment, s.sampler) for s in event.samples if s.repair)
        if samplers or event.source_rows is not None:
            debt = ShedDebt(event.batch, samplers, event.source_rows, event.limits, source_place=event.source_place)
            self.debts[event.stream, event.batch] = debt
        while len(self.debts) > MAX_DEBTS:
            yield from self._give_up_oldest()

    def settle(self, event: BatchRepaired) -> Iterator[Repaired]:
        """Settle what fragments have received and yield the facts that the center must hear."""
        key = event.stream, event.batch
        debt = self.debts.get(key)
        if debt is None:
            raise SiteError(f"nothing is owed of batch {event.batch} of stream {event.stream!r}")
        remaining = tuple((name, sampler) for name, sampler in debt.samplers if name not in event.fragments)
        if remaining:
            self.debts[key] = replace(debt, samplers=remaining, is_written=True)
        else:
            del self.debts[key]
        yield from (Repaired(name, event.batch) for name, _ in debt.samplers if name in event.fragments)

    def give_up(self, event: BatchGivenUp) -> Iterator[Repaired]:
        """Give up what is owed of a batch and yield the facts that the center must hear."""
        debt = self.debts.pop((event.stream, event.batch), None)
        if debt is not None:
            yield from (Repaired(name, event.batch, gave_up=True) for name, _ in debt.samplers)

    def _give_up_oldest(self) -> Iterator[Repaired]:
        yield from self.give_up(BatchGivenUp(*next(iter(self.debts))))


def _shed_fact(batch: int, sample: FragmentSample) -> Shed:
    """Return what the center needs to know of a sample: the lowest rate, and the rates of groups by their names."""
    groups = sample.sampler.groups
    rates = () if groups is None else tuple((str(value), rate) for value, rate in groups.rates)
    return Shed(sample.fragment, batch, sample.sampler.lowest_rate, sample.lacking, rates)
