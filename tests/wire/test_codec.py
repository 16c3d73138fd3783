"""A segment on the wire is what was sent, or it is refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.quality.merge_sites import SiteEstimate
from catchment.wire.frames import table_bytes
from catchment.wire.frames.codec import (
    UnknownVersionError,
    decode_segment,
    encode_segment,
    pack_table,
    read_frame,
)
from catchment.wire.frames.header import pack_header
from catchment.wire.frames.layout import from_wire, to_wire
from catchment.wire.frames.limits import WireLimits
from catchment.wire.frames.table_bytes import SMALL_BYTES, compress, decompress
from catchment.wire.frames.versions import NEWEST_VERSION, READ_VERSIONS
from catchment.wire.messages import Closing, Progress, Segment, Standing, Updates
from catchment.wire.sending.link_meter import WireSizes
from catchment.wire.sending.outbox import Pending
from tests.worlds.tiers import examples
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import forged, segments, tables

# A machine that does other things too is no fault of the codec.
RELAXED = settings(suppress_health_check=[HealthCheck.too_slow])
SMALL = encode_segment(Segment("eu", "life", 7, tuple(some_messages(7)))).data


def assert_equal(found: Segment, sent: Segment) -> None:
    assert (found.origin, found.epoch, found.sequence) == (sent.origin, sent.epoch, sent.sequence)
    assert [m for m in found.messages if not isinstance(m, Updates)] == [
        m for m in sent.messages if not isinstance(m, Updates)
    ]
    assert [type(m) for m in found.messages] == [type(m) for m in sent.messages]
    for mine, theirs in zip(found.updates(), sent.updates(), strict=True):
        assert (mine.fragment, mine.records) == (theirs.fragment, theirs.records)
        assert mine.table.equals(theirs.table)


@given(segments, st.sampled_from(READ_VERSIONS))
@settings(RELAXED, max_examples=examples(150))
def test_what_is_decoded_is_what_was_encoded(segment: Segment, version: int) -> None:
    encoded = encode_segment(segment, version=version)
    assert encoded.version == version
    assert_equal(decode_segment(encoded.data), segment)


@given(tables())
@settings(RELAXED, max_examples=examples(100))
def test_the_layout_on_the_wire_is_undone_exactly(table: pa.Table) -> None:
    shipped, coded = to_wire(table)
    assert shipped.num_rows == table.num_rows
    assert from_wire(shipped, coded, 2**30).equals(table)


def test_bits_of_numbers_survive_even_where_equality_cannot_tell() -> None:
    doubles = struct.unpack("<4d", struct.pack("<4Q", 0x7FF8000000000001, 0xFFF8000000000000, 1 << 63, 0))
    segment = Segment("eu", "e", 0, (Updates("q", pa.table({"slice_us": [1, 2, 3, 4], "x": doubles})),))
    (update,) = decode_segment(encode_segment(segment).data).updates()
    assert struct.pack("<4d", *update.table["x"].to_pylist()) == struct.pack("<4d", *doubles)


def test_dictionary_columns_and_required_fields_keep_their_types() -> None:
    schema = pa.schema(
        [
            pa.field("slice_us", pa.int64(), nullable=False),
            pa.field("k", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    chunks = [pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()]
    table = pa.table([pa.array([1, 2, 3, 4]), pa.chunked_array(chunks)], schema=schema)
    (update,) = decode_segment(encode_segment(Segment("eu", "e", 0, (Updates("q", table),))).data).updates()
    assert update.table.schema == schema
    assert update.table.to_pydict() == table.to_pydict()


def test_repeated_keys_and_small_counts_shrink_well_below_their_arrow_size() -> None:
    keys = [f"/page/{n % 50}.html" for n in range(5000)]
    table = pa.table({"slice_us": [0] * 5000, "url": keys, "n": [n % 7 for n in range(5000)]})
    plain = pa.BufferOutputStream()
    with pa.ipc.new_stream(plain, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    assert len(encode_segment(Segment("eu", "e", 0, (Updates("q", table),))).data) < 0.5 * plain.tell()


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_refused(mask: int) -> None:
    for place in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[place] ^= mask
        with pytest.raises(WireError):
            decode_segment(bytes(damaged))


def test_every_truncation_and_every_extension_is_refused() -> None:
    for length in range(len(SMALL)):
        with pytest.raises(WireError):
            decode_segment(SMALL[:length])
    for extra in (b"\0", SMALL):
        with pytest.raises(WireError):
            decode_segment(SMALL + extra)


@given(st.binary(max_size=300))
@example(b"")
@settings(RELAXED, max_examples=examples(100))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_segment(data)


@pytest.mark.parametrize(
    "header",
    [
        b"not a header",
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x94\xa2eu\xa1e\x00\xdd\xff\xff\xff\xff",
        {},
        ["eu", "e", 0],
        ["", "e", 0, []],
        ["eu", "e", -1, []],
        ["eu", "e", 1.5, []],
        ["eu", "e", True, []],
        ["eu", "e", 2**63, []],
        ["eu", "e", 0, [], 1],
        ["eu", "e", 0, {}],
        ["eu", "e", 0, [7]],
        ["eu", "e", 0, [["p", "q", 1]]],
        ["eu", "e", 0, [["p", "q", 1, -1]]],
        ["eu", "e", 0, [["p", "q", 1, 1, 1]]],
        ["eu", "e", 0, [["x", "q", 1, 1]]],
        ["eu", "e", 0, [["s", "q", 1, 1.0, [], []]]],
        ["eu", "e", 0, [["s", "q", 1, 0.0, [], []]]],
        ["eu", "e", 0, [["s", "q", 1, float("nan"), [], []]]],
        ["eu", "e", 0, [["s", "q", 1, 0.5, [], [["a", 1.5]]]]],
        ["eu", "e", 0, [["s", "q", 1, 0.5, [], [["a", 0.5]] * 1001]]],
        ["eu", "e", 0, [["r", "q", 1, 1]]],
        ["eu", "e", 0, [["u", "q", 0, 0, 5, [], []]]],
        ["eu", "e", 0, [["u", "q", 0, 0, 0, [[1]], []]]],
        ["eu", "e", 0, [["u", "q", 0, 0, 0, [], [-1]]]],
        ["eu", "e", 0, [["u", "q", 0, 0, 0, [], []]]],
        ["eu", "e", 0, [["u", "q" * 300, 0, 0, 0, [], []]]],
        ["eu", "e", 0, [["u", ["q"], 0, 0, 0, [], []]]],
    ],
)
def test_a_forged_header_is_refused_although_its_checksum_is_right(header: object) -> None:
    with pytest.raises(WireError):
        decode_segment(forged(header))


def packed(table: pa.Table, compression: str | None = None) -> tuple[int, bytes]:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    raw = sink.getvalue()
    return raw.size, compress(raw, NEWEST_VERSION)


def test_a_table_that_does_not_match_its_header_is_refused() -> None:
    raw, body = packed(pa.table({"slice_us": [1, 2]}))
    right = ["u", "q", 2, raw, len(body), [], []]
    assert decode_segment(forged(["eu", "e", 0, [right]], body)).sequence == 0
    for place, value in [(2, 3), (3, raw - 8), (4, len(body) - 1), (6, [0]), (6, [9])]:
        wrong = [*right[:place], value, *right[place + 1 :]]
        with pytest.raises(WireError):
            decode_segment(forged(["eu", "e", 0, [wrong]], body))


def test_indices_outside_of_a_dictionary_are_refused() -> None:
    shipped, coded = to_wire(pa.table({"k": ["a", "b"] * 50}))
    few = pa.DictionaryArray.from_arrays(shipped["k"].chunk(0).indices, pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowException):
        from_wire(pa.table({"k": few}), coded, 2**30)


def test_a_small_frame_cannot_grow_beyond_the_limit_when_it_is_opened() -> None:
    table = pa.table({"slice_us": [0] * 1000, "k": ["x" * 10_000] * 1000})
    data = encode_segment(Segment("eu", "e", 0, (Updates("q", table),))).data
    assert len(data) < 5_000
    with pytest.raises(WireError, match="texts"):
        decode_segment(data, WireLimits(raw_bytes=1_000_000))
    assert decode_segment(data).messages
    zeros = encode_segment(Segment("eu", "e", 0, (Updates("q", pa.table({"slice_us": [0] * 500_000})),))).data
    with pytest.raises(WireError, match="decompressed"):
        decode_segment(zeros, WireLimits(raw_bytes=1_000_000))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("coded", [False, True], ids=["plain columns", "dictionaries"])
def test_a_table_that_is_compressed_once_more_inside_the_frame_is_not_unpacked(compression: str, coded: bool) -> None:
    """A few kilobytes would unfold to 30 or 80 MB, and with more columns to any size, beyond every declared limit."""
    text = pa.array(["x" * 80_000_000]) if coded else pa.array([0] * 3_900_000)
    table = pa.table({"slice_us": text.dictionary_encode() if coded else text})
    raw, body = packed(table, compression)
    assert raw < 500_000
    bomb = forged(["eu", "e", 0, [["u", "q", table.num_rows, raw, len(body), [], [0] if coded else []]]], body)
    del table, text
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(WireError, match="an Arrow message inside the frame is compressed"):
        decode_segment(bomb)
    assert pa.total_allocated_bytes() <= before
    assert pa.default_memory_pool().max_memory() <= peak


def test_metadata_of_arrow_messages_that_is_cut_short_or_altered_never_breaks_the_reader() -> None:
    raw, body = packed(pa.table({"slice_us": [1, 2], "k": ["a", "b"]}))
    plain = bytearray(decompress(memoryview(body), raw, NEWEST_VERSION).to_pybytes())
    refused = 0
    for place in range(0, len(plain), 3):
        altered = bytearray(plain)
        altered[place] ^= 0xFF
        again = compress(pa.py_buffer(altered), NEWEST_VERSION)
        try:
            decode_segment(forged(["eu", "e", 0, [["u", "q", 2, raw, len(again), [], []]]], again))
        except WireError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("limit", ["frame_bytes", "header_bytes", "rows", "messages", "slices", "name_bytes"])
def test_each_limit_refuses_what_is_beyond_it(limit: str) -> None:
    assert read_frame(SMALL).header.sequence == 7
    with pytest.raises(WireError):
        read_frame(SMALL, WireLimits(**{limit: 1}))
    with pytest.raises(WireError):
        encode_segment(Segment("eu", "life", 7, tuple(some_messages(7))), WireLimits(**{limit: 1}))


def test_a_frame_of_another_version_is_refused_by_name() -> None:
    newer = bytearray(SMALL)
    newer[4:6] = struct.pack("<H", NEWEST_VERSION + 1)
    with pytest.raises(UnknownVersionError, match=r"is of version 5, this catchment reads versions 2, 3 and 4"):
        read_frame(bytes(newer))


def deflated(raw: bytes) -> bytes:
    """Any bytes, compressed with the dictionary."""
    packed = table_bytes._deflate(pa.py_buffer(raw))
    return table_bytes._DICTIONARY + packed


def test_a_table_compressed_with_the_dictionary_cannot_grow_beyond_what_is_declared() -> None:
    small = b"x" * SMALL_BYTES
    assert decompress(memoryview(deflated(small)), SMALL_BYTES, NEWEST_VERSION).to_pybytes() == small
    for raw, declared in [(small * 1000, SMALL_BYTES), (small, 5), (small[:5], 6), (b"x" * 2**20, 2**20)]:
        with pytest.raises(WireError):
            decompress(memoryview(deflated(raw)), declared, NEWEST_VERSION)
    for damaged in (b"", b"\x02abc", deflated(small)[:-1], deflated(small) + b"x", b"\x01\xff"):
        with pytest.raises(WireError):
            decompress(memoryview(damaged), SMALL_BYTES, NEWEST_VERSION)


def test_the_dictionary_of_a_version_is_the_one_that_was_released() -> None:
    assert zlib.crc32(table_bytes._USUAL_BYTES) == 1132528885, "another dictionary is another version of frames"
    assert zlib.crc32(table_bytes._USUAL_NAMES) == 2122190089, "another dictionary is another version of frames"


@given(st.data())
@settings(RELAXED, max_examples=examples(200))
def test_a_header_with_any_value_changed_is_read_or_refused_but_never_breaks_the_reader(data: st.DataObject) -> None:
    """Whatever is read passes every declared bound; anything else is a WireError."""
    segment = data.draw(segments)
    header = msgspec.msgpack.decode(pack_header(encode_segment(segment).header))
    body = b"".join(pack_table(u.table).data for u in segment.updates())
    changed = data.draw(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
    )
    place = header
    while data.draw(st.booleans()) and any(isinstance(item, list) and item for item in place):
        place = data.draw(st.sampled_from([item for item in place if isinstance(item, list) and item]))
    place[data.draw(st.integers(0, len(place) - 1))] = changed
    try:
        found = decode_segment(forged(header, body))
    except WireError:
        return
    assert_equal(decode_segment(encode_segment(found).data), found)


def test_what_no_receiver_could_read_is_refused_where_it_is_made() -> None:
    endless = Standing("q", "view", 40, (Closing(40, "slack", (SiteEstimate(0.9, 0.1, 5.0, float("inf")),)),))
    for message in (endless, Progress("q", 2**63, 0), Progress("q", 2**70, 0)):
        with pytest.raises(WireError, match="header"):
            encode_segment(Segment("eu", "e", 0, (message,)))


@given(segments.filter(lambda s: s.messages))
@settings(RELAXED, max_examples=examples(50))
def test_the_sizes_of_the_fragments_add_up_to_the_frame(segment: Segment) -> None:
    encoded = encode_segment(segment)
    sizes = encoded.head.fragment_bytes()
    assert sum(sizes.values()) == len(encoded.data)
    assert set(sizes) == {m.fragment for m in segment.messages}


def stored_updates(sequence: int, *updates: Updates) -> Pending:
    return Pending.of(encode_segment(Segment("eu", "e" * 32, sequence, updates)).head, Path("x"))


def test_what_surrounds_the_rows_does_not_grow_with_them() -> None:
    frames = []
    for rows in (2, 10, 1000):
        numbers = np.random.default_rng(rows).integers(0, 2**60, rows)
        updates = Updates("a", pa.table({"slice_us": np.zeros(rows, dtype=np.int64), "n": numbers}), ((0, rows),))
        sizes, stored = WireSizes(), stored_updates(7, updates)
        sizes.note([updates], stored)
        frames.append(sizes.frame_bytes)
        assert frames[-1] < stored.size_bytes
    assert max(frames) - min(frames) < 10


def test_rows_do_not_look_dear_because_few_of_them_left_together() -> None:
    few, many = WireSizes(), WireSizes()
    for sizes, rows in ((few, 8), (many, 2000)):
        for number in range(10):
            numbers = np.random.default_rng(number).integers(0, 2**60, rows)
            updates = Updates("a", pa.table({"slice_us": np.zeros(rows, dtype=np.int64), "n": numbers}), ((0, rows),))
            sizes.note([updates], stored_updates(number, updates))
    assert few.ratio == pytest.approx(many.ratio, rel=0.4)
    assert few.frame_bytes == pytest.approx(many.frame_bytes, abs=8)  # counts in the header of many rows are longer


def test_a_fragment_with_more_rows_is_the_cause_of_more_bytes() -> None:
    small, large = (pa.table({"slice_us": list(range(n))}) for n in (3, 3000))
    sizes = encode_segment(Segment("eu", "e", 0, (Updates("a", small), Updates("b", large)))).head.fragment_bytes()
    assert sizes["b"] > 2 * sizes["a"]
    assert encode_segment(Segment("eu", "e", 0, (Progress("a", 1, 1),))).head.fragment_bytes().keys() == {"a"}
