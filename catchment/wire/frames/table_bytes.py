"""How the bytes of a table are compressed, in each version of frames.

A table is an Arrow IPC stream. In the tables of a few rows that leave a site every few seconds most bytes are Arrow's:
the schema, and where each buffer begins. They are much the same in every table, so version 3 compresses small tables
with a dictionary of them (DEFLATE, RFC 1951), or as version 2 compresses all tables, by zstd, where that is smaller. A
byte before each table says which. Version 4 adds a third way, for tables that are written as plain columns
(`plain_columns.py`), with a dictionary of the usual names of columns. Law: `decompress(compress(raw, v), len(raw), v)`
equals `raw`, for every version v, and so for plain columns.

The dictionaries are part of their versions and never change: another one would be another version.
"""

from __future__ import annotations

import base64
import zlib

import pyarrow as pa

from catchment.errors import WireError
from catchment.wire.frames.versions import NEWEST_VERSION, PREVIOUS_VERSION

ZSTD_LEVEL = 3
SMALL_BYTES = 16 * 1024  # tables up to this size are tried with the dictionary; beyond it zstd is as good

_ZSTD = b"\x00"
_DICTIONARY = b"\x01"
_PLAIN = b"\x02"
_RAW_DEFLATE = -15  # the window of DEFLATE, without a header and a checksum of its own

# Arrow IPC streams of tables with one row: columns of the usual types and names, the most usual ones last.
_USUAL_BYTES = zlib.decompress(
    base64.b64decode(
        "eNrVlr9PE2EYx59rSzmhMWckgokxHYjpQEwlJnajiQwMxjCoYSA5Lu1pL722l/4gsDkwOBAnBwcHBwcHR90cGIijYWDgTyCGGGIchdfnufe9"
        "3usDhSKBwNs8vXvf5/k87/V53/u+FUKI7QSABdSGIANpGAAT77AZKewD9kz8TqlvgGG0JWQKaCm0dQNgBW0WzULbQP8q2rSKX98TgpLRHBNq"
        "jNoYmhMEzcaS3W4EdtVedPyOa1OnSv7UPnL7MXtfY7MxW2p06m277LXaXr3UjpJUfJ/iZpCf1nLktRy30AK3WXLrbc93bZVO8VXJv0J2RfJJ"
        "4nMaP4JWa9QQb0VUcM/2G+T7FTIJWDsRW/HId1dI9o9kE5aqVcTStdQou3S/HcaAQfWYCDljkOLHtXhaS6cWVqnVqdF6ZsLVpPW8AzQTQEWy"
        "Q5aqS8SSz2lLJq0YGiV/Eu3pk4fwQbImZ8lfdpbxm8g0fmTblPFpHk/X577zQt6nwr6FlSJ2MNyJltqnsib6b6TnavleybU7LdnPoA2q5wWj"
        "qOJwavE2IetPLQM31I7PhDNAMhXWOgDoVm9M1Yvq+MmQ74oBcbsJvZvJrnw8ymMxv6XVJHpX9DbG8mSZP8vy5Jk/z/IXmL/A8heZv8j8M8w/"
        "w/yz7PfOsfg5Fr/A4issvsLig0NqP8zWCS5BH+D7zy/FdHc8+/jf8fKR/O4U9yVYn88nwndRXrf+4xyoIDOBtoOJP6L5aHm03+j7irai9gLF"
        "b+7FeqZr4WioZyRPju/brlsoTz6wpazDxp7UN9pvI5oeZjX+Kr37nVqko1Lj9mPukabBnKs5XcXHW4AfSrdfHsV49S7j1QFuK73+rDG6Nl07"
        "8HzykHimuJ3+ufCAeK24cdGbW3SadoCHavSckzj2TXHzGqefx9cP4VynzvQ7Ae9EvA76vNZBnmB4I+K12JLsAD/T6KyoustnqvtLfej+Qg/d"
        "Xz1E90dPofsm0+fkKXU+8ueYP8f8vc4B85zPAWB9s89z4bLrur7Xj9Pv3v3dKYPNo+t43jiZjpOtMa1eECfX6nntPX8v+tfqi6IPOeN4fcj1"
        "+l8IB/XhygXUh+g/31nvZ74v/wKz/4Pi"
    )
)

