"""Blocks of complete lines of text files, with the beginning and the end of each line.

Lines end as for Spark: with a line feed, a carriage return, or both. A part of a file has the lines that begin in its
range of bytes; the last of them may end behind it.
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from catchment.arrays import Ints, Mask
from catchment.files.objects import open_file
from catchment.files.watch import FilePiece
from catchment.vectorised.coercion import NotVectorisedError
from catchment.vectorised.parts import FilePart, share_parts

BLOCK_BYTES = 8 << 20  # of text that is parsed at a time
MAX_LINE_BYTES = 64 << 20
_UNPACKED = (".gz", ".bz2")  # what a file is compressed with is known by its suffix, as by Spark
_OTHER_CODECS = (".zst", ".lz4", ".snappy", ".deflate", ".xz")
_LINE_FEED = 10


@dataclass(frozen=True)
class LineBlock:
    """Lines of text: `starts` and `ends` say where each is in `data`, without what ends it."""

    data: bytes
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, data: bytes) -> LineBlock:
        """Return the lines of some bytes, which are UTF-8."""
        if not data.isascii():
            try:
                data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise NotVectorisedError(f"a line is not UTF-8: {error.reason}") from error
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data.endswith(b"\n"):
            data += b"\n"
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
        return cls(data, starts, ends)

    @property
    def rows(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Ints:
        return self.ends - self.starts

    def text(self, row: int) -> str:
        """Return a line."""
        return self.data[self.starts[row] : self.ends[row]].decode("utf-8")

    def joined(self, first: int, end: int) -> bytes:
        """Return the lines [first, end), each with a line feed."""
        return self.data[self.starts[first] : self.ends[end - 1] + 1]

    def first_bytes(self) -> Ints:
        """Return the first byte of each line; that of an empty one is a line feed."""
        return np.frombuffer(self.data, np.uint8)[self.starts].astype(np.int64)

    def last_bytes(self) -> Ints:
        """Return the last byte of each line; that of an empty one is a line feed."""
        return np.frombuffer(self.data, np.uint8)[np.maximum(self.ends - 1, self.starts)].astype(np.int64)

    def keep(self, chosen: Mask) -> LineBlock:
        """Return the chosen lines."""
        if chosen.all():
            return self
        rows = np.flatnonzero(chosen)
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)  # lines that stand together are copied together
        data = b"".join(self.joined(int(run[0]), int(run[-1]) + 1) for run in runs if len(run))
        lengths = self.lengths[rows] + 1
        ends = np.cumsum(lengths) - 1
        return LineBlock(data, ends - lengths + 1, ends)

    def texts_unless_blank(self, chosen: Mask) -> list[str]:
        """Return the chosen lines but for those that have only spaces, which mean nothing in a file."""
        found = (self.text(row) for row in np.flatnonzero(chosen).tolist())
        return [text for text in found if text.strip(" ")]


def read_blocks(part: FilePart) -> Iterator[LineBlock]:
    """Yield the lines of a part of a text file."""
    suffix = Path(part.path).suffix.lower()
    if suffix in _OTHER_CODECS:
        raise NotVectorisedError(f"{part.path} is compressed in a way that only Spark reads here")
    if suffix not in _UNPACKED:
        with open_file(part.path, part.store) as file:
            yield from _read_range(file, part)
        return
    try:
        with (
            open_file(part.path, part.store) as packed,
            gzip.open(packed) if suffix == ".gz" else bz2.open(packed) as unpacked,
        ):
            yield from _cut(cast(BinaryIO, unpacked), None)
    except EOFError as error:
        raise NotVectorisedError(f"{part.path} is cut off") from error


def split_text(pieces: Sequence[FilePiece], tasks: int, small_bytes: int) -> list[list[FilePart]]:
    """Return pieces of text files as parts for up to this many tasks, of about equal sizes and in their order.

    Large pieces are cut, and the cuts are moved to the ends of lines when they are read; pieces that together are small
    are left to one task.
    """
    total = sum(piece.end - piece.start for piece in pieces)
    if total <= small_bytes:
        tasks = 1
    parts: list[tuple[FilePart, int]] = []
    for piece in pieces:
        size = piece.end - piece.start
        if is_compressed(piece.path):
            parts.append((FilePart(piece.path, len(parts), store=piece.store), size))
            continue
        count = max(1, size * tasks // max(total, 1)) if tasks > 1 else 1
        cuts = [piece.start + size * n // count for n in range(count + 1)]
        for start, end in pairwise(cuts):
            continues = start > piece.start
            part = FilePart(piece.path, len(parts), start=start, end=end, continues=continues, store=piece.store)
            parts.append((part, end - start))
    return share_parts(parts, tasks)


def is_compressed(path: str) -> bool:
    """Return whether a file is compressed, so that it cannot be cut into ranges of bytes."""
    return Path(path).suffix.lower() in (*_UNPACKED, *_OTHER_CODECS)


def _read_range(file: BinaryIO, part: FilePart) -> Iterator[LineBlock]:
    """Yield the lines that begin within the range of a part."""
    if part.end is None:
        yield from _cut(file, None)
        return
    at = part.start
    if part.continues:  # another part has the line that this range begins in, unless it begins with one
        file.seek(part.start - 1)
        at = part.start - 1 + len(_rest_of_line(file))
    file.seek(at)
    if at < part.end:
        yield from _cut(file, part.end - at)


def _cut(file: BinaryIO, wanted: int | None) -> Iterator[LineBlock]:
    """Yield lines until `wanted` bytes are read, and the rest of the last line; None: until the file ends."""
    begun = b""
    while wanted is None or wanted > 0:
        size = BLOCK_BYTES if wanted is None else min(BLOCK_BYTES, wanted)
        read = file.read(size)
        if not read:
            break
        if wanted is not None:
            wanted -= len(read)
            if wanted == 0 and not read.endswith(b"\n"):
                read += _rest_of_line(file)
        data = begun + read
        end = data.rfind(b"\n") + 1
        begun = data[end:]
        if len(begun) > MAX_LINE_BYTES:
            raise NotVectorisedError("a line is very long")
        if end:
            yield LineBlock.of(data[:end])
    if begun:
        yield LineBlock.of(begun)


def _rest_of_line(file: BinaryIO) -> bytes:
    rest = file.readline(MAX_LINE_BYTES)
    if len(rest) == MAX_LINE_BYTES:
        raise NotVectorisedError("a line is very long")
    return rest


def flag(rows: int, chosen: Sequence[int]) -> Mask:
    """Return a mask of so many rows with these chosen."""
    mask = np.zeros(rows, dtype=bool)
    mask[list(chosen)] = True
    return mask
