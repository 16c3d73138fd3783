"""The chain of a link: one checksum over all its segments so far, in the order of their numbers.

Both ends of a link keep it. Numbers alone cannot tell a site that goes on where it was from one that was restored from
an older copy of its folder, or from its clone: such a site gives numbers that are known to segments that are not. So
the ends compare what the segments held. Law: two chains agree at a number exactly when all segments below it had the
same bytes (up to a collision of checksums).

A folder of a version without chains has none until the ends have agreed on a number once; from there on it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

START = "0" * 16  # the chain of no segments


class SegmentChain:
    """The chain up to `base`, and the checksums of the segments at `base` and above that are known."""

    def __init__(self, base: int = 0, value: str | None = START, digests: Mapping[int, int] | None = None) -> None:
        self.base = base
        self.value = value  # None: it is not known
        self._digests = dict(digests or {})

    def add(self, number: int, digest: int) -> None:
        """Note the checksum of a segment; those below the base are in the chain already, or never will be."""
        if number >= self.base:
            self._digests[number] = digest

    def digest_of(self, number: int) -> int | None:
        """Return the checksum of a segment that is not yet in the chain."""
        return self._digests.get(number)

    def advance_to(self, number: int) -> None:
        """Take all segments below a number into the chain."""
        while self.base < number:
            self.value = _link(self.value, self._digests.pop(self.base, None))
            self.base += 1

    def at(self, number: int) -> str | None:
        """Return the chain of all segments below a number; None where that is not known."""
        if number < self.base:
            return None
        value = self.value
        for below in range(self.base, number):
            value = _link(value, self._digests.get(below))
        return value

    def adopt(self, number: int, value: str) -> None:
        """Begin with what the other end has, at a number where nothing is known here."""
        self._digests = {known: digest for known, digest in self._digests.items() if known >= number}
        self.base = number
        self.value = value

    def to_record(self, numbers: Collection[int]) -> dict[str, Any]:
        """Return the chain for a JSON record, with the checksums of those of the numbers that are not in it yet."""
        digests = {str(number): self._digests[number] for number in numbers if number in self._digests}
        return {"base": self.base, "value": self.value, "digests": digests}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SegmentChain:
        """Return the chain of a JSON record."""
        return cls(record["base"], record["value"], {int(n): digest for n, digest in record["digests"].items()})


def _link(value: str | None, digest: int | None) -> str | None:
    if value is None or digest is None:
        return None
    return hashlib.blake2b(bytes.fromhex(value) + digest.to_bytes(4, "little"), digest_size=8).hexdigest()
