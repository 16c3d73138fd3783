"""Tables as plain columns: what is read is what was written, in fewer bytes than Arrow's, and nothing else is taken."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.wire.frames.codec import decode_segment, encode_segment, pack_table, read_frame
from catchment.wire.frames.header_bytes import MAX_SHORT_BYTES, SHORT, read_header, write_header
from catchment.wire.frames.limits import WireLimits
from catchment.wire.frames.plain_columns import MAX_PLAIN_ROWS, _Reader, read_columns, write_columns, write_varints
from catchment.wire.frames.table_bytes import SMALL_BYTES, compress_plain, decompress_plain, deflate_small
from catchment.wire.frames.versions import DICTIONARY_VERSION, NEWEST_VERSION, READ_VERSIONS
from catchment.wire.messages import Progress, Segment, Updates
from tests.worlds.tiers import examples
from tests.worlds.wire_support import forged, segments, tables

EPOCH = "0123456789abcdef" * 2
ODD: dict[pa.DataType, list[Any]] = {
    pa.int8(): [0, -1, 127, -128],
    pa.int16(): [0, 1, -(2**15), 2**15 - 1],
    pa.int32(): [0, -7, 2**31 - 1, -(2**31)],
    pa.int64(): [0, 63, 64, -64, -65, 2**63 - 1, -(2**63), 1_483_228_800_000_000],
    pa.date32(): [0, -1, 19_000],
    pa.timestamp("us", "UTC"): [0, -1, 1_483_228_800_000_000],
    pa.float32(): [0.0, 1.5, 3e10, float("inf"), 16_777_216.0],
    pa.float64(): [0.0, 2.0, -3.0, 2.0**53, 2.0**53 - 1, 1e300, 0.1, float("inf"), -float("inf")],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "ä日", "\0"],
    pa.binary(): [b"", b"\x00\xff", b"x" * 200],
}


def same_bits(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables are equal in schema and in every bit, also of NaN and -0.0."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return False
    floats = [n for n, f in enumerate(one.schema) if pa.types.is_floating(f.type)]
    for number in floats:
        mine, theirs = (np.asarray(t.column(number).combine_chunks().drop_null()).tobytes() for t in (one, other))
        nulls = [t.column(number).is_null().to_pylist() for t in (one, other)]
        if mine != theirs or nulls[0] != nulls[1]:
            return False
    rest = [n for n in range(one.num_columns) if n not in floats]
    return bool(one.select(rest).equals(other.select(rest)))


@given(tables())
@settings(max_examples=examples(150))
def test_what_is_read_is_what_was_written(table: pa.Table) -> None:
    written = write_columns(table)
    if written is not None:
        assert same_bits(read_columns(written, table.num_rows), table)


@pytest.mark.parametrize("seed", range(examples(30)))
def test_odd_values_of_every_type_survive(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.choice([0, 1, 3, 8, 9, MAX_PLAIN_ROWS])
    fields, columns = [], []
    for number, (type_, values) in enumerate(ODD.items()):
        nullable = chance.random() < 0.7
        share = chance.choice([0.0, 0.3, 1.0]) if nullable else 0.0
        chosen = [None if chance.random() < share else chance.choice(values) for _ in range(rows)]
        fields.append(pa.field(f"c{number}", type_, nullable=nullable))
        columns.append(pa.array(chosen, type_))
    table = pa.table(columns, schema=pa.schema(fields))
    written = write_columns(table)
    assert written is not None
    assert same_bits(read_columns(written, rows), table)


def test_bits_of_doubles_survive_that_equality_does_not_see() -> None:
    doubles = struct.unpack("<4d", struct.pack("<4Q", 0x7FF8000000000001, 0xFFF8000000000000, 1 << 63, 0))
    for values in (doubles, doubles[2:], doubles[3:]):
        table = pa.table({"x": pa.array(values, pa.float64())})
        assert same_bits(read_columns(write_columns(table) or b"", table.num_rows), table)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40))
@settings(max_examples=examples(200))
def test_varints_are_read_as_they_were_written(numbers: list[int]) -> None:
    written = write_varints(np.array(numbers, np.uint64))
    reader = _Reader(np.frombuffer(written + b"\x05", np.uint8))
    assert reader.varints(len(numbers)).tolist() == numbers
    assert reader.take(1).tolist() == [5]


def test_what_is_large_or_of_another_type_is_left_to_arrow() -> None:
    assert write_columns(pa.table({"a": [1] * (MAX_PLAIN_ROWS + 1)})) is None
    assert write_columns(pa.table({"a": pa.array([[1]])})) is None
    assert write_columns(pa.table({"a": [1]}).replace_schema_metadata({"k": "v"})) is None
    long = pa.table({"a": ["x" * 100] * 200})
    assert len(write_columns(long) or b"") > SMALL_BYTES
    assert pack_table(long).dictionary_columns == (0,)  # which only Arrow's streams have


def test_every_cut_and_every_altered_byte_is_read_as_some_table_or_refused() -> None:
    table = pa.table({"slice_us": [5, 6, 7], "k": ["a", None, "ccc"], "x": [1.5, 2.0, 3.0], "b": [True, None, False]})
    written = write_columns(table) or b""
    refused = 0
    for place in range(len(written)):
        altered = bytearray(written)
        altered[place] ^= 0xFF
        for data in (written[:place], bytes(altered)):
            try:
                found = read_columns(data, 3)
                found.validate(full=True)
                assert found.num_rows in (0, 3)
            except (WireError, pa.ArrowException):
                refused += 1
    assert refused > len(written)


def test_a_forged_table_of_plain_columns_is_refused() -> None:
    written = write_columns(pa.table({"slice_us": [5, 6]})) or b""
    body = compress_plain(written)
    right = ["u", "q", 2, len(written), len(body), [], []]
    assert decode_segment(forged(["eu", "e", 0, [right]], body)).sequence == 0
    for place, value in [(2, 3), (2, 2**40), (3, len(written) - 1), (3, 2**30), (4, len(body) - 1), (6, [0])]:
        wrong = [*right[:place], value, *right[place + 1 :]]
        with pytest.raises(WireError):
            decode_segment(forged(["eu", "e", 0, [wrong]], body))
    with pytest.raises(WireError):
        decode_segment(forged(["eu", "e", 0, [right]], body, DICTIONARY_VERSION))
    with pytest.raises(WireError):
        decompress_plain(memoryview(compress_plain(b"x" * 2**20)), 2**20)


@given(segments)
@settings(max_examples=examples(60))
def test_a_header_is_read_as_it_was_written_in_every_version(segment: Segment) -> None:
    for version in READ_VERSIONS:
        header = encode_segment(segment, version=version).header
        flags, packed, _ = write_header(header, version)
        assert read_header(flags, memoryview(packed), 2**20) == header


def test_an_epoch_takes_half_its_digits_and_a_header_that_unfolds_beyond_the_bound_is_refused() -> None:
    segment = Segment("s0", EPOCH, 7, (Progress("log_bbb1ddc2", 5, 6), Progress("log_bbb1ddc2", 7, 8)))
    encoded = encode_segment(segment)
    assert decode_segment(encoded.data) == segment
    assert len(encoded.data) < len(encode_segment(segment, version=DICTIONARY_VERSION).data) - 16
    with pytest.raises(WireError, match="at most 1 are taken"):
        read_frame(encoded.data, WireLimits(header_bytes=1))
    bomb = deflate_small(b"x" * 2**20)
    with pytest.raises(WireError, match=f"more than {MAX_SHORT_BYTES}"):
        read_header(SHORT, memoryview(bomb), 2**24)
    two = EPOCH_BYTES + deflate_small(msgspec.msgpack.encode(["eu", "e", 0, []]))
    with pytest.raises(WireError, match="two epochs"):
        read_header(3 << 30, memoryview(two), 2**20)


EPOCH_BYTES = bytes.fromhex(EPOCH)


def test_a_few_rows_take_fewer_bytes_than_in_the_version_before() -> None:
    table = pa.table(
        {"slice_us": [1_483_228_800_000_000] * 4, "country_042d73": ["de", "us", "fr", "us"], "n__count": [3, 1, 4, 1]}
    )
    segment = Segment("s0", EPOCH, 7, (Updates("log_bbb1ddc2", table, ((1_483_228_800_000_000, 9),)),))
    sizes = {version: len(encode_segment(segment, version=version).data) for version in READ_VERSIONS}
    assert sizes[NEWEST_VERSION] < 0.6 * sizes[DICTIONARY_VERSION]
