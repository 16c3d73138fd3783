"""A sender brings everything across, once, in a good order, whatever the link does; and counts it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.timeline import ManualClock
from catchment.wire.frames.codec import read_frame
from catchment.wire.frames.limits import WireLimits
from catchment.wire.receiving.inbox import Inbox, LocalUplink
from catchment.wire.sending import sender as sender_module
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import RetryDelay, Sender
from catchment.wire.sending.shaper import Shaper
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, RefusedError, Uplink
from tests.worlds.tiers import examples
from tests.worlds.waiting import PATIENCE_S, wait_until
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import NEVER, FailingDisk, FaultyUplink, failing_disk, landed_segments, store


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "out", "eu", "center", 10**9)


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "in")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RETRY_S", "MAX_RETRY_S", "REFUSED_RETRY_S", "IDLE_CHECK_S"):
        monkeypatch.setattr(sender_module, name, 0.01)


@pytest.fixture
def started() -> Iterator[Callable[[Sender], Sender]]:
    senders: list[Sender] = []

    def start(sender: Sender) -> Sender:
        senders.append(sender)
        sender.start()
        return sender

    yield start
    for sender in senders:
        sender.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(condition, "the sender", pause_s=0.005)


# ---- whatever the link does


def deliver(outbox: Outbox, make_uplink: Callable[[], Uplink]) -> None:
    """The least that a sender must do, without threads: send what is pending until all is acked."""
    while outbox.pending():
        uplink = make_uplink()
        try:
            outbox.ack_below(uplink.connect(Introduction(outbox.origin, outbox.epoch)).expected)
            for segment in outbox.pending():
                data = outbox.read(segment.sequence)
                assert data is not None
                outbox.ack(uplink.send(data))
        except LinkError:
            continue
        finally:
            uplink.close()


SHARES = st.floats(0, 0.6)


@given(st.integers(0, 2**32), SHARES, SHARES, SHARES)
@settings(max_examples=examples(40))
def test_duplicates_reordering_and_loss_with_resend_land_the_same_set(
    seed: int, duplicate: float, reorder: float, drop: float
) -> None:
    quick = failing_disk(FailingDisk(NEVER, "kill"))  # for its speed: it makes no real fsync
    with tempfile.TemporaryDirectory() as folder, quick:
        outbox, inbox = Outbox(Path(folder) / "out", "eu", "center", 10**9), Inbox(Path(folder) / "in")
        store(outbox, range(12))
        seeds = iter(range(seed, seed + 10**9))
        deliver(outbox, lambda: FaultyUplink(LocalUplink(inbox), next(seeds), duplicate, reorder, drop))
        assert sorted(s.sequence for s in landed_segments(inbox)) == list(range(12))
        assert all(next(s.progress()).updates_total == s.sequence for s in landed_segments(inbox))


@pytest.mark.parametrize("seed", range(4))
def test_the_sender_brings_everything_across_a_faulty_link_once(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender], seed: int
) -> None:
    seeds = iter(range(seed * 1000, 10**6))
    sender = started(Sender(outbox, lambda: FaultyUplink(LocalUplink(inbox), next(seeds), 0.3, 0.2, 0.3)))
    for number in range(30):
        outbox.append(number, some_messages(number))
        sender.notify()
    assert sender.wait_until_empty(PATIENCE_S)
    sender.raise_failure()
    assert sorted(s.sequence for s in landed_segments(inbox)) == list(range(30))
    counters = sender.snapshot()
    assert counters.queued_bytes == 0
    assert counters.bytes_sent >= counters.bytes_acked > 0


def test_a_sender_goes_on_where_the_far_side_is_and_does_not_send_again_what_landed(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    store(outbox, range(5))
    for number in range(3):  # landed, but the ack was lost with the process
        inbox.accept(outbox.read(number) or b"")
    sender = started(Sender(outbox, lambda: LocalUplink(inbox)))
    assert sender.wait_until_empty(PATIENCE_S)
    assert sender.snapshot().segments == 2
    assert [s.sequence for s in landed_segments(inbox)[:3]] == [0, 1, 2]


def test_an_append_that_nobody_announced_is_found(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    started(Sender(outbox, lambda: LocalUplink(inbox)))
    store(outbox, range(1))
    wait_for(lambda: inbox.lowest_missing("eu") == 1)
    assert [s.sequence for s in landed_segments(inbox)] == [0]


# ---- order


class RecordingUplink(LocalUplink):
    """Writes down what is sent, and lets it through when the gate is open."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(inbox)
        self.order: list[int] = []
        self.entered, self.gate = threading.Semaphore(0), threading.Semaphore(0)

    def send(self, data: bytes) -> int:
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        acked = super().send(data)
        self.order.append(acked)
        return acked


