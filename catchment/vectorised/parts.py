"""Files of a micro-batch cut into parts, and the parts shared among tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from catchment.records.object_store import S3Settings


@dataclass(frozen=True)
class FilePart:
    """A file of a micro-batch, or a part of it: some row groups, or the lines that begin in a range of bytes.

    Its number is unique within the batch. A range that `continues` another one of the file may begin within a line.
    """

    path: str
    number: int
    row_groups: tuple[int, ...] | None = None
    start: int = 0
    end: int | None = None
    continues: bool = False
    store: S3Settings | None = None  # where `path` is the address of an object


def share_parts(parts: Sequence[tuple[FilePart, int]], tasks: int) -> list[list[FilePart]]:
    """Return the parts, given with their sizes, as shares of about equal size, in their order."""
    total = max(sum(size for _, size in parts), 1)
    shares: list[list[FilePart]] = [[] for _ in range(tasks)]
    passed = 0
    for part, size in parts:
        shares[min((passed + size // 2) * tasks // total, tasks - 1)].append(part)
        passed += size
    return [share for share in shares if share]
