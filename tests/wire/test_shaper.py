"""A declared link is felt: the arithmetic exactly, a real run roughly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.timeline import ManualClock
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.shaper import BURST_S, Shaper, TokenBucket
from tests.worlds.tiers import examples
from tests.worlds.waiting import PATIENCE_S
from tests.worlds.wire_messages import some_messages


def test_an_idle_bucket_lets_its_burst_pass_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(bytes_per_s=100, burst_bytes=50)
    assert bucket.take(50, now_s=0.0) == 0.0
    assert bucket.take(100, now_s=0.0) == pytest.approx(1.0)
    assert bucket.take(100, now_s=1.0) == pytest.approx(1.0)
    assert bucket.take(50, now_s=1000.0) == 0.0


def test_a_clock_that_was_set_back_does_not_stall_the_link() -> None:
    bucket = TokenBucket(bytes_per_s=100, burst_bytes=0)
    bucket.take(100, now_s=5000.0)
    assert bucket.take(100, now_s=1000.0) == pytest.approx(2.0)
    assert bucket.take(100, now_s=1002.0) == pytest.approx(1.0)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1000)), min_size=1, max_size=30),
    st.floats(1, 10_000),
    st.floats(0, 500),
)
@settings(max_examples=examples(100))
def test_whoever_waits_as_told_never_exceeds_rate_times_time_plus_burst(
    steps: list[tuple[float, int]], rate: float, burst: float
) -> None:
    bucket = TokenBucket(rate, burst)
    now, passed = 0.0, 0
    for idle_s, size in steps:
        now += idle_s
        now += bucket.take(size, now)
        passed += size
        assert passed <= (burst + rate * now) * (1 + 1e-9) + 1e-6


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.floats(1, 10_000))
@settings(max_examples=examples(50))
def test_a_busy_link_is_used_to_its_full_rate(sizes: list[int], rate: float) -> None:
    bucket = TokenBucket(rate, 0.0)
    now = 0.0
    for size in sizes:
        now += bucket.take(size, now)
    assert now == pytest.approx(sum(sizes) / rate)


def test_the_shaper_waits_for_its_bucket_and_for_each_passage() -> None:
    clock, slept = ManualClock(), list[float]()

    def sleep(wait_s: float) -> None:
        slept.append(wait_s)
        clock.advance(round(wait_s * 1e6))

    shaper = Shaper(bytes_per_s=1000, latency_s=0.25, clock=clock, sleep=sleep)
    shaper.transmit(int(1000 * BURST_S))
    assert slept == []
    shaper.transmit(500)
    shaper.travel()
    assert slept == pytest.approx([0.5, 0.25])
    shaper.release()
    shaper.transmit(10**9)
    assert len(slept) == 2


def test_a_link_without_a_declared_bandwidth_is_not_held_up() -> None:
    slept: list[float] = []
    shaper = Shaper(sleep=slept.append)
    shaper.transmit(10**12)
    shaper.travel()
    assert slept == []


@pytest.mark.parametrize(("rate", "latency"), [(0.0, 0.0), (-1.0, 0.0), (10.0, -0.1)])
def test_an_impossible_link_is_refused(rate: float, latency: float) -> None:
    with pytest.raises(WireError):
        Shaper(rate, latency)


def test_a_declared_bandwidth_is_felt_in_a_real_run(tmp_path: Path) -> None:
    outbox, inbox = Outbox(tmp_path / "out", "eu", "center", 10**9), Inbox(tmp_path / "in")
    for number in range(20):
        outbox.append(number, some_messages(number))
    size = outbox.size_bytes
    declared = size / 0.8
    sender = Sender(outbox, lambda: LocalUplink(inbox), Shaper(declared, latency_s=0.01))
    start = time.monotonic()
    sender.start()
    assert sender.wait_until_empty(PATIENCE_S)
    elapsed_s = time.monotonic() - start
    sender.stop()
    assert elapsed_s >= 0.5  # a free link takes a tenth of this
    goodput = sender.snapshot().goodput_bytes_per_s
    assert goodput is not None
    assert goodput < 1.5 * declared