def test_after_an_outage_fresh_segments_overtake_the_backlog_and_it_is_not_starved(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    store(outbox, range(6))
    uplink = RecordingUplink(inbox)
    sender = started(Sender(outbox, lambda: uplink, lanes=1))
    assert uplink.entered.acquire(timeout=PATIENCE_S)
    store(outbox, range(6, 12))  # fresh: stored since the link is there
    uplink.gate.release(100)
    assert sender.wait_until_empty(PATIENCE_S)
    assert uplink.order[:2] == [0, 6]
    half = uplink.order[:8]
    assert [n for n in half if n < 6] == sorted(n for n in half if n < 6)
    assert 2 <= sum(n < 6 for n in half) <= 5
    assert sorted(uplink.order) == list(range(12))


def test_a_window_smaller_than_the_backlog_drains_without_a_refusal(
    outbox: Outbox, tmp_path: Path, started: Callable[[Sender], Sender]
) -> None:
    limits = WireLimits(ahead_segments=2)
    inbox = Inbox(tmp_path / "in", limits)
    store(outbox, range(12))
    sender = started(Sender(outbox, lambda: LocalUplink(inbox), limits=limits))
    store(outbox, range(12, 20))
    assert sender.wait_until_empty(PATIENCE_S)
    assert inbox.refused == {}


# ---- what goes wrong for longer


def test_a_link_that_was_down_is_used_when_it_is_back(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    up = threading.Event()

    class Flapping(LocalUplink):
        def connect(self, introduction: Introduction) -> Greeting:
            if not up.is_set():
                raise LinkError("the cable is out")
            return super().connect(introduction)

    store(outbox, range(3))
    sender = started(Sender(outbox, lambda: Flapping(inbox)))
    wait_for(lambda: sender.snapshot().last_error is not None)
    down = sender.snapshot()
    assert (down.connected, down.last_error, down.queued_bytes) == (
        False,
        "the cable is out",
        outbox.size_bytes,
    )
    up.set()
    assert sender.wait_until_empty(PATIENCE_S)
    wait_for(lambda: sender.snapshot().last_error is None)
    assert sender.snapshot().connected


def test_one_refused_segment_is_kept_and_does_not_stop_the_others(
    outbox: Outbox, tmp_path: Path, started: Callable[[Sender], Sender]
) -> None:
    def no_two(segment: object) -> None:
        if getattr(segment, "sequence", None) == 2 and not mended.is_set():
            raise WireError("not this one")

    mended = threading.Event()
    inbox = Inbox(tmp_path / "in", admit=no_two)
    store(outbox, range(5))
    sender = started(Sender(outbox, lambda: LocalUplink(inbox)))
    wait_for(lambda: [p.sequence for p in outbox.pending()] == [2])
    wait_for(lambda: "not this one" in str(sender.snapshot().last_error))
    mended.set()
    assert sender.wait_until_empty(PATIENCE_S)
    assert inbox.lowest_missing("eu") == 5
    assert sender.snapshot().last_error is None


def test_a_segment_that_the_outbox_has_lost_is_reported_and_sent_when_it_is_stored_anew(
    outbox: Outbox, tmp_path: Path, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    store(outbox, range(3))
    outbox.pending()[1].path.write_bytes(b"damaged")
    with pytest.raises(WireError, match="set aside"):
        Outbox(tmp_path / "out", "eu", "center", 10**9)
    again = Outbox(tmp_path / "out", "eu", "center", 10**9)
    sender = started(Sender(again, lambda: LocalUplink(inbox)))
    wait_for(lambda: "segment 1 is not in the outbox" in str(sender.snapshot().last_error))
    wait_for(lambda: inbox.last_position == 1)
    again.append(1, some_messages(1))
    wait_for(lambda: inbox.lowest_missing("eu") == 3 and sender.snapshot().last_error is None)


def test_a_replaced_site_folder_is_reported_and_nothing_lands(
    tmp_path: Path, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    first = Outbox(tmp_path / "old", "eu", "center", 10**9)
    store(first, range(1))
    inbox.accept(first.read(0) or b"")
    second = Outbox(tmp_path / "new", "eu", "center", 10**9)
    store(second, range(2))
    sender = started(Sender(second, lambda: LocalUplink(inbox)))
    wait_for(lambda: "replaced" in str(sender.snapshot().last_error))
    assert len(second.pending()) == 2
    assert inbox.last_position == 0


class Expecting:
    """A far side that is at another number than it should be."""

    def __init__(self, expected: int) -> None:
        self.expected = expected

    def connect(self, introduction: Introduction) -> Greeting:
        return Greeting(self.expected)

    def send(self, data: bytes) -> int:
        raise AssertionError("nothing may be sent")

    def close(self) -> None: ...


@pytest.mark.parametrize("expected", [0, 5])
def test_an_old_copy_of_either_folder_is_noticed_before_anything_is_sent(
    outbox: Outbox, started: Callable[[Sender], Sender], expected: int
) -> None:
    store(outbox, range(3))
    outbox.ack(0)
    sender = started(Sender(outbox, lambda: Expecting(expected)))
    wait_for(lambda: "old copy" in str(sender.snapshot().last_error))
    assert len(outbox.pending()) == 2


def test_a_disk_error_ends_the_sender_and_is_raised_to_whoever_checks(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(sequence: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(outbox, "ack", fail)
    store(outbox, range(3))
    sender = started(Sender(outbox, lambda: LocalUplink(inbox)))
    assert sender.wait_until_empty(PATIENCE_S)
    with pytest.raises(OSError, match="no space"):
        sender.raise_failure()
    assert "no space" in str(sender.snapshot().last_error)


def test_an_ack_of_another_number_is_not_believed(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    class Confused(LocalUplink):
        def send(self, data: bytes) -> int:
            return super().send(data) + 1

    store(outbox, range(2))
    sender = started(Sender(outbox, lambda: Confused(inbox), lanes=1))
    wait_for(lambda: inbox.lowest_missing("eu") == 2 and not outbox.pending())
    sender.raise_failure()
    assert sender.snapshot().round_trip_s is None, "both were learned of by asking again, none by its ack"


# ---- counters


def test_the_counters_agree_with_the_frames_that_were_sent(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    store(outbox, range(10))
    frames = [outbox.read(p.sequence) or b"" for p in outbox.pending()]
    sender = started(Sender(outbox, lambda: LocalUplink(inbox)))
    assert sender.wait_until_empty(PATIENCE_S)
    counters = sender.snapshot()
    total = sum(map(len, frames))
    assert (counters.bytes_sent, counters.bytes_acked) == (total, total)
    assert (counters.segments, counters.resent) == (10, 0)
    assert counters.fragment_bytes == {"visits": sum(read_frame(f).head.fragment_bytes()["visits"] for f in frames)}


def test_a_resend_is_counted_as_sent_and_not_as_acked(
    outbox: Outbox, inbox: Inbox, started: Callable[[Sender], Sender]
) -> None:
    failures = iter([True, True, False])

    class Lossy(LocalUplink):
        def send(self, data: bytes) -> int:
            if next(failures):
                raise LinkError("lost")
            return super().send(data)

    store(outbox, range(1))
    size = outbox.size_bytes
    sender = started(Sender(outbox, lambda: Lossy(inbox), lanes=1, clock=ManualClock()))
    wait_for(lambda: sender.snapshot().segments == 1)
    counters = sender.snapshot()
    assert (counters.bytes_sent, counters.bytes_acked, counters.resent) == (3 * size, size, 2)


def test_stopping_ends_a_long_wait_on_a_slow_link_and_keeps_what_is_not_acked(outbox: Outbox, inbox: Inbox) -> None:
    store(outbox, range(2))
    sender = Sender(outbox, lambda: LocalUplink(inbox), Shaper(bytes_per_s=0.001))
    sender.start()
    wait_for(lambda: sender.snapshot().connected)
    sender.stop()
    assert len(outbox.pending()) == 2
    assert inbox.last_position == -1


class HangingUplink(LocalUplink):
    """A far side that takes a segment and never answers, until its connection is closed."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(inbox)
        self.entered, self.closed = threading.Event(), threading.Event()

    def send(self, data: bytes) -> int:
        self.entered.set()
        assert self.closed.wait(PATIENCE_S)
        raise LinkError("the connection was closed")

    def close(self) -> None:
        self.closed.set()


def test_stopping_does_not_wait_for_an_answer_that_does_not_come(
    outbox: Outbox, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "STOP_GRACE_S", 0.05)
    store(outbox, range(2))
    uplink = HangingUplink(inbox)
    sender = Sender(outbox, lambda: uplink, lanes=1)
    sender.start()
    assert uplink.entered.wait(PATIENCE_S)
    sender.stop()
    assert uplink.closed.is_set()
    assert len(outbox.pending()) == 2


def test_a_far_side_without_room_is_left_alone_by_all_lanes_until_it_has_some(
    outbox: Outbox, tmp_path: Path, started: Callable[[Sender], Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "FIRST_RETRY_S", 0.2)
    monkeypatch.setattr(sender_module, "MAX_RETRY_S", 0.2)
    store(outbox, range(40))
    inbox = Inbox(tmp_path / "in", WireLimits(inbox_bytes=outbox.pending()[0].size_bytes * 5))
    sender = started(Sender(outbox, lambda: LocalUplink(inbox)))
    wait_for(lambda: inbox.refused.get("full", 0) >= 3)
    wait_for(lambda: "wait to be consumed" in str(sender.snapshot().last_error))
    while not outbox.is_empty:
        inbox.discard(inbox.last_position + 1)
        wait_for(lambda: inbox.size_bytes > 0 or outbox.is_empty)
    assert sender.wait_until_empty(PATIENCE_S)
    wait_for(lambda: sender.snapshot().last_error is None)
    assert inbox.lowest_missing("eu") == 40


@given(st.text(max_size=5), st.integers(1, 40))
@settings(max_examples=examples(30))
def test_delays_double_up_to_their_bound_and_are_drawn_at_random(seed: str, failures: int) -> None:
    delay = RetryDelay(seed)
    longest = [min(sender_module.FIRST_RETRY_S * 2**n, sender_module.MAX_RETRY_S) for n in range(failures)]
    drawn = [delay.next_s() for _ in range(failures)]
    assert all(most / 2 <= given_s <= most for given_s, most in zip(drawn, longest, strict=True))
    delay.reset()
    assert delay.next_s() <= sender_module.FIRST_RETRY_S
    assert RetryDelay(seed + "x").next_s() != RetryDelay(seed).next_s(), "two sites do not come back at once"


def test_refusals_know_whether_trying_again_can_help() -> None:
    assert RefusedError("full", "later").retryable
    assert not RefusedError("corrupt", "never").retryable
    assert LinkError("down").retryable
