"""What a site owes: micro-batches of which only a sample is in the answers, until they are repaired.

Part of the site core's state, and so as durable as it is. A debt says where the records of its batch still are, at
which rate each fragment took them, and what was believed of their event times, so that a repair finds exactly those
that were left out. Bound: `MAX_DEBTS` batches a site; at the bound the oldest is given up, and the center hears of
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from catchment.errors import SiteError
from catchment.shedding.places import GroupRates
from catchment.storage.codec import stored
from catchment.wire.messages import Repaired, Shed

MAX_DEBTS = 10_000

Lacking = tuple[tuple[int, int], ...]  # (slice, about how many records)
Spare = tuple[tuple[str, float], ...]  # (a column as Spark SQL, the size beyond which its records were all taken)


@stored()
@dataclass(frozen=True, slots=True)
class Taken:
    """The share of a batch that one fragment took, and what its slices lack; `repair` says whether it will get the
    rest. Records with a value beyond a limit in `spare` it took all. With `groups` the rates are by group, and `rate`
    is the lowest of them."""

    fragment: str
    rate: float
    lacking: Lacking
    repair: bool = True
    spare: Spare = ()
    groups: GroupRates | None = None


@stored()
@dataclass(frozen=True, slots=True)
class BatchShed:
    """A micro-batch was sampled, or only its history put off. Its records are [start, end) of its source, or in history
    where `start` is None: there the files of the batch were told apart by their sizes (`by_size`) or by their numbers.

    `limits` are the event times that were believed (see `catchment.site.plausible`), None: all of them.
    """

    stream: str
    batch: int
    taken: tuple[Taken, ...]
    start: int | None = None
    end: int | None = None
    limits: tuple[int, int, int, int] | None = None
    by_size: bool = False

    def __post_init__(self) -> None:
        nothing = not self.taken and self.start is None
        if nothing or any(not 0.0 < t.rate < 1.0 for t in self.taken):
            raise SiteError(
                f"batch {self.batch} of {self.stream!r} was shed by {self.taken}: a rate is between 0 and 1"
            )


@stored()
@dataclass(frozen=True, slots=True)
class BatchRepaired:
    """These fragments have got the rest of a batch; an empty list: only its history was caught up on."""

    stream: str
    batch: int
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Debt:
    """What is still owed of one batch."""

    batch: int
    rates: tuple[tuple[str, float], ...]
    start: int | None = None
    end: int | None = None
    limits: tuple[int, int, int, int] | None = None
    kept: bool = False  # its history was caught up on; its sample is still told by places in the source
    spares: tuple[tuple[str, Spare], ...] = ()  # by fragment
    groups: tuple[tuple[str, GroupRates], ...] = ()  # by fragment
    by_size: bool = False

    @property
    def in_history(self) -> bool:
        """Whether its records have been written to history."""
        return self.start is None or self.kept


class DebtBook:
    """The debts of a site, by stream, oldest first."""

    def __init__(self, saved: Sequence[Any] = ()) -> None:
        self._debts = {(stream, d["batch"]): _debt(d) for stream, d in saved}

    def __len__(self) -> int:
        return len(self._debts)

    def of(self, stream: str) -> tuple[Debt, ...]:
        return tuple(d for (s, _), d in list(self._debts.items()) if s == stream)  # a copy: repairs look from a thread

    def shed(self, event: BatchShed) -> Iterator[Shed | Repaired]:
        """Note a debt; the facts that the center must hear."""
        for taken in event.taken:
            named = () if taken.groups is None else tuple((str(v), rate) for v, rate in taken.groups.rates)
            yield Shed(taken.fragment, event.batch, taken.rate, taken.lacking, named)
            if not taken.repair:
                yield Repaired(taken.fragment, event.batch, gave_up=True)
        rates = tuple((t.fragment, t.rate) for t in event.taken if t.repair)
        if rates or event.start is not None:
            key = event.stream, event.batch
            spares = tuple((t.fragment, t.spare) for t in event.taken if t.repair and t.spare)
            groups = tuple((t.fragment, t.groups) for t in event.taken if t.repair and t.groups is not None)
            self._debts[key] = Debt(event.batch, rates, event.start, event.end, event.limits, False, spares, groups,
                                    event.by_size)  # fmt: skip
        while len(self._debts) > MAX_DEBTS:
            oldest = next(iter(self._debts))
            yield from (Repaired(f, oldest[1], gave_up=True) for f, _ in self._debts.pop(oldest).rates)

    def repaired(self, event: BatchRepaired) -> Iterator[Repaired]:
        """Fragments have got the rest of a batch, and all of it is in history."""
        key = event.stream, event.batch
        debt = self._debts.get(key)
        if debt is None:
            raise SiteError(f"nothing is owed of batch {event.batch} of stream {event.stream!r}")
        rates = tuple((f, r) for f, r in debt.rates if f not in event.fragments)
        if rates:
            self._debts[key] = replace(debt, rates=rates, kept=True)
        else:
            del self._debts[key]
        yield from (Repaired(f, event.batch) for f, _ in debt.rates if f in event.fragments)

    def dump(self) -> list[Any]:
        return [[stream, asdict(debt)] for (stream, _), debt in self._debts.items()]


def _debt(saved: dict[str, Any]) -> Debt:
    rates = tuple((f, r) for f, r in saved["rates"])
    limits = None if saved["limits"] is None else tuple(saved["limits"])
    spares = tuple((f, tuple((sql, limit) for sql, limit in spare)) for f, spare in saved.get("spares", ()))
    groups = tuple((f, GroupRates(g["key"], tuple((v, r) for v, r in g["rates"]))) for f, g in saved.get("groups", ()))
    kept, by_size = saved.get("kept", False), saved.get("by_size", False)
    return Debt(saved["batch"], rates, saved["start"], saved["end"], limits, kept, spares, groups, by_size)
