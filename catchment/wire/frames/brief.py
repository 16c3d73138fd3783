"""Brief frames: tables that the far side has just taken from the same sender are named in them, and not sent again.

    magic "CTCB" | for each piece: kind and size u32 | its bytes, or the name of a table of that size

Partials that go to two sinks over one neighbour are in the outboxes of both, in segments of different numbers that hold
the same tables. Whichever goes first carries them (`KEPT`: the far side remembers them for a while); in the other they
are only named, by a digest of their bytes (`NAMED`). Law: the pieces of a brief frame, with the named tables put in,
are the frame, byte for byte. So numbers, checksums, chains and acknowledgements know nothing of it, and a name that the
far side does not know is refused, never guessed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from catchment.errors import WireError

MAGIC = b"CTCB"
NAME_BYTES = 16
MIN_NAMED_BYTES = 64  # of a table: the name of a smaller one is hardly shorter

_PLAIN, _KEPT, _NAMED = range(3)  # the two highest bits of how a piece begins; the others are its size
_KIND_SHIFT = 30
_PIECE = struct.Struct("<I")
_CHECKSUM_BYTES = 4  # of the frame, behind its tables


class UnknownTableError(WireError):
    """A brief frame names a table that is not here, or not any more."""


class NamedTable(NamedTuple):
    """A table of a frame: its name, and where in the frame it is."""

    name: bytes
    start: int
    end: int


class BriefFrame(NamedTuple):
    """What a brief frame stands for: the frame, and those of its tables that it asks to be remembered, by name."""

    frame: bytes
    kept: dict[bytes, bytes]


def is_brief(data: bytes) -> bool:
    """Return whether bytes begin as a brief frame does."""
    return data[: len(MAGIC)] == MAGIC


def name_tables(frame: bytes, sizes: Sequence[int]) -> tuple[NamedTable, ...]:
    """Return the tables of a frame that are large enough to be named; `sizes` are those of all, as they come."""
    start = len(frame) - _CHECKSUM_BYTES - sum(sizes)
    found = []
    for size in sizes:
        if size >= MIN_NAMED_BYTES:
            found.append(NamedTable(_name(frame[start : start + size]), start, start + size))
        start += size
    return tuple(found)


def write_brief(frame: bytes, tables: Sequence[NamedTable], there: Collection[bytes]) -> bytes:
    """Return the brief frame in which those of the tables that are there are named, and the others are to be kept."""
    pieces = [MAGIC]
    reached = 0
    for table in tables:
        pieces += _plain_piece(frame[reached : table.start])
        if table.name in there:
            pieces += (_head(_NAMED, table.end - table.start), table.name)
        else:
            pieces += (_head(_KEPT, table.end - table.start), frame[table.start : table.end])
        reached = table.end
    return b"".join((*pieces, *_plain_piece(frame[reached:])))


def read_brief(data: bytes, find: Callable[[bytes], bytes | None], max_bytes: int) -> BriefFrame:
    """Return what a brief frame stands for; `find` gives the table of a name, and a larger frame is refused.

    The bytes may come from anyone: how large the frame is going to be is known before it is put together.
    """
    pieces: list[bytes] = []
    kept: dict[bytes, bytes] = {}
    total = 0
    for kind, size, content in _split(data):
        total += size
        if total > max_bytes:
            raise WireError(f"a brief frame stands for more than the {max_bytes} bytes that are taken")
        if kind == _NAMED:
            pieces.append(_find_table(content, size, find))
        else:
            pieces.append(content)
            if kind == _KEPT:
                kept[_name(content)] = content
    return BriefFrame(b"".join(pieces), kept)


def _find_table(name: bytes, size: int, find: Callable[[bytes], bytes | None]) -> bytes:
    table = find(name)
    if table is None or len(table) != size:
        raise UnknownTableError(f"a brief frame names a table of {size} bytes that is not here; send it whole")
    return table


def _split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, size and content of each piece; the content of a named one is its name."""
    place = len(MAGIC)
    before: int | None = None  # the kind of the last piece
    while place < len(data):
        if place + _PIECE.size > len(data):
            raise WireError("a brief frame ends within the head of a piece")
        (stated,) = _PIECE.unpack_from(data, place)
        kind, size = stated >> _KIND_SHIFT, stated & ((1 << _KIND_SHIFT) - 1)
        _check_size(kind, size, before)
        place += _PIECE.size
        end = place + (NAME_BYTES if kind == _NAMED else size)
        if kind not in (_PLAIN, _KEPT, _NAMED) or end > len(data):
            raise WireError(f"a brief frame has a piece of kind {kind} and {size} bytes at {place} of {len(data)}")
        yield kind, size, data[place:end]
        place = end
        before = kind


def _check_size(kind: int, size: int, before: int | None) -> None:
    """Refuse crumbs, which nobody writes: each would take more memory than it has bytes."""
    if kind == _PLAIN:
        if not size or before == _PLAIN:
            raise WireError("what a brief frame has between two tables is not one piece")
    elif size < MIN_NAMED_BYTES:
        raise WireError(f"a brief frame has a table of {size} bytes, smaller than the {MIN_NAMED_BYTES} bytes of any")


def _plain_piece(content: bytes) -> tuple[bytes, ...]:
    return (_head(_PLAIN, len(content)), content) if content else ()


def _head(kind: int, size: int) -> bytes:
    return _PIECE.pack(kind << _KIND_SHIFT | size)


def _name(table: bytes) -> bytes:
    return hashlib.blake2b(table, digest_size=NAME_BYTES).digest()
