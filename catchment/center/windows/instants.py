"""Instants in order, so that those between two others are found without looking at all."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator


class SortedInstants:
    """A set of instants in order of time; mostly later ones come and earlier ones go."""

    def __init__(self, instants_us: Iterable[int] = ()) -> None:
        self._ordered = sorted(set(instants_us))

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ordered)

    def __contains__(self, instant_us: int) -> bool:
        place = bisect_left(self._ordered, instant_us)
        return place < len(self._ordered) and self._ordered[place] == instant_us

    def add(self, instant_us: int) -> None:
        """Put an instant in; nothing changes if it is there."""
        if not self._ordered or instant_us > self._ordered[-1]:
            self._ordered.append(instant_us)
        elif instant_us not in self:
            insort(self._ordered, instant_us)

    def discard(self, instant_us: int) -> None:
        """Take an instant out, if it is there."""
        if instant_us in self:
            del self._ordered[bisect_left(self._ordered, instant_us)]

    def before(self, end_us: int) -> list[int]:
        """Return those before an instant."""
        return self._ordered[: bisect_left(self._ordered, end_us)]

    def between(self, start_us: int, end_us: int) -> list[int]:
        """Return those in [start, end)."""
        return self._ordered[bisect_left(self._ordered, start_us) : bisect_left(self._ordered, end_us)]
