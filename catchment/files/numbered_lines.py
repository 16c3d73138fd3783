"""Lines of text files, numbered within the batch that reads them, so that a sample of them is chosen by numbers alone.

A file is cut into parts at ends of lines, and each part says which number its first line has. With them goes a digest
of what was read, so that whoever reads the lines again, later, finds the same ones: under the name that the file had,
under another one if it was renamed, or not at all. A file is found by a digest of samples of it; when a part is read
every byte of it is compared, because nothing else has the records that were left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import EngineError
from catchment.files.folder import WatchedFolder
from catchment.files.lines import without_mark
from catchment.files.watch import COMPRESSED, FileChangedError, FilePiece

PART_BYTES = 32 << 20  # of a file that are read together
_BLANK = re.compile(rb"(?:\A|\n) *(?:\n|\Z)")


class FileGoneError(FileChangedError):
    """A file whose lines are to be read again is no longer there, under any name."""


@dataclass(frozen=True, slots=True)
class LinePart:
    """Bytes [start, end) of a file, whole lines; `first_line` is the number of the first one in its batch.

    `digest` is of all these bytes, as they were when they were numbered.
    """

    path: str
    start: int
    end: int
    first_line: int
    digest: str


@dataclass(frozen=True, slots=True)
class NumberedLines:
    """The numbered lines of a batch: how many are records, and where they are, as a text that can be kept."""

    records: int
    place: str


def number_lines(watched: WatchedFolder, pieces: Sequence[FilePiece], has_header: bool) -> NumberedLines | None:
    """Number the lines of some pieces; None where that is not possible: compressed, gone meanwhile, or blank."""
    digests = watched.digests({piece.name: piece.end for piece in pieces})
    if len(digests) < len({piece.name for piece in pieces}) or any(p.name.endswith(COMPRESSED) for p in pieces):
        return None
    line = records = 0
    files = []
    for piece in pieces:
        parts = []
        for start, data in _cut(piece):
            lines, blank = _count(data)
            parts.append([start, start + len(data), line, _digest(data)])
            line += lines
            records += lines - blank
        records -= has_header and piece.start == 0
        files.append([piece.name, piece.end, digests[piece.name].hex(), parts])
    return NumberedLines(records, json.dumps(files)) if records > 0 else None


def find_parts(watched: WatchedFolder, place: str) -> list[LinePart]:
    """Return where the numbered lines of a batch are now.

    A file that is gone is a `FileGoneError`; one that has other content is an error that passes when it is put right.
    """
    found: list[LinePart] = []
    for name, length, digest, parts in json.loads(place):
        path = watched.place(_find_name(watched, name, length, bytes.fromhex(digest)))
        found += [LinePart(path, *part) for part in parts]
    return found


def read_part(part: LinePart) -> list[bytes]:
    """Return the lines of a part; what is no longer as it was when they were numbered is refused."""
    with Path(part.path).open("rb") as file:
        file.seek(part.start)
        data = file.read(part.end - part.start)
    if len(data) < part.end - part.start:
        raise EngineError(f"{part.path} ends at byte {part.start + len(data)}, and {part.end} were there before")
    if _digest(data) != part.digest:
        raise OSError(
            f"the file {part.path} has other content in its bytes {part.start} to {part.end} than when it was read"
        )
    return without_mark(data, part.start).splitlines()


def _digest(data: bytes) -> str:
    """Return a digest of every byte: it tells changes, not forgeries."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _cut(piece: FilePiece) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a piece in parts that end with a line."""
    with Path(piece.path).open("rb") as file:
        file.seek(piece.start)
        at = piece.start
        while at < piece.end:
            data = file.read(min(PART_BYTES, piece.end - at))
            if at + len(data) < piece.end:
                data += file.readline()[: piece.end - at - len(data)]
            if not data:
                return  # it has become shorter: whoever settles the batch says so
            yield at, data
            at += len(data)


def _count(data: bytes) -> tuple[int, int]:
    """Return how many lines there are, and how many of them are blank."""
    if b"\r" in data or _BLANK.search(data[:-1] if data.endswith(b"\n") else data):
        lines = data.splitlines()
        return len(lines), sum(not line.strip(b" ") for line in lines)
    return data.count(b"\n") + (not data.endswith(b"\n")), 0


def _find_name(watched: WatchedFolder, name: str, length: int, digest: bytes) -> str:
    """Return under which name a file is now."""
    if watched.digests({name: length}).get(name) == digest:
        return name
    sizes = {other: seen.stat.size_bytes for other, seen in watched.see(watched.names()).items()}
    candidates = {other: length for other, size in sizes.items() if size >= length and other != name}
    for other, found in watched.digests(candidates).items():
        if found == digest:
            return other
    if name in sizes:
        raise OSError(f"the file {watched.place(name)} has other content than when its first {length} bytes were read")
    raise FileGoneError(
        f"the file {watched.place(name)} is gone, and what a sample has left out of it was not read yet",
        hint="files of a stream that may be shed must stay where they are until nothing is owed: catchment show status",
    )
