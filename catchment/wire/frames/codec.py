"""Segments as bytes: a checksummed frame of a header and one compressed Arrow IPC stream per table.

    magic "CTCH" | version u16 | header bytes u32 | header | body | crc32 u32

The checksum covers every byte before it, so a damaged or cut frame is refused, never misread. Frames of this version
and of those before are read (`versions.py`); they differ in how tables and headers are compressed (`table_bytes.py`,
`header_bytes.py`). Any other is refused by name.
Limits are checked before the part they bound is parsed, and each table is decompressed into
a buffer of the size that the header declares, so a small frame cannot grow without bound. Nothing here can run code of
the sender's: no pickle.

A segment is encoded once, where it is made, and its header is read once at each inbox: the header travels beside the
bytes as an `EncodedSegment`.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from catchment.errors import WireError
from catchment.wire.frames.header import (
    Entry,
    FrameHeader,
    PackedEntry,
    RecordsEntry,
    RelayedEntry,
    UpdatesEntry,
    check_limits,
    pack_fact,
    pack_relayed,
    unpack_fact,
    unpack_relayed,
)
from catchment.wire.frames.header_bytes import HAS_EPOCH, SHORT, SIZE_MASK, read_header, write_header
from catchment.wire.frames.ipc_bodies import refuse_compressed_bodies
from catchment.wire.frames.layout import from_wire, to_wire
from catchment.wire.frames.limits import DEFAULT_LIMITS, WireLimits
from catchment.wire.frames.plain_columns import read_columns, write_columns
from catchment.wire.frames.table_bytes import (
    SMALL_BYTES,
    compress,
    compress_plain,
    decompress,
    decompress_plain,
    is_plain,
)
from catchment.wire.frames.versions import NEWEST_VERSION, READ_VERSIONS, describe_versions
from catchment.wire.messages import Message, Records, Relayed, Segment, Updates

MAGIC = b"CTCH"

_PREFIX = struct.Struct("<4sHI")  # magic, version, bytes of the header
_CHECKSUM = struct.Struct("<I")


class UnknownVersionError(WireError):
    """A frame was written by a catchment whose frames this one does not read."""


class PackedTable(NamedTuple):
    """A table as it is sent."""

    data: bytes
    raw_bytes: int
    dictionary_columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FrameHead:
    """What is known of a frame without reading its tables: its header, its size and its checksum.

    The checksum tells a segment from another one of the same number.
    """

    header: FrameHeader
    size_bytes: int
    digest: int

    def fragment_bytes(self) -> dict[str, int]:
        """Return the bytes of the frame that each fragment causes; they add up to the whole frame.

        What is not tables is shared out evenly among the messages.
        """
        sizes: Counter[str] = Counter()
        shared = self.size_bytes - self.header.table_bytes
        count = len(self.header.entries)
        for index, entry in enumerate(self.header.entries):
            sizes[entry.fragment] += shared * (index + 1) // count - shared * index // count
            sizes[entry.fragment] += entry.packed_bytes if isinstance(entry, PackedEntry) else 0
        return dict(sizes)


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment as the bytes of its frame, with their header."""

    header: FrameHeader
    data: bytes = field(repr=False)

    @property
    def version(self) -> int:
        """The version of its frame."""
        return frame_version(self.data)

    @property
    def digest(self) -> int:
        """The checksum of its bytes."""
        return int(_CHECKSUM.unpack_from(self.data, len(self.data) - _CHECKSUM.size)[0])

    @property
    def head(self) -> FrameHead:
        """What is known of it without its tables."""
        return FrameHead(self.header, len(self.data), self.digest)

    def decode(self, limits: WireLimits = DEFAULT_LIMITS) -> Segment:
        """Read the tables; return what was encoded, or raise a WireError that says what is wrong."""
        body = memoryview(self.data)[len(self.data) - _CHECKSUM.size - self.header.table_bytes : -_CHECKSUM.size]
        messages: list[Message] = []
        for entry in self.header.entries:
            if isinstance(entry, UpdatesEntry):
                messages.append(_read_updates(entry, body[: entry.packed_bytes], limits, self.version))
                body = body[entry.packed_bytes :]
            elif isinstance(entry, RecordsEntry):
                block = bytes(body[: entry.packed_bytes])
                messages.append(Records(entry.stream, entry.rows, entry.raw_bytes, block))
                body = body[entry.packed_bytes :]
            elif isinstance(entry, RelayedEntry):
                messages.append(unpack_relayed(entry))
            else:
                messages.append(unpack_fact(entry))
        return Segment(self.header.origin, self.header.epoch, self.header.sequence, tuple(messages))


