"""The versions of frames: those that this catchment reads and writes, and the one that the two ends of a link use.

A receiver says which versions it reads when a sender connects; one that says nothing is of a release that read the
first version of these only. The sender writes the newest version that both know, from its next segment on. Before it
was told it writes the first one, which every release that is upgraded from reads. So whichever end of a link is
upgraded first, both understand each other, and what waits in an outbox is sent as it is: a receiver that was upgraded
still reads the versions before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

PREVIOUS_VERSION = 2  # tables are compressed by zstd; that of the release before, which says nothing of versions
DICTIONARY_VERSION = 3  # small tables are compressed with a dictionary of what Arrow's tables have in common
NEWEST_VERSION = 4  # small tables are plain columns, and headers are compressed, where that is shorter
READ_VERSIONS = (PREVIOUS_VERSION, DICTIONARY_VERSION, NEWEST_VERSION)

# What a process says that it reads, and writes: all that it can. Tests let it be of the previous release.
SPOKEN_VERSIONS: tuple[int, ...] = READ_VERSIONS


def choose_version(written: Collection[int], read: Collection[int]) -> int | None:
    """Return the newest version that a sender writes and a receiver reads; None if there is none."""
    return max(set(written) & set(read), default=None)


def describe_versions(versions: Collection[int]) -> str:
    """Return versions as a text: "version 2", "versions 2, 3 and 4"."""
    *others, last = map(str, sorted(versions))
    return f"versions {', '.join(others)} and {last}" if others else f"version {last}"


class VersionsByNumber:
    """Which version the segments of a link have, by their numbers: each change is (first number, version)."""

    def __init__(self, changes: Sequence[Sequence[int]] = ()) -> None:
        self._changes = [(int(first), int(version)) for first, version in changes]

    def of(self, number: int) -> int:
        """Return the version of a segment."""
        return next((version for first, version in reversed(self._changes) if first <= number), PREVIOUS_VERSION)

    def change(self, first: int, version: int) -> None:
        """Let segments from a number on have another version."""
        self._changes = [change for change in self._changes if change[0] < first]
        self._changes.append((first, version))

    def to_record(self, lowest: int) -> list[list[int]]:
        """Return the changes for a JSON record, without those that only numbers below the lowest have."""
        kept = [(lowest, self.of(lowest)), *(change for change in self._changes if change[0] > lowest)]
        return [list(change) for change in kept]
