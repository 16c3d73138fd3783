"""Lines of text files, numbered within the batch that reads them, so that a sample of them is chosen by numbers alone.

A file is cut into parts at ends of lines, and each part says which number its first line has. With them goes a digest
of what was read, so that whoever reads the lines again, later, finds the same ones: under the name that the file had,
under another one if it was renamed, or not at all. A file is found by a digest of samples of it; when a part is read
every byte of it is compared, because nothing else has the records that were left out.

A line of more than `MAX_LINE_BYTES` is never held in memory. It is a part of its own, and is read as a text that says
where it is, in quotes: that is no record of any stream, so it goes to quarantine, and all other lines are read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from catchment.errors import EngineError
from catchment.files.folder import WatchedFolder
from catchment.files.lines import MAX_PIECE_BYTES, without_mark
from catchment.files.same_content import WantedFile, find_same_content
from catchment.files.watch import COMPRESSED, FileChangedError, FilePiece

PART_BYTES = 32 << 20  # of a file that are read together
MAX_LINE_BYTES = MAX_PIECE_BYTES  # of a record; a longer line goes to quarantine as its place
_END = re.compile(rb"\r\n|\n|\r")
_BLANK = re.compile(rb"(?:\A|\n) *(?:\n|\Z)")


_log = logging.getLogger(__name__)


class FileGoneError(FileChangedError):
    """A file whose lines are to be read again is no longer there, under any name."""


@dataclass(frozen=True, slots=True)
class LinePart:
    """Bytes [start, end) of a file, whole lines; `first_line` is the number of the first one in its batch.

    `digest` is of all these bytes, as they were when they were numbered. Where it `is_too_long` it is one line.
    """

    path: str
    start: int
    end: int
    first_line: int
    digest: str
    is_too_long: bool = False


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
        for cut in _cut(piece):
            part = [cut.start, cut.end, line, cut.digest]
            if cut.data is None:
                _log.warning("%s; it goes to quarantine", _describe_line(piece.path, cut.start, cut.end))
                parts.append([*part, True])
                lines, blank = 1, 0
            else:
                parts.append(part)
                lines, blank = _count(cut.data)
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
        if part.is_too_long:
            found = _pass_over_line(file, part.start, part.end)
            _check_part(part, found.end, found.digest)
            return [f'"{_describe_line(part.path, part.start, part.end)}"'.encode()]
        file.seek(part.start)
        data = file.read(part.end - part.start)
    _check_part(part, part.start + len(data), _digest(data))
    return without_mark(data, part.start).splitlines()


def _check_part(part: LinePart, end: int, digest: str) -> None:
    """Refuse what is no longer as it was when its lines were numbered."""
    if end < part.end and Path(part.path).stat().st_size < part.end:
        raise EngineError(f"{part.path} ends at byte {end}, and {part.end} were there before")
    if digest != part.digest:
        raise OSError(
            f"the file {part.path} has other content in its bytes {part.start} to {part.end} than when it was read"
        )


def _describe_line(path: str, start: int, end: int) -> str:
    return f"a line of {end - start} bytes at byte {start} of {path} is longer than the {MAX_LINE_BYTES} of a record"


def _digest(data: bytes) -> str:
    """Return a digest of every byte: it tells changes, not forgeries."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Whole lines of a file, from a byte on; `data` is None where they are one line that is too long to be held."""

    start: int
    end: int
    digest: str
    data: bytes | None


def _cut(piece: FilePiece) -> Iterator[_Cut]:
    """Yield the bytes of a piece in parts that end with a line."""
    with Path(piece.path).open("rb") as file:
        at = piece.start
        while at < piece.end:
            found = _cut_next(file, at, piece.end)
            if found is None:
                return  # it has become shorter: whoever settles the batch says so
            yield found
            at = found.end


def _cut_next(file: BinaryIO, start: int, end: int) -> _Cut | None:
    """Return the lines of a file that begin at a byte: about `PART_BYTES` of them, or one longer line."""
    file.seek(start)
    data = file.read(min(PART_BYTES, end - start))
    while start + len(data) < end and not _last_end(data) and len(data) <= MAX_LINE_BYTES:
        more = file.read(min(PART_BYTES, end - start - len(data)))
        if not more:
            break
        data += more
    if len(data) > MAX_LINE_BYTES and not _END.search(data, 0, MAX_LINE_BYTES + 1):
        del data
        return _pass_over_line(file, start, end)
    if start + len(data) < end:
        data = data[: _last_end(data) or len(data)]
    return _Cut(start, start + len(data), _digest(data), data) if data else None


def _pass_over_line(file: BinaryIO, start: int, end: int) -> _Cut:
    """Read to the end of a line that is too long, and keep only its digest."""
    sha = hashlib.sha1(usedforsecurity=False)
    at = start
    found = None
    while at < end and found is None:
        file.seek(at)
        data = file.read(min(PART_BYTES, end - at))
        if not data:
            break
        found = _END.search(data)
        if found is not None:
            data = data[: found.end()]
        sha.update(data)
        at += len(data)
        if data.endswith(b"\r") and at < end:  # its line feed may be in the next block
            file.seek(at)
            feed = file.read(1).rstrip(b"\n") == b""
            sha.update(b"\n" * feed)
            at += feed
    return _Cut(start, at, sha.hexdigest(), None)


def _last_end(data: bytes) -> int:
    """Return where the last line that ends in some bytes ends; a carriage return at their end may be half an end."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1


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
    others = {other: size for other, size in sizes.items() if other != name}
    wanted = [WantedFile(name, length, digest)]
    for _, other in find_same_content(
        wanted, others, lambda other, length: watched.digests({other: length}).get(other), may_be_longer=True
    ):
        return other
    if name in sizes:
        raise OSError(f"the file {watched.place(name)} has other content than when its first {length} bytes were read")
    raise FileGoneError(
        f"the file {watched.place(name)} is gone, and what a sample has left out of it was not read yet",
        hint="files of a stream that may be shed must stay where they are until nothing is owed: catchment show status",
    )
