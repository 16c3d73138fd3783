"""Complete lines of a text file that grows: where they end, and what they are."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

from catchment.errors import EngineError

MAX_PIECE_BYTES = 32 << 20  # read of one file at a time
_BLOCK_BYTES = 1 << 16


def last_line_end(path: Path, start: int, size: int) -> int:
    """Return where the last complete line ends that begins in [start, size); `start` if there is none.

    At most `MAX_PIECE_BYTES` are looked at. A longer line is an error: it could never be read.
    """
    end = min(size, start + MAX_PIECE_BYTES)
    with path.open("rb") as file:
        at = end
        while at > start:
            step = min(_BLOCK_BYTES, at - start)
            at -= step
            file.seek(at)
            found = file.read(step).rfind(b"\n")
            if found >= 0:
                return at + found + 1
    if end - start == MAX_PIECE_BYTES:
        raise EngineError(
            f"{path} has no end of a line in {MAX_PIECE_BYTES} bytes, from byte {start} on",
            hint="a file of a growing stream has one record per line",
        )
    return start


def read_lines(path: str, start: int, end: int) -> list[str]:
    """Return the lines in [start, end), as Spark reads text: bytes that are not UTF-8 are replaced."""
    with Path(path).open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    if len(data) < end - start:
        raise EngineError(f"{path} ends at byte {start + len(data)}, and {end} were there before")
    return [line.decode("utf-8", errors="replace") for line in without_mark(data, start).splitlines()]


def without_mark(data: bytes, start: int) -> bytes:
    """Return what a file has from a byte on, without the byte order mark that it may begin with, as Spark reads it."""
    return data if start else data.removeprefix(BOM_UTF8)
