"""A sender brings everything across, once, in a good order, whatever the link does; and counts it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import WireError
from catchment.timeline import ManualClock
from catchment.wire import sender as sender_module
from catchment.wire.codec import read_frame
from catchment.wire.dispatch import Dispatch, SendOrder
from catchment.wire.inbox import Inbox, LocalUplink
from catchment.wire.limits import WireLimits
from catchment.wire.link_meter import LinkMeter
from catchment.wire.outbox import Outbox, Pending
from catchment.wire.sender import RetryDelay, Sender
from catchment.wire.shaper import Shaper
from catchment.wire.uplink import Greeting, Introduction, LinkError, RefusedError, Uplink
from tests.worlds.tiers import examples
from tests.worlds.waiting import PATIENCE_S, wait_until
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import NEVER, FailingDisk, FaultyUplink, failing_disk, landed_segments


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


def store(outbox: Outbox, numbers: range) -> None:
    for number in numbers:
        outbox.append(number, some_messages(number))


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


class Waiting(list[Pending]):
    """Segments that wait, in a list: first_pending by its definition."""

    def first_pending(self, start: int = 0, excluding: Collection[int] = ()) -> Pending | None:
        return next((p for p in self if p.sequence >= start and p.sequence not in excluding), None)


def pending(sizes: list[int]) -> list[Pending]:
    return [Pending(number, Path("x"), size) for number, size in enumerate(sizes)]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=40), st.data(), st.sampled_from([0.1, 0.25, 0.5, 1.0]))
@settings(max_examples=examples(100))
def test_the_backlog_keeps_to_its_share_while_fresh_segments_wait(
    sizes: list[int], data: st.DataObject, share: float
) -> None:
    backlog_end = data.draw(st.integers(1, len(sizes)))
    order, waiting = SendOrder(ahead_segments=1000, backlog_share=share), Waiting(pending(sizes))
    order.note_reconnected(backlog_end)
    sent: list[Pending] = []
    while waiting:
        chosen = order.choose(waiting, ())
        assert chosen is not None
        if chosen.sequence < backlog_end and waiting[-1].sequence >= backlog_end:
            before = sum(p.size_bytes for p in sent if p.sequence < backlog_end)
            assert before <= share * sum(p.size_bytes for p in sent)
        sent.append(chosen)
        waiting.remove(chosen)
    for kind in (
        [p for p in sent if p.sequence < backlog_end],
        [p for p in sent if p.sequence >= backlog_end],
    ):
        assert kind == sorted(kind)
    assert sorted(sent) == pending(sizes)


def test_nothing_is_sent_that_the_window_of_the_far_side_would_refuse() -> None:
    order = SendOrder(ahead_segments=3)
    order.note_reconnected(2)
    waiting = Waiting(pending([1] * 6))
    chosen = [order.choose(waiting, taken) for taken in ({0}, {0, 1}, {0, 1, 2})]
    assert [c.sequence if c else None for c in chosen] == [2, 2, None]
    assert order.choose(Waiting(), ()) is None
    with pytest.raises(WireError, match="share"):
        SendOrder(3, backlog_share=0.0)


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
    assert "not this one" in str(sender.snapshot().last_error)
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


def test_a_pause_ends_when_the_clock_is_set_back(outbox: Outbox) -> None:
    clock = ManualClock(10**12)
    dispatch = Dispatch(outbox, SendOrder(1000), clock)
    store(outbox, range(2))
    first = dispatch.claim()
    assert first is not None
    dispatch.give_back(first)
    dispatch.pause(LinkError("full"), 5.0)
    assert dispatch.claim() is None
    clock.advance(5_000_000)
    again = dispatch.claim()
    assert again == first
    dispatch.give_back(again)
    dispatch.hold(again, LinkError("refused"), 5.0)
    second = dispatch.claim()
    assert second is not None
    assert second.sequence == 1
    clock.advance(-(10**11))
    third = dispatch.claim()
    assert third is not None
    assert third.sequence == 0


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
