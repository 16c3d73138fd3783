"""A set of numbers that fills up from 0: which segments were seen, or acknowledged.

It holds the lowest missing number and the few members above it, so that it stays small however long a link lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class NumberSet:
    """Numbers from 0 that mostly arrive in order; all below `lowest_missing` are in it."""

    def __init__(self, lowest_missing: int = 0, above: Iterable[int] = ()) -> None:
        self.lowest_missing = lowest_missing
        self._above: set[int] = set()
        for number in above:
            self.add(number)

    def __contains__(self, number: int) -> bool:
        return number < self.lowest_missing or number in self._above

    @property
    def end(self) -> int:
        """One more than the highest number in the set; 0 if it is empty."""
        return max(self._above, default=self.lowest_missing - 1) + 1

    @property
    def above(self) -> frozenset[int]:
        """The members above the lowest missing number."""
        return frozenset(self._above)

    def add(self, number: int) -> bool:
        """Put a number in; return False if it was there."""
        if number in self:
            return False
        self._above.add(number)
        while self.lowest_missing in self._above:
            self._above.remove(self.lowest_missing)
            self.lowest_missing += 1
        return True

    def to_record(self) -> dict[str, Any]:
        """Return the set for a JSON record: the lowest missing number and the ranges [first, end) above it."""
        ranges: list[list[int]] = []
        for number in sorted(self._above):
            if ranges and ranges[-1][1] == number:
                ranges[-1][1] = number + 1
            else:
                ranges.append([number, number + 1])
        return {"lowest_missing": self.lowest_missing, "above": ranges}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> NumberSet:
        """Return the set of a JSON record."""
        return cls(record["lowest_missing"], (n for first, end in record["above"] for n in range(first, end)))