# How usual columns begin as plain columns, and headers, the most usual ones last.
_USUAL_NAMES = (
    b"__total__square__mean__m2__min__max__first__last__top__values__sketch__kll__hll__hashes__lo__p5_hi__p4_lo__p4_hi"
    b"__p3_lo__p3_hi__p2_lo__p2_hi__p1_lo__p1_hi__count__sum_bytes_value_price_amount_quantity_duration_latency_status"
    b"_code_country_city_region_page_path_url_host_site_device_client_user_id_key_name_type_kind"
    b"\x0eapprox_count_distinct_\x0cstddev_variance_moments_avg_min_max_count_sum_\x08slice_us\x83\x08slice_us\xc3"
)


def compress(raw: pa.Buffer, version: int) -> bytes:
    """Return the bytes of a table as they are sent in frames of a version."""
    packed: bytes = pa.Codec("zstd", ZSTD_LEVEL).compress(raw, asbytes=True)
    if version == PREVIOUS_VERSION:
        return packed
    if raw.size <= SMALL_BYTES:
        deflated = _deflate(raw)
        if len(deflated) < len(packed):
            return _DICTIONARY + deflated
    return _ZSTD + packed


def compress_plain(raw: bytes) -> bytes:
    """Return the bytes of a table of plain columns as they are sent."""
    return _PLAIN + deflate_small(raw)


def is_plain(packed: memoryview, version: int) -> bool:
    """Return whether a table was sent as plain columns."""
    return version >= NEWEST_VERSION and bytes(packed[:1]) == _PLAIN


def decompress_plain(packed: memoryview, raw_bytes: int) -> bytes:
    """Return the bytes of a table of plain columns; more than the declared size is never allocated."""
    if raw_bytes > SMALL_BYTES:
        raise WireError(f"a table of {raw_bytes} bytes is written as plain columns, at most {SMALL_BYTES} are")
    return _inflate_exactly(packed[1:], raw_bytes, _USUAL_NAMES)


def deflate_small(raw: bytes) -> bytes:
    """Return a few bytes, compressed with the dictionary of usual names."""
    packer = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, _RAW_DEFLATE, zdict=_USUAL_NAMES)
    return packer.compress(raw) + packer.flush()


def inflate_small(packed: memoryview, max_bytes: int) -> bytes:
    """Return what `deflate_small` was given; more than the bound is refused and never allocated."""
    unpacker = zlib.decompressobj(_RAW_DEFLATE, zdict=_USUAL_NAMES)
    try:
        raw = unpacker.decompress(packed, max_bytes + 1)
    except zlib.error as error:
        raise WireError(f"a part of the frame cannot be decompressed: {error}") from error
    if len(raw) > max_bytes or not unpacker.eof or unpacker.unused_data:
        raise WireError(f"a part of the frame decompresses to more than {max_bytes} bytes, or is cut short")
    return raw


def decompress(packed: memoryview, raw_bytes: int, version: int) -> pa.Buffer:
    """Return the bytes of a table; more than the declared size is never allocated."""
    if version == PREVIOUS_VERSION:
        return _unpack_zstd(packed, raw_bytes)
    way = bytes(packed[:1])
    if way == _ZSTD:
        return _unpack_zstd(packed[1:], raw_bytes)
    if way == _DICTIONARY:
        return _inflate(packed[1:], raw_bytes)
    raise WireError(f"a table is compressed in the way {way!r}, which is none of this version")


def _unpack_zstd(packed: memoryview, raw_bytes: int) -> pa.Buffer:
    return pa.Codec("zstd").decompress(pa.py_buffer(packed), decompressed_size=raw_bytes)


def _deflate(raw: pa.Buffer) -> bytes:
    packer = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, _RAW_DEFLATE, zdict=_USUAL_BYTES)
    return packer.compress(raw) + packer.flush()


def _inflate(packed: memoryview, raw_bytes: int) -> pa.Buffer:
    if raw_bytes > SMALL_BYTES:
        raise WireError(f"a table of {raw_bytes} bytes is compressed with the dictionary, at most {SMALL_BYTES} are")
    return pa.py_buffer(_inflate_exactly(packed, raw_bytes, _USUAL_BYTES))


def _inflate_exactly(packed: memoryview, raw_bytes: int, dictionary: bytes) -> bytes:
    unpacker = zlib.decompressobj(_RAW_DEFLATE, zdict=dictionary)
    try:
        raw = unpacker.decompress(packed, raw_bytes + 1)
    except zlib.error as error:
        raise WireError(f"a table cannot be decompressed: {error}") from error
    if len(raw) != raw_bytes or not unpacker.eof or unpacker.unused_data:
        raise WireError(f"a table decompresses to {len(raw)} bytes or more, its header says {raw_bytes}")
    return raw
