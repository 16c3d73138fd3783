"""Durations, sizes and bandwidths are read as people write them, and written so that they read back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import ConfigError, TimelineError
from catchment.units import SECOND_US, format_duration, parse_bandwidth, parse_duration, parse_size
from tests.worlds.tiers import examples


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1 minute", 60),
        ("90 s", 90),
        ("1 hour 30 minutes", 5400),
        ("INTERVAL '2' days", None),
        ("2 days", 172_800),
        ("0.5 s", 0.5),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, us: float | None) -> None:
    if us is None:
        with pytest.raises(TimelineError, match="cannot read the duration"):
            parse_duration(text)
    else:
        assert parse_duration(text) == us * SECOND_US


@given(st.integers(1, 10**12).map(lambda ms: ms * 1000))
def test_a_printed_duration_reads_back_equal(us: int) -> None:
    if us % SECOND_US == 0:
        assert parse_duration(format_duration(us)) == us


@pytest.mark.parametrize("text", ["", "soon", "5", "5 parsecs", "-1 s"])
def test_an_unreadable_duration_is_refused(text: str) -> None:
    with pytest.raises(TimelineError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("1 KB", 1000),
        ("1kib", 1024),
        ("1.5 MB", 1_500_000),
        ("2GiB", 2**31),
        ("7 bytes", 7),
        (9, 9),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2 MB/s", 2e6),
        ("20 Mbit/s", 2.5e6),
        ("128 kbit/s", 16e3),
        ("1000 bytes/s", 1e3),
        ("3KiB / s", 3072.0),
    ],
)
def test_bandwidths_are_read_as_people_write_them(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize("text", ["", "MB", "-1 MB", "1 parsec", "1e9", "1 MB/s", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "2", "2 MB", "-2 MB/s", "0 KB/s", "fast", "2 MB/h", "10 Mbps"])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the bandwidth"):
        parse_bandwidth(text)


@settings(max_examples=examples(50))
@given(st.integers(0, 10**12), st.sampled_from([("KB", 10**3), ("MiB", 2**20), ("GB", 10**9)]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{number} {unit[0]}") == parse_size(f"{number}{unit[0].lower()}") == number * unit[1]


@settings(max_examples=examples(50))
@given(st.integers(1, 10**6))
def test_a_byte_is_eight_bits(number: int) -> None:
    assert parse_bandwidth(f"{8 * number} Mbit/s") == pytest.approx(parse_bandwidth(f"{number} MB/s"))