def encode_segment(
    segment: Segment, limits: WireLimits = DEFAULT_LIMITS, version: int = NEWEST_VERSION
) -> EncodedSegment:
    """Make the frame of a segment; refused if no receiver with these limits would take it."""
    entries: list[Entry] = []
    tables: list[bytes] = []
    for message in segment.messages:
        if isinstance(message, Updates):
            table = pack_table(message.table, version)
            tables.append(table.data)
            entries.append(_updates_entry(message, table))
        elif isinstance(message, Records):
            tables.append(message.block)
            entries.append(RecordsEntry(message.stream, message.rows, message.raw_bytes, len(message.block)))
        elif isinstance(message, Relayed):
            entries.append(pack_relayed(message))
        else:
            entries.append(pack_fact(message))
    made = FrameHeader(segment.origin, segment.epoch, segment.sequence, tuple(entries))
    flags, packed, header_bytes = write_header(made, version)
    header = read_header(flags, memoryview(packed), header_bytes)  # as a receiver reads it: what none takes is refused
    check_limits(header, limits)
    frame = b"".join([_PREFIX.pack(MAGIC, version, flags | len(packed)), packed, *tables])
    data = frame + _CHECKSUM.pack(zlib.crc32(frame))
    _check_sizes(len(data), header_bytes, limits)
    return EncodedSegment(header, data)


def read_frame(data: bytes, limits: WireLimits = DEFAULT_LIMITS) -> EncodedSegment:
    """Read the header of a frame, after every check that needs no table."""
    prefix = _read_prefix(data, len(data), limits)
    whole = memoryview(data)
    if _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0] != zlib.crc32(whole[: -_CHECKSUM.size]):
        raise WireError("the checksum of the frame does not match its bytes")
    packed = whole[_PREFIX.size :][: prefix.header_bytes]
    return EncodedSegment(_read_header(prefix, packed, len(data), limits), data)


def frame_version(data: bytes) -> int:
    """Return the version that a frame says it has."""
    return int(_PREFIX.unpack_from(data)[1])


def is_frame_of(data: bytes, digest: int) -> bool:
    """Return whether bytes are the frame of a checksum, whole; its header is not read."""
    if len(data) < _CHECKSUM.size or _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0] != digest:
        return False
    return zlib.crc32(memoryview(data)[: -_CHECKSUM.size]) == digest


