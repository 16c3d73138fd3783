"""The account of one fragment at a site: what became of every record that its stream has accepted.

Law: accepted = evaluated + owed + suspended + quarantined. `evaluated` counts the records that the fragment's
expressions were evaluated on, whether its condition takes them or not; `owed` those of batches of which only a sample
is in, until they are repaired; `suspended` those that were skipped; `quarantined` those that it failed on. A batch that
leads to none of these leaves records unaccounted for, which is a fault, and shows.

Bound: `MAX_OWED_BATCHES`, as of the debts; a batch that is given up stays owed, without its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.errors import SiteError
from catchment.shedding.debts import MAX_DEBTS
from catchment.storage.codec import stored

MAX_OWED_BATCHES = MAX_DEBTS


@stored()
@dataclass(frozen=True, slots=True)
class BatchAccepted:
    """A micro-batch of a stream has so many records that can be used; what its fragments make of them follows."""

    stream: str
    batch: int
    records: int

    def __post_init__(self) -> None:
        if self.batch < 0 or self.records < 0:
            raise SiteError(
                f"batch {self.batch} of stream {self.stream!r} has {self.records} records; neither is negative"
            )


@stored()
@dataclass
class FragmentAccount:
    """Records of one fragment, by what became of them."""

    accepted: int = 0
    evaluated: int = 0
    suspended: int = 0
    quarantined: int = 0
    given_up: int = 0  # owed, and never to be repaired
    owed: dict[int, int] = field(default_factory=dict)  # by batch
    open_records: int = 0  # of the batch that is being handled, until it is known what became of them
    batch_records: int = 0  # of the newest batch

    @property
    def unaccounted(self) -> int:
        """Records of which nothing is known; 0 unless something is wrong."""
        known = self.evaluated + self.suspended + self.quarantined + self.given_up + sum(self.owed.values())
        return self.accepted - known

    def accept(self, event: BatchAccepted) -> None:
        """Take a batch in; what becomes of it follows in the same entry."""
        self.accepted += event.records
        self.open_records = event.records
        self.batch_records = event.records

    def evaluate(self) -> None:
        """Count the batch as evaluated; partials of a repair have no batch of their own."""
        self.evaluated += self.open_records
        self.open_records = 0

    def skip(self) -> None:
        """Count the batch as skipped."""
        self.suspended += self.open_records
        self.open_records = 0

    def take_skipped(self) -> None:
        """Count what was skipped as evaluated: it was read again from history."""
        self.evaluated += self.suspended
        self.suspended = 0

    def quarantine(self, records: int) -> None:
        """Count records of the evaluated batch as set aside."""
        self.evaluated -= records
        self.quarantined += records

    def quarantine_past(self, records: int) -> None:
        """Count records of the past as set aside: they were skipped before, or read before the fragment was there."""
        skipped = min(records, self.suspended)
        self.suspended -= skipped
        self.accepted += records - skipped
        self.quarantined += records

    def release(self, records: int) -> None:
        """Count records that were set aside as evaluated after all."""
        self.quarantined -= records
        self.evaluated += records

    def owe(self, batch: int, is_repaired: bool) -> None:
        """Count the evaluated batch as owed: only a sample of it is in."""
        self.evaluated -= self.batch_records
        if not is_repaired:
            self.given_up += self.batch_records
            return
        self.owed[batch] = self.batch_records
        while len(self.owed) > MAX_OWED_BATCHES:
            self.given_up += self.owed.pop(min(self.owed))

    def repair(self, batch: int) -> None:
        """Count a batch that was owed as evaluated."""
        self.evaluated += self.owed.pop(batch, 0)

    def give_up(self, batch: int) -> None:
        """Count a batch that was owed as never to be repaired."""
        self.given_up += self.owed.pop(batch, 0)

    def status(self) -> dict[str, int]:
        """Return the account as plain JSON."""
        return {
            "accepted": self.accepted,
            "evaluated": self.evaluated,
            "owed": self.given_up + sum(self.owed.values()),
            "suspended": self.suspended,
            "quarantined": self.quarantined,
            "unaccounted": self.unaccounted,
        }
