"""Why an update left a site: one word each, counted per fragment and shown by `show status`.

Every update that leaves has exactly one reason, so the counts add up to the updates sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DUE = "due"
LATE = "late"
RELIEF = "relief"
STREAMED = "streamed"
OVER_SIZE = "over-size"
FINISHED = "finished"
DRAIN = "drain"
PROBE = "probe"

REASONS: Mapping[str, str] = {
    DUE: "its window is closing",
    LATE: "its window had already been announced",
    RELIEF: "the cache is at its bound",
    STREAMED: "the policy sends every partial as it comes",
    OVER_SIZE: "the cache holds more than the policy's size",
    FINISHED: "unlikely to return, and the link has room",
    DRAIN: "the link could not carry all at the end: the least likely to return go first",
    PROBE: "the link is idle and is asked what it can do",
}


@dataclass
class Tally:
    """Updates by reason, and what the policy said when it last let something go."""

    counts: Counter[str] = field(default_factory=Counter)
    last: str = ""

    def add(self, reason: str, updates: int, detail: str = "") -> None:
        if updates:
            self.counts[reason] += updates
            self.last = detail or REASONS.get(reason, reason)

    def dump(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "last": self.last}

    @classmethod
    def load(cls, dump: Mapping[str, Any]) -> Tally:
        return cls(Counter(dump["counts"]), dump["last"])
