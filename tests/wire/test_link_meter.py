"""Goodput and round trips from the times of segments."""

from __future__ import annotations

from catchment.wire.sending.link_meter import LinkMeter


def test_goodput_is_bytes_over_the_time_in_use_and_overlap_counts_once() -> None:
    meter = LinkMeter()
    for start_s, sent_s, end_s in [(0.0, 1.0, 3.0), (2.0, 3.0, 4.0), (10.0, 10.5, 11.0)]:
        meter.note_timing(500, start_s, sent_s, end_s)
    counters = meter.snapshot(queued_bytes=0, connected=True, last_error=None)
    assert counters.goodput_bytes_per_s == 1500 / 4.0  # each ack took the half second that any ack takes
    assert counters.round_trip_s == 1.0


def test_small_segments_on_a_long_way_do_not_make_the_link_look_slow() -> None:
    meter = LinkMeter()
    for number in range(20):  # 100 or 1,000 bytes at 1,000 bytes/s, and an ack that takes a second
        size_bytes = 100 if number % 2 else 1_000
        start_s = 10.0 * number
        meter.note_timing(size_bytes, start_s, start_s + size_bytes / 1e3, start_s + size_bytes / 1e3 + 1.0)
    goodput = meter.snapshot(queued_bytes=0, connected=True, last_error=None).goodput_bytes_per_s
    assert goodput is not None
    assert 700 < goodput <= 1_000
    assert LinkMeter().snapshot(queued_bytes=0, connected=True, last_error=None).goodput_bytes_per_s is None
