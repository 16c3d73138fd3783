"""What an inbox has refused: how often, of whom, why, and when first and last.

A sender that is refused tries again, so the log has the first refusal of a kind at once, and then at most one line per
`LOG_EVERY_US` that says how many there were. Bound: `MAX_ORIGINS` names; refusals of further ones are counted together.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

from catchment.log_fields import about
from catchment.timeline import SECOND_US, Clock

LOG_EVERY_US = 600 * SECOND_US
MAX_ORIGINS = 1024
OTHERS = "(others)"  # the name of all senders beyond the bound, and of those that are not known

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Refused:
    """The refusals of one sender for one reason."""

    first_us: int
    last_us: int = 0
    count: int = 0
    message: str = ""
    logged_us: int | None = None
    logged_count: int = 0


class Refusals:
    """Counts refusals by sender and reason; not safe for threads by itself."""

    def __init__(self, clock: Clock) -> None:
        self.by_reason: Counter[str] = Counter()
        self._clock = clock
        self._by_origin: dict[str, dict[str, _Refused]] = {}

    def note(self, origin: str | None, reason: str, message: str, *, retryable: bool) -> None:
        """Count a refusal, and log it unless its kind was logged just before."""
        now_us = self._clock.now_us()
        self.by_reason[reason] += 1
        known = self._of(origin).setdefault(reason, _Refused(now_us))
        known.last_us = now_us
        known.count += 1
        known.message = message
        if known.logged_us is None or not 0 <= now_us - known.logged_us < LOG_EVERY_US:
            level = logging.INFO if retryable else logging.WARNING
            count = known.count - known.logged_count
            told = "refused, %s: %s (%d since the last line)"
            _log.log(level, told, reason, message, count, extra=about(site=origin))
            known.logged_us = now_us
            known.logged_count = known.count

    def status(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the refusals of each sender by reason, as plain JSON."""
        return {
            origin: {
                reason: {"count": r.count, "first_us": r.first_us, "last_us": r.last_us, "message": r.message}
                for reason, r in refused.items()
            }
            for origin, refused in self._by_origin.items()
        }

    def _of(self, origin: str | None) -> dict[str, _Refused]:
        is_named = origin is not None and (origin in self._by_origin or len(self._by_origin) < MAX_ORIGINS)
        name = origin if origin is not None and is_named else OTHERS
        return self._by_origin.setdefault(name, {})
