"""Segments as bytes: a checksummed frame of a JSON header and one compressed Arrow IPC stream a table.

    magic "CTCH" | version u16 | header bytes u32 | body bytes u64 | header | body | crc32 u32

The checksum covers every byte before it, so a damaged or cut frame is refused, never misread. Limits are
checked before the part they bound is parsed, and each table is decompressed into a buffer of the size that
the header declares, so a small frame cannot grow without bound. Nothing here can run code of the sender's: no
pickle.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from catchment.errors import WireError
from catchment.wire.layout import from_wire, to_wire
from catchment.wire.limits import DEFAULT_LIMITS, MAX_STRATA, Limits
from catchment.wire.messages import (
    Counted,
    Fact,
    Message,
    Progress,
    Relayed,
    Repaired,
    Segment,
    Shed,
    Updates,
)
from catchment.wire.standing_codec import check_standing, pack_standing, unpack_standing

MAGIC = b"CTCH"
VERSION = 1
ZSTD_LEVEL = 3

_PREFIX = struct.Struct("<4sHIQ")
_CHECKSUM = struct.Struct("<I")
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Envelope:
    """What can be known of a segment without reading its tables."""

    origin: str
    epoch: str
    sequence: int
    entries: tuple[Any, ...]


def encode_segment(segment: Segment) -> bytes:
    """The frame of a segment."""
    packed = [_pack(message) for message in segment.messages]
    header = _dump([segment.origin, segment.epoch, segment.sequence, [entry for entry, _ in packed]])
    body = b"".join(table for _, table in packed)
    frame = _PREFIX.pack(MAGIC, VERSION, len(header), len(body)) + header + body
    return frame + _CHECKSUM.pack(zlib.crc32(frame))


def decode_segment(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Segment:
    """The segment of a frame, or a WireError that says what is wrong with it."""
    envelope, body = _open(data, limits)
    messages: list[Message] = []
    for entry in envelope.entries:
        message, body = _unpack(entry, body, limits)
        messages.append(message)
    return Segment(envelope.origin, envelope.epoch, envelope.sequence, tuple(messages))


def read_envelope(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """Origin, epoch and number of a frame whose checksum and limits hold."""
    return _open(data, limits)[0]


def segment_sizes(data: bytes) -> Mapping[str, int]:
    """Bytes of a frame that each fragment is the cause of; they add up to the whole frame.

    The header and the checksum are shared out evenly among the messages.
    """
    envelope, body = _open(data, DEFAULT_LIMITS)
    sizes: Counter[str] = Counter()
    shared = len(data) - len(body)
    for index, entry in enumerate(envelope.entries):
        count = len(envelope.entries)
        sizes[entry[1]] += shared * (index + 1) // count - shared * index // count
        sizes[entry[1]] += entry[4] if entry[0] == "u" else 0
    return dict(sizes)


def frame_bytes(segment: Segment) -> int:
    """Bytes that its frame would have with a single row in each update: a table without rows lacks parts of its own."""
    bare = tuple(replace(m, table=m.table.slice(0, 1)) if isinstance(m, Updates) else m for m in segment.messages)
    return len(encode_segment(replace(segment, messages=bare)))


def _pack(message: Message) -> tuple[list[Any], bytes]:
    if isinstance(message, Relayed):
        return ["f", message.fragment, message.origin, _pack_fact(message.fact)], b""
    if not isinstance(message, Updates):
        return _pack_fact(message), b""
    table, coded = to_wire(message.table.unify_dictionaries())
    raw = _table_bytes(table)
    packed: bytes = pa.Codec("zstd", ZSTD_LEVEL).compress(raw, asbytes=True)
    return ["u", message.fragment, message.rows, raw.size, len(packed), message.records, coded], packed


def _pack_fact(fact: Fact) -> list[Any]:
    if isinstance(fact, Progress):
        return ["p", fact.fragment, fact.low_mark_us, fact.updates_total]
    if isinstance(fact, Shed):
        return ["s", fact.fragment, fact.batch, fact.rate, fact.lacking, fact.groups]
    if isinstance(fact, Repaired):
        return ["r", fact.fragment, fact.batch, fact.gave_up]
    return ["c", fact.fragment, fact.records] if isinstance(fact, Counted) else pack_standing(fact)


def _table_bytes(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _unpack(entry: Any, body: memoryview, limits: Limits) -> tuple[Message, memoryview]:
    if entry[0] == "f":
        return Relayed(entry[2], _unpack_fact(entry[3])), body
    if entry[0] != "u":
        fact = _unpack_fact(entry)
        assert not isinstance(fact, Counted), "checked: counts are relayed"
        return fact, body
    _, fragment, rows, raw, size, records, coded = entry
    table = _read_table(body[:size], raw, coded, limits, f"the update of {fragment!r}")
    if table.num_rows != rows:
        _refuse(f"the update of {fragment!r} holds {table.num_rows} rows, its header says {rows}")
    return Updates(fragment, table, tuple((start, count) for start, count in records)), body[size:]


def _unpack_fact(entry: Any) -> Fact:
    if entry[0] == "p":
        return Progress(*entry[1:])
    if entry[0] == "s":
        _, fragment, batch, rate, lacking, *more = entry
        groups = tuple((group, own) for group, own in more[0]) if more else ()
        return Shed(fragment, batch, rate, tuple((start, count) for start, count in lacking), groups)
    if entry[0] == "r":
        return Repaired(*entry[1:])
    if entry[0] == "c":
        return Counted(entry[1], tuple((start, count) for start, count in entry[2]))
    return unpack_standing(entry)


def _read_table(packed: memoryview, raw_bytes: int, coded: list[int], limits: Limits, what: str) -> pa.Table:
    try:
        raw = pa.Codec("zstd").decompress(pa.py_buffer(packed), decompressed_size=raw_bytes)
        return from_wire(pa.ipc.open_stream(raw).read_all(), coded, limits.raw_bytes)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise WireError(f"{what} is not a readable Arrow table: {error}") from error


def _open(data: bytes, limits: Limits) -> tuple[Envelope, memoryview]:
    """The envelope and the body of a frame, after every check that needs no table."""
    if len(data) > limits.frame_bytes:
        _refuse(f"the frame has {len(data)} bytes, at most {limits.frame_bytes} are taken")
    if len(data) < _PREFIX.size + _CHECKSUM.size:
        _refuse(f"the frame has {len(data)} bytes, fewer than an empty segment")
    magic, version, header_bytes, body_bytes = _PREFIX.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        _refuse(f"the frame starts with {magic!r} version {version}, not {MAGIC!r} version {VERSION}")
    if _PREFIX.size + header_bytes + body_bytes + _CHECKSUM.size != len(data):
        _refuse(f"the frame declares {header_bytes} + {body_bytes} bytes but has {len(data)} in all")
    if header_bytes > limits.header_bytes:
        _refuse(f"the header has {header_bytes} bytes, at most {limits.header_bytes} are taken")
    whole = memoryview(data)
    if _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0] != zlib.crc32(whole[: -_CHECKSUM.size]):
        _refuse("the checksum of the frame does not match its bytes")
    body = whole[_PREFIX.size + header_bytes : -_CHECKSUM.size]
    return _check_header(bytes(whole[_PREFIX.size : _PREFIX.size + header_bytes]), body_bytes, limits), body


def _check_header(header: bytes, body_bytes: int, limits: Limits) -> Envelope:
    try:
        origin, epoch, sequence, entries = json.loads(header)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"the header of the frame cannot be read: {error}") from error
    _check(_is_name(origin, limits) and _is_name(epoch, limits), "names of origin and epoch")
    _check(_is_count(sequence), "number")
    _check(isinstance(entries, list) and len(entries) <= limits.messages, f"messages (at most {limits.messages})")
    for entry in entries:
        _check_entry(entry, limits)
    updates = [entry for entry in entries if entry[0] == "u"]
    _check(sum(e[2] for e in updates) <= limits.rows, f"rows (at most {limits.rows})")
    _check(sum(e[3] for e in updates) <= limits.raw_bytes, f"decompressed bytes (at most {limits.raw_bytes})")
    _check(sum(e[4] for e in updates) == body_bytes, "sizes of tables")
    return Envelope(origin, epoch, sequence, tuple(entries))


def _check_entry(entry: Any, limits: Limits) -> None:
    _check(isinstance(entry, list) and len(entry) in (4, 5, 6, 7) and _is_name(entry[1], limits), "message")
    if entry[0] == "f":
        _check(len(entry) == 4 and _is_name(entry[2], limits), "origin of a relayed fact")
        _check_relayed(entry[3], entry[1], limits)
        return
    if entry[0] == "w":
        _check(check_standing(entry, limits), "standing")
        return
    if entry[0] == "p":
        _check(len(entry) == 4 and _is_int64(entry[2]) and _is_count(entry[3]), "progress")
        return
    if entry[0] == "s":
        rate = entry[3]
        _check(len(entry) in (5, 6) and _is_count(entry[2]) and _is_rate(rate) and rate < 1, "rate of a sample")
        _check_counts(entry[4], limits)
        _check_groups(entry[5] if len(entry) == 6 else [])
        return
    if entry[0] == "r":
        _check(len(entry) == 4 and _is_count(entry[2]) and type(entry[3]) is bool, "repair")
        return
    _check(entry[0] == "u" and len(entry) == 7 and all(map(_is_count, entry[2:5])), "update")
    records, coded = entry[5:]
    _check(isinstance(coded, list) and all(map(_is_count, coded)), "column numbers")
    _check_counts(records, limits)


def _check_relayed(fact: Any, fragment: str, limits: Limits) -> None:
    _check(isinstance(fact, list) and len(fact) >= 3 and fact[1] == fragment, "relayed fact")
    if fact[0] == "c":
        _check(len(fact) == 3 and bool(fact[2]), "relayed counts")
        _check_counts(fact[2], limits)
        return
    _check(fact[0] in ("p", "s", "r", "w"), "relayed fact")
    _check_entry(fact, limits)


def _check_groups(groups: Any) -> None:
    """The rates of groups: text and number, not more of them than a sampler names."""
    _check(isinstance(groups, list) and len(groups) <= MAX_STRATA, "rates of groups")
    pairs = all(isinstance(g, list) and len(g) == 2 and type(g[0]) is str and _is_rate(g[1]) for g in groups)
    _check(pairs, "rate of a group")


def _is_rate(value: Any) -> bool:
    return type(value) is float and 0 < value <= 1


def _check_counts(records: Any, limits: Limits) -> None:
    _check(
        isinstance(records, list) and len(records) <= limits.slices,
        f"record counts (at most {limits.slices})",
    )
    _check(all(isinstance(r, list) and len(r) == 2 and all(map(_is_int64, r)) for r in records), "record counts")


def _check(holds: bool, what: str) -> None:
    if not holds:
        _refuse(f"the header of the frame has wrong {what}")


def _is_name(value: Any, limits: Limits) -> bool:
    return isinstance(value, str) and 0 < len(value.encode("utf-8", "surrogatepass")) <= limits.name_bytes


def _is_int64(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64


def _is_count(value: Any) -> bool:
    return _is_int64(value) and value >= 0


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _refuse(message: str) -> NoReturn:
    raise WireError(message)
