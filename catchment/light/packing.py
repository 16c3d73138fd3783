"""Lines of text as they travel from a light site: cut out of a file at their ends, and compressed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from catchment.errors import EngineError, WireError
from catchment.wire.messages import Records

CHUNK_BYTES = 1 << 20  # of lines that are packed at once; longer only where one line is
MAX_LINE_BYTES = 32 << 20
ZSTD_LEVEL = 3
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_chunk(path: Path, start: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> bytes:
    """Return the next lines of a file in [start, end): `chunk_bytes` at most, or one longer line.

    The last line before `end` may lack its end.
    """
    with path.open("rb") as file:
        file.seek(start)
        found = file.read(min(chunk_bytes, end - start))
        while start + len(found) < end and b"\n" not in found:
            if len(found) > MAX_LINE_BYTES:
                raise EngineError(
                    f"{path} has no end of a line in {len(found)} bytes, from byte {start} on",
                    hint="its stream has one record per line",
                )
            more = file.read(min(chunk_bytes, end - start - len(found)))
            if not more:
                break
            found += more
    if not found:
        raise EngineError(f"{path} ends at byte {start}, and {end} were there before")
    return found if start + len(found) >= end else found[: found.rfind(b"\n") + 1]


def pack_lines(stream: str, lines: bytes, *, begins_file: bool) -> Records:
    """Return lines as records to be sent; a byte order mark at the beginning of a file is none of them."""
    if begins_file:
        lines = lines.removeprefix(_BYTE_ORDER_MARK)
    if lines and not lines.endswith(b"\n"):
        lines += b"\n"
    if not lines:
        return nothing_new(stream)
    block: bytes = pa.Codec("zstd", ZSTD_LEVEL).compress(lines, asbytes=True)
    return Records(stream, lines.count(b"\n"), len(lines), block)


def nothing_new(stream: str) -> Records:
    """Return the message that says that a stream was looked at, and nothing was new."""
    return Records(stream, 0, 0, b"")


def unpack_lines(records: Records) -> bytes:
    """Return the lines of records that came over a link; whatever is not what it says is refused."""
    if not records.raw_bytes:
        if records.block or records.rows:
            raise WireError(f"records of {records.stream!r} say that they are none, and are {len(records.block)} bytes")
        return b""
    try:
        lines: bytes = pa.Codec("zstd").decompress(records.block, decompressed_size=records.raw_bytes, asbytes=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise WireError(f"the records of {records.stream!r} cannot be decompressed: {error}") from error
    if len(lines) != records.raw_bytes or not lines.endswith(b"\n") or lines.count(b"\n") != records.rows:
        raise WireError(f"the records of {records.stream!r} are not the {records.rows} lines that they say")
    return lines