def read_frame_head(file: BinaryIO, limits: WireLimits = DEFAULT_LIMITS) -> FrameHead:
    """Read the header and the checksum of a frame from its file; that they match is not checked."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    prefix = _read_prefix(file.read(_PREFIX.size), size_bytes, limits)
    header = _read_header(prefix, memoryview(file.read(prefix.header_bytes)), size_bytes, limits)
    file.seek(size_bytes - _CHECKSUM.size)
    return FrameHead(header, size_bytes, int(_CHECKSUM.unpack(file.read(_CHECKSUM.size))[0]))


class _Prefix(NamedTuple):
    """How a frame begins: the bytes of its header as it was sent, and what says how that is."""

    header_bytes: int
    flags: int


def _read_prefix(prefix: bytes, size_bytes: int, limits: WireLimits) -> _Prefix:
    """Check how a frame of a size begins."""
    if size_bytes < _PREFIX.size + _CHECKSUM.size:
        raise WireError(f"the frame has {size_bytes} bytes, fewer than an empty segment")
    magic, version, stated = _PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        raise WireError(f"the frame starts with {magic!r}, not {MAGIC!r}")
    if version not in READ_VERSIONS:
        raise unknown_version(version, READ_VERSIONS)
    flags = stated & (SHORT | HAS_EPOCH) if version >= NEWEST_VERSION else 0
    header_bytes = stated & SIZE_MASK if flags else stated
    _check_sizes(size_bytes, header_bytes, limits)
    return _Prefix(int(header_bytes), int(flags))


def _read_header(prefix: _Prefix, packed: memoryview, size_bytes: int, limits: WireLimits) -> FrameHeader:
    header = read_header(prefix.flags, packed, limits.header_bytes)
    check_limits(header, limits)
    declared = _PREFIX.size + len(packed) + header.table_bytes + _CHECKSUM.size
    if declared != size_bytes:
        raise WireError(f"the frame declares {declared} bytes but has {size_bytes}")
    return header


def unknown_version(version: int, read: Collection[int]) -> UnknownVersionError:
    """Return the error to raise for a frame of a version that is not read."""
    return UnknownVersionError(
        f"the frame is of version {version}, this catchment reads {describe_versions(read)}",
        hint="upgrade the older end; where both are upgraded, go by one release at a time",
    )


def decode_segment(data: bytes, limits: WireLimits = DEFAULT_LIMITS) -> Segment:
    """Return the segment of a frame, or raise a WireError that says what is wrong with it."""
    return read_frame(data, limits).decode(limits)


def pack_table(table: pa.Table, version: int = NEWEST_VERSION) -> PackedTable:
    """Compress a table, as frames of a version have it."""
    plain = write_columns(table) if version >= NEWEST_VERSION else None
    if plain is not None and len(plain) <= SMALL_BYTES:
        return PackedTable(compress_plain(plain), len(plain), ())
    arranged, dictionary_columns = to_wire(table.unify_dictionaries())
    raw = _write_stream(arranged)
    return PackedTable(compress(raw, version), raw.size, tuple(dictionary_columns))


def _write_stream(table: pa.Table) -> pa.Buffer:
    """Return a table as an Arrow IPC stream, in a buffer of the right size: one that grows is copied many times."""
    counted = pa.MockOutputStream()
    with pa.ipc.new_stream(counted, table.schema) as writer:
        writer.write_table(table)
    raw = pa.allocate_buffer(counted.size())
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(raw), table.schema) as writer:
        writer.write_table(table)
    return raw


def _updates_entry(updates: Updates, table: PackedTable) -> UpdatesEntry:
    return UpdatesEntry(
        updates.fragment, updates.rows, table.raw_bytes, len(table.data), updates.records, table.dictionary_columns
    )


def _read_updates(entry: UpdatesEntry, packed: memoryview, limits: WireLimits, version: int) -> Updates:
    try:
        if is_plain(packed, version):
            return _read_plain(entry, packed)
        raw = decompress(packed, entry.raw_bytes, version)
        refuse_compressed_bodies(raw)
        table = from_wire(pa.ipc.open_stream(raw).read_all(), entry.dictionary_columns, limits.raw_bytes)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise WireError(f"the update of {entry.fragment!r} is not a readable Arrow table: {error}") from error
    if table.num_rows != entry.rows:
        raise WireError(f"the update of {entry.fragment!r} holds {table.num_rows} rows, its header says {entry.rows}")
    return Updates(entry.fragment, table, entry.records)


def _read_plain(entry: UpdatesEntry, packed: memoryview) -> Updates:
    if entry.dictionary_columns:
        raise WireError(f"the update of {entry.fragment!r} has dictionaries among its plain columns")
    table = read_columns(decompress_plain(packed, entry.raw_bytes), entry.rows)
    if table.num_rows != entry.rows:
        raise WireError(f"the update of {entry.fragment!r} holds {table.num_rows} rows, its header says {entry.rows}")
    return Updates(entry.fragment, table, entry.records)


def _check_sizes(frame_bytes: int, header_bytes: int, limits: WireLimits) -> None:
    if frame_bytes > limits.frame_bytes:
        raise WireError(f"the frame has {frame_bytes} bytes, at most {limits.frame_bytes} are taken")
    if header_bytes > limits.header_bytes:
        raise WireError(f"the header has {header_bytes} bytes, at most {limits.header_bytes} are taken")
