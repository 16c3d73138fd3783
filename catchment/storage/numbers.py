"""A set of numbers that fills up from 0: which segments were seen, or acked.

Kept as a low mark (all below are in the set) and the few above it, so that it stays small however long a link
lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class NumberSet:
    """Numbers from 0 that mostly arrive in order. `low` is the lowest number that is missing."""

    def __init__(self, low: int = 0, above: Iterable[int] = ()) -> None:
        self.low = low
        self._above: set[int] = set()
        for number in above:
            self.add(number)

    def __contains__(self, number: int) -> bool:
        return number < self.low or number in self._above

    @property
    def end(self) -> int:
        """One more than the highest number in the set."""
        return max(self._above, default=self.low - 1) + 1

    def add(self, number: int) -> bool:
        """Put a number in; False if it was there."""
        if number in self:
            return False
        self._above.add(number)
        while self.low in self._above:
            self._above.remove(self.low)
            self.low += 1
        return True

    def to_record(self) -> dict[str, Any]:
        """A JSON form: the low mark and the ranges [first, end) above it."""
        ranges: list[list[int]] = []
        for number in sorted(self._above):
            if ranges and ranges[-1][1] == number:
                ranges[-1][1] = number + 1
            else:
                ranges.append([number, number + 1])
        return {"low": self.low, "above": ranges}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> NumberSet:
        return cls(record["low"], (n for first, end in record["above"] for n in range(first, end)))
