"""How the bytes of a header are sent, in each version of frames.

A header is MessagePack. From version 4 on it is compressed with the dictionary of `table_bytes.py` where that is
shorter, and then its epoch, which is mostly 32 hexadecimal digits, lies before it as 16 bytes. The two highest bits of
the number of its bytes in the frame say so. Law: `read_header(*write_header(header, v))` equals the header, for every
version v.
"""

from __future__ import annotations

import re

import msgspec

from catchment.errors import WireError
from catchment.wire.frames.header import FrameHeader, pack_header, unpack_header
from catchment.wire.frames.table_bytes import deflate_small, inflate_small
from catchment.wire.frames.versions import NEWEST_VERSION

SHORT = 1 << 31  # it is compressed
HAS_EPOCH = 1 << 30  # its epoch lies before it
SIZE_MASK = HAS_EPOCH - 1
MAX_SHORT_BYTES = 4096  # longer headers have lists of facts, and are sent as they are
_EPOCH_BYTES = 16
_ELSEWHERE = "-"  # what a header has for an epoch that lies before it
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")


def write_header(header: FrameHeader, version: int) -> tuple[int, bytes, int]:
    """Return the flags of a header, its bytes as they are sent, and how many they are before they are compressed."""
    plain = pack_header(header)
    if version < NEWEST_VERSION or len(plain) > MAX_SHORT_BYTES:
        return 0, plain, len(plain)
    has_epoch = _HEXADECIMAL.fullmatch(header.epoch) is not None
    epoch = bytes.fromhex(header.epoch) if has_epoch else b""
    rest = pack_header(msgspec.structs.replace(header, epoch=_ELSEWHERE)) if has_epoch else plain
    packed = epoch + deflate_small(rest)
    if len(packed) >= len(plain):
        return 0, plain, len(plain)
    return SHORT | (HAS_EPOCH if has_epoch else 0), packed, len(plain)


def read_header(flags: int, packed: memoryview, max_bytes: int) -> FrameHeader:
    """Return a header from its bytes as they were sent; more than the bound is never allocated."""
    if not flags & SHORT:
        return unpack_header(packed)
    bound = min(max_bytes, MAX_SHORT_BYTES)
    if not flags & HAS_EPOCH:
        return unpack_header(inflate_small(packed, bound))
    header = unpack_header(inflate_small(packed[_EPOCH_BYTES:], bound))
    if header.epoch != _ELSEWHERE:
        raise WireError("the header of the frame has two epochs")
    return msgspec.structs.replace(header, epoch=bytes(packed[:_EPOCH_BYTES]).hex())
