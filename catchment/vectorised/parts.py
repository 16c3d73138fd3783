"""Files or offsets of a micro-batch cut into parts, and the parts shared among tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

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


@dataclass(frozen=True)
class TopicPart:
    """The records of one partition of a topic with offsets [start, end); its number is unique within the batch."""

    number: int
    partition: int
    start: int
    end: int


Part = TypeVar("Part", FilePart, TopicPart)


def split_offsets(parts: Sequence[TopicPart], tasks: int, small_rows: int) -> list[list[TopicPart]]:
    """Return ranges of offsets as parts for up to this many tasks; those that together are small are left to one."""
    total = sum(part.end - part.start for part in parts)
    if total <= small_rows:
        return [list(parts)] if parts else []
    cut: list[tuple[TopicPart, int]] = []
    for part in parts:
        size = part.end - part.start
        count = max(1, size * tasks // total)
        edges = [part.start + size * n // count for n in range(count + 1)]
        cut += [(TopicPart(len(cut) + n, part.partition, a, b), b - a) for n, (a, b) in enumerate(pairwise(edges))]
    return share_parts(cut, tasks)


def share_parts(parts: Sequence[tuple[Part, int]], tasks: int) -> list[list[Part]]:
    """Return the parts, given with their sizes, as shares of about equal size, in their order."""
    total = max(sum(size for _, size in parts), 1)
    shares: list[list[Part]] = [[] for _ in range(tasks)]
    passed = 0
    for part, size in parts:
        shares[min((passed + size // 2) * tasks // total, tasks - 1)].append(part)
        passed += size
    return [share for share in shares if share]
