"""Another try for records that a fragment has set aside: which of them are current, and how far the try has come.

What a fragment fails on lies in quarantine, one folder per micro-batch. A try takes the batches in order, some at a
time: the partials of the records on which the fragment no longer fails, and the position behind their batches, are one
entry of the journal. Those on which it fails again are written to a folder of this try first, and count from that entry
on; those that they were read from count until then. So a crash before the entry tries the same records again, a crash
after it goes on behind them, and whatever folders it leaves, `is_current` tells which of them count.

Law: each record that was set aside is at any time either in quarantine or in the answers, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from catchment.errors import SiteError
from catchment.storage.codec import stored

SET_ASIDE_BY = "fragment="  # begins the names of the folders of what single fragments have set aside
_RETRY = ".retry="  # in such a name: what was left by a try, before its number


def name_folder(fragment: str, attempt: int = 0) -> str:
    """Return the name of the folder of what a fragment has set aside; or of what a try of that has left."""
    return f"{SET_ASIDE_BY}{fragment}{_RETRY}{attempt}" if attempt else f"{SET_ASIDE_BY}{fragment}"


def read_folder_name(name: str) -> tuple[str, int] | None:
    """Return whose folder that is, and of which try; None if the name means something else."""
    fragment, retry, attempt = name.removeprefix(SET_ASIDE_BY).partition(_RETRY)
    if not name.startswith(SET_ASIDE_BY) or (retry and not attempt.isdigit()):
        return None
    return fragment, int(attempt or 0)


@stored()
@dataclass(frozen=True, slots=True)
class RetryBegun:
    """What a fragment has set aside of the micro-batches before `end` gets another try."""

    fragment: str
    end: int


@stored()
@dataclass(frozen=True, slots=True)
class RecordsRetried:
    """The partials of records that a fragment had set aside, of the micro-batches [first, end), and takes in now.

    `records` counts per slice those that its condition takes, and `released` all that leave the quarantine. What it
    fails on again stays there; `failure` says why, if anything does.
    """

    fragment: str
    attempt: int
    first: int
    end: int
    partials: pa.Table = field(repr=False)
    records: tuple[tuple[int, int], ...] = ()
    released: tuple[tuple[int, int], ...] = ()
    failure: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end or any(count < 0 for _, count in (*self.records, *self.released)):
            raise SiteError(
                f"a try of the batches [{self.first}, {self.end}) took in {self.records} of {self.released}",
                where=f"fragment {self.fragment!r}",
            )


@stored()
@dataclass
class Retry:
    """How often the records that one fragment has set aside were tried again, and how far the newest try has come."""

    attempt: int = 0  # the number of the newest try; 0: there was none
    next_batch: int = 0  # the first batch that this try has not come to
    end: int = 0  # and the first that it does not take
    tried_end: int = 0  # the same of the try before it
    records: int = 0  # that were taken in after all, in the fragment's life
    failure: str = ""  # why some were not, the last time

    @property
    def is_over(self) -> bool:
        """Whether the newest try has come to its end."""
        return self.next_batch >= self.end

    def begin(self, event: RetryBegun) -> None:
        """Begin a try, unless one is under way."""
        if self.is_over and event.end > 0:
            self.attempt += 1
            self.next_batch = 0
            self.end = max(event.end, self.end)
            self.failure = ""

    def expects(self, event: RecordsRetried) -> bool:
        """Return whether this is what comes next, and not known yet."""
        return not self.is_over and (event.attempt, event.first) == (self.attempt, self.next_batch)

    def advance(self, event: RecordsRetried) -> None:
        """Go on behind batches that were tried."""
        self.next_batch = min(event.end, self.end)
        self.records += sum(count for _, count in event.released)
        self.failure = event.failure or self.failure
        if self.is_over:
            self.tried_end = self.end

    def is_current(self, attempt: int, batch: int) -> bool:
        """Return whether what a try has left in quarantine of a batch counts; attempt 0 is what was set aside first.

        Everything before `next_batch` is in the folder of the newest try; what it has not come to is where the try
        before it has left it, or where it was set aside since.
        """
        if batch < self.next_batch:
            return attempt == self.attempt
        return attempt == (self.attempt - 1 if batch < self.tried_end else 0)

    def status(self) -> dict[str, Any]:
        """Return how far it is, as plain JSON."""
        return {
            "attempt": self.attempt,
            "batches": self.end,
            "tried_batches": self.next_batch,
            "records": self.records,
            "failure": self.failure or None,
        }
