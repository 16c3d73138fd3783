"""The reader of one stream at a site, as it is watched: whether it reads, waits, stands still or has died.

`idle` and `stalled` are told apart by signs of life: a reader that has found nothing to read says so again and again;
one that stands still says nothing. What a stalled reader has not read may still come, so nothing is concluded from its
silence (`ReadingPaused`).

A reader that dies while its process lives is started again, after a pause that doubles from `FIRST_PAUSE_US` up to
`LONGEST_PAUSE_US`. An outage (what it reads is away) is waited for without end; anything else, `max_restarts` times
without a batch in between, and then the reader has failed: others go on, and somebody has to look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from catchment.storage.codec import stored
from catchment.timeline import SECOND_US

NEVER_STARTED = "never started"
RUNNING = "running"
IDLE = "idle"
STALLED = "stalled"
RETRYING = "retrying"
FAILED = "failed"
ENDED = "ended"
NOT_READING = (STALLED, RETRYING, FAILED)  # states in which silence means nothing

IDLE_AFTER_US = 10 * SECOND_US  # without a batch that has records
STALLED_AFTER_US = 60 * SECOND_US  # without a sign of life; longer where batches take long
STALLED_BATCHES = 10  # batches of the usual duration that a reader may be silent
FIRST_PAUSE_US = SECOND_US
LONGEST_PAUSE_US = 60 * SECOND_US
MAX_RESTARTS = 8  # in a row, without a batch between them


@stored()
@dataclass(frozen=True, slots=True)
class ReadingPaused:
    """The reader of this stream stands still or has died: that nothing comes means nothing."""

    stream: str


@stored()
@dataclass(frozen=True, slots=True)
class ReadingResumed:
    """The reader of this stream reads again."""

    stream: str


@dataclass
class ReaderWatch:
    """What is known of one reader, by the signs that it gives."""

    max_restarts: int = MAX_RESTARTS
    started_us: int | None = None
    progress_us: int | None = None  # when a batch was last committed
    sign_us: int = 0  # when it last gave a sign of life
    read_us: int = 0  # when a batch with records was last committed
    batch_us: int = 0  # how long the last batch took
    restarts: int = 0  # in its life
    reason: str = ""  # why it died last
    ended: bool = False
    has_failed: bool = False
    next_start_us: int | None = None  # when it is started again
    _failures: int = field(default=0, init=False)  # in a row
    _signature: object = field(default=None, init=False)

    def note_started(self, now_us: int) -> None:
        """Note that it was started, or started again."""
        self.started_us = now_us
        self.sign_us = now_us
        self.next_start_us = None

    def note_sign(self, signature: object, is_waiting: bool, now_us: int) -> None:
        """Note what it shows: something else than before is a sign of life, and so is that it waits for records."""
        if is_waiting or signature != self._signature:
            self.sign_us = now_us
        self._signature = signature

    def note_batch(self, rows: int, took_us: int, now_us: int) -> None:
        """Note a batch that was committed."""
        self.progress_us = now_us
        self.sign_us = now_us
        self.batch_us = took_us
        self.reason = ""
        self._failures = 0
        if rows:
            self.read_us = now_us

    def note_death(self, reason: str, is_outage: bool, now_us: int) -> None:
        """Note that it has died; it is started again after a pause, unless that was tried often enough."""
        self.reason = reason
        self._failures += 1
        if not is_outage and self._failures > self.max_restarts:
            self.has_failed = True
            self.next_start_us = None
            return
        self.restarts += 1
        self.next_start_us = now_us + min(FIRST_PAUSE_US << min(self._failures - 1, 10), LONGEST_PAUSE_US)

    def is_due(self, now_us: int) -> bool:
        """Return whether it is to be started again now."""
        return self.next_start_us is not None and now_us >= self.next_start_us

    def state(self, now_us: int) -> str:
        """Return how it is."""
        if self.has_failed:
            return FAILED
        if self.next_start_us is not None:
            return RETRYING
        if self.ended:
            return ENDED
        if self.started_us is None:
            return NEVER_STARTED
        if now_us - self.sign_us > max(STALLED_AFTER_US, STALLED_BATCHES * self.batch_us):
            return STALLED
        return RUNNING if now_us - max(self.read_us, self.started_us) <= IDLE_AFTER_US else IDLE

    def status(self, now_us: int) -> dict[str, Any]:
        """Return how it is, as plain JSON."""
        return {
            "state": self.state(now_us),
            "last_progress_us": self.progress_us,
            "last_batch_us": self.batch_us,
            "restarts": self.restarts,
            "reason": self.reason,
        }
