"""Outbox and inbox, each by itself: numbering, acks, refusals, bounds, what is found at a start."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import StorageError, WireError
from catchment.storage.disk import use_disk
from catchment.storage.files import read_record
from catchment.storage.free_space import CHECK_EVERY_US, FreeSpace
from catchment.storage.numbers import NumberSet
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from catchment.timeline import ManualClock
from catchment.wire.frames.codec import decode_segment, encode_segment
from catchment.wire.frames.limits import WireLimits
from catchment.wire.frames.versions import NEWEST_VERSION
from catchment.wire.messages import Segment, Updates
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.receiving.refusals import LOG_EVERY_US, MAX_ORIGINS, OTHERS, Refusals
from catchment.wire.segment_folder import DAMAGED_SUFFIX, SEGMENT_SUFFIX
from catchment.wire.sending import outbox as outbox_module
from catchment.wire.sending.outbox import STATE_FILE, Outbox
from catchment.wire.sending.uplink import Introduction, RefusedError
from tests.worlds.tiers import examples
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import landed_segments

MANY = 10**9


def make_outbox(folder: Path, max_bytes: int = MANY, limits: WireLimits | None = None) -> Outbox:
    return Outbox(folder / "out", "eu", "center", max_bytes, limits or WireLimits())


def frame(sequence: int, origin: str = "eu", epoch: str = "life") -> bytes:
    return encode_segment(Segment(origin, epoch, sequence, tuple(some_messages(sequence)))).data


def refusal(inbox: Inbox, data: bytes, peer: str | None = None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        inbox.accept(data, peer=peer)
    return caught.value


@given(st.lists(st.integers(0, 30)))
@settings(max_examples=examples(100))
def test_a_number_set_is_a_set_and_survives_being_written(numbers: list[int]) -> None:
    compact, plain = NumberSet(), set[int]()
    for number in numbers:
        assert compact.add(number) == (number not in plain)
        plain.add(number)
    for found in (compact, NumberSet.from_record(compact.to_record())):
        assert [n in found for n in range(32)] == [n in plain for n in range(32)]
        assert found.lowest_missing == min(set(range(32)) - plain)
        assert found.end == max(plain, default=-1) + 1


# ---- outbox


def test_numbers_start_at_zero_and_leave_no_gap(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path)
    with pytest.raises(WireError, match="gap"):
        outbox.append(1, some_messages(1))
    for number in range(3):
        assert outbox.next_sequence == number
        outbox.append(number, some_messages(number))
    assert [p.sequence for p in outbox.pending()] == [0, 1, 2]
    assert sum(p.size_bytes for p in outbox.pending()) == outbox.size_bytes


def test_storing_a_number_again_changes_nothing_whether_pending_or_acked(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path)
    for number in range(2):
        outbox.append(number, some_messages(number))
    outbox.ack(0)
    kept = outbox.read(1)
    for number in (0, 1):
        outbox.append(number, some_messages(99))
    assert [p.sequence for p in outbox.pending()] == [1]
    assert outbox.read(1) == kept
    assert outbox.read(0) is None


def test_a_reopened_outbox_has_the_same_life_numbers_and_segments(tmp_path: Path) -> None:
    first = make_outbox(tmp_path)
    for number in range(4):
        first.append(number, some_messages(number))
    first.ack(0)
    first.ack(2)
    again = make_outbox(tmp_path)
    assert (again.epoch, again.next_sequence, again.pending()) == (first.epoch, 4, first.pending())
    again.ack_below(4)
    assert (again.pending(), again.size_bytes) == ([], 0)
    last = make_outbox(tmp_path)
    assert (last.next_sequence, last.missing()) == (4, [])


def test_the_life_is_new_when_the_folder_is_new(tmp_path: Path) -> None:
    assert make_outbox(tmp_path / "a").epoch != make_outbox(tmp_path / "b").epoch


def test_an_outbox_says_when_it_is_full_and_stores_all_the_same(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path, max_bytes=1)
    assert not outbox.full
    for number in range(2):
        outbox.append(number, some_messages(number))
        assert outbox.full
    outbox.ack_below(2)
    assert not outbox.full


def test_an_outbox_of_too_many_files_is_full_whatever_they_weigh(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, "eu", "center", MANY, max_segments=3)
    for number in range(4):
        assert outbox.full == (number >= 3)
        outbox.append(number, some_messages(number))
    outbox.ack(1)
    assert outbox.full
    outbox.ack(3)
    assert not outbox.full


@given(st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)), st.integers(0, 13), st.integers(0, 13), st.booleans())
@settings(max_examples=examples(30))
def test_what_waits_is_found_by_number_as_in_a_plain_list(
    acked: set[int], excluded: set[int], start: int, below: int, reopened: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outbox = make_outbox(Path(folder))
        for number in range(12):
            outbox.append(number, some_messages(number))
        for number in acked:
            outbox.ack(number)
        if reopened:
            outbox = make_outbox(Path(folder))
        plain = outbox.pending()
        assert [p.sequence for p in plain] == sorted(set(range(12)) - acked)
        allowed = [p for p in plain if p.sequence >= start and p.sequence not in excluded]
        assert outbox.first_pending(start, excluded) == next(iter(allowed), None)
        assert outbox.pending_below(below) == [p for p in plain if p.sequence < below]
        assert outbox.is_empty == (not plain)


def test_a_start_reads_only_the_ends_of_a_large_backlog_and_damage_is_found_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = make_outbox(tmp_path)
    for number in range(3):
        outbox.append(number, some_messages(number))
    first, second, _ = outbox.pending()
    good = second.path.read_bytes()
    damaged = bytearray(good)
    damaged[-20] ^= 1  # in the body
    second.path.write_bytes(damaged)
    monkeypatch.setattr(outbox_module, "CHECKED_AT_START_BYTES", first.size_bytes)
    again = make_outbox(tmp_path)
    assert again.pending() == outbox.pending()
    assert [again.chain_at(n) for n in range(4)] == [outbox.chain_at(n) for n in range(4)]
    assert again.read(0) == first.path.read_bytes()
    with pytest.raises(WireError, match="damaged and was set aside"):
        again.read(1)
    assert [p.sequence for p in again.pending()] == [0, 2]
    assert again.size_bytes == sum(p.size_bytes for p in again.pending())
    assert again.missing() == [1]
    again.append(1, some_messages(1))
    assert again.read(1) == good
    assert again.read(2) is not None


def test_an_ack_of_what_was_never_stored_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="ack"):
        make_outbox(tmp_path).ack(0)


def test_what_no_receiver_would_take_is_refused_where_it_is_made(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path, limits=WireLimits(rows=10))
    with pytest.raises(WireError, match="rows"):
        outbox.append(0, [Updates("q", pa.table({"slice_us": list(range(11))}))])
    assert outbox.next_sequence == 0


def test_a_damaged_segment_is_set_aside_named_and_can_be_stored_anew(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path)
    for number in range(3):
        outbox.append(number, some_messages(number))
    path = outbox.pending()[2].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WireError, match=path.name) as caught:
        make_outbox(tmp_path)
    assert "journal" in str(caught.value.hint)
    assert path.with_name(path.name + DAMAGED_SUFFIX).exists()
    again = make_outbox(tmp_path)
    assert (again.missing(), again.next_sequence) == ([2], 3)
    again.append(2, some_messages(2))
    data = again.read(2)
    assert data is not None
    assert decode_segment(data).sequence == 2
    assert again.missing() == []


def test_a_segment_of_another_version_is_refused_by_name_and_left_where_it_is(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path)
    outbox.append(0, some_messages(0))
    path = outbox.pending()[0].path
    path.write_bytes(path.read_bytes()[:4] + struct.pack("<H", NEWEST_VERSION + 1) + path.read_bytes()[6:])
    with pytest.raises(WireError, match=f"is of version {NEWEST_VERSION + 1}") as caught:
        make_outbox(tmp_path)
    assert caught.value.where == str(path)
    assert path.exists()


def test_a_segment_under_a_wrong_number_is_not_sent(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path)
    for number in range(2):
        outbox.append(number, some_messages(number))
    first, second = (p.path for p in outbox.pending())
    os.replace(second, first)
    with pytest.raises(WireError, match="segment 1"):
        make_outbox(tmp_path)


def test_a_folder_of_another_link_is_refused(tmp_path: Path) -> None:
    make_outbox(tmp_path)
    with pytest.raises(WireError, match="eu -> center"):
        Outbox(tmp_path / "out", "us", "center", MANY)


def test_segments_whose_state_file_is_gone_are_not_given_a_new_life(tmp_path: Path) -> None:
    make_outbox(tmp_path).append(0, some_messages(0))
    (tmp_path / "out" / "outbox.json").unlink()
    with pytest.raises(WireError, match=r"outbox\.json"):
        make_outbox(tmp_path)


@pytest.mark.parametrize("change", [b"", b"junk", b"00000000 {}"])
def test_a_damaged_state_file_is_refused(tmp_path: Path, change: bytes) -> None:
    make_outbox(tmp_path)
    (tmp_path / "out" / "outbox.json").write_bytes(change)
    with pytest.raises(StorageError, match="checksum"):
        make_outbox(tmp_path)


def test_a_folder_serves_one_process_at_a_time(tmp_path: Path) -> None:
    holder = make_outbox(tmp_path)
    code = (
        "import sys; from pathlib import Path; from catchment.wire.sending.outbox import Outbox; "
        "Outbox(Path(sys.argv[1]), 'eu', 'center', 1)"
    )
    other = [sys.executable, "-c", code, str(tmp_path / "out")]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "in use by another process" in refused.stderr
    del holder
    assert subprocess.run(other, capture_output=True, check=False).returncode == 0


# ---- inbox


def test_a_segment_lands_once_at_a_dense_position(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    assert inbox.last_position == -1
    for sequence in (0, 1, 0, 3, 1, 3, 2):
        assert inbox.accept(frame(sequence)) == sequence
    inbox.accept(frame(0, origin="us"))
    assert [s.sequence for s in landed_segments(inbox)] == [0, 1, 3, 2, 0]
    assert [s.origin for s in landed_segments(inbox)] == ["eu", "eu", "eu", "eu", "us"]
    assert inbox.last_position == 4
    assert [inbox.lowest_missing(site) for site in ("eu", "us", "asia")] == [4, 1, 0]
    assert inbox.size_bytes == sum(p.stat().st_size for p in tmp_path.glob(f"*{SEGMENT_SUFFIX}"))


def test_what_was_seen_is_known_after_discarding_and_reopening(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for sequence in (0, 1, 4):
        inbox.accept(frame(sequence))
    inbox.discard(2)
    inbox = Inbox(tmp_path)
    assert (len(landed_segments(inbox)), inbox.last_position, inbox.lowest_missing("eu")) == (1, 2, 2)
    inbox.discard(3)
    inbox.discard(1)
    inbox = Inbox(tmp_path)
    assert (inbox.size_bytes, inbox.last_position) == (0, 2)
    for sequence in range(5):
        inbox.accept(frame(sequence))
    assert [s.sequence for s in landed_segments(inbox)] == [2, 3]
    assert inbox.last_position == 4


def test_positions_that_are_not_there_are_an_error_not_an_empty_answer(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.accept(frame(0))
    inbox.accept(frame(1))
    inbox.discard(1)
    for start, end in [(0, 1), (1, 3)]:
        with pytest.raises(WireError, match="positions"):
            inbox.read_segments(start, end)
    with pytest.raises(WireError, match="discard"):
        inbox.discard(3)
    assert inbox.read_segments(2, 2) == []


def test_a_peer_may_write_only_its_own_name(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    assert refusal(inbox, frame(0, origin="us"), peer="eu").reason == "wrong_site"
    assert inbox.accept(frame(0, origin="us"), peer="us") == 0
    with pytest.raises(RefusedError, match="only its own name"):
        inbox.greet(Introduction("us", "life"), peer="eu")
    assert inbox.refused == {"wrong_site": 2}


def test_a_replaced_state_folder_is_noticed_also_after_a_restart(tmp_path: Path) -> None:
    Inbox(tmp_path).accept(frame(0))
    inbox = Inbox(tmp_path)
    error = refusal(inbox, frame(1, epoch="other"))
    assert (error.reason, error.retryable) == ("wrong_epoch", False)
    assert "replaced" in error.message
    inbox.discard(1)
    assert refusal(Inbox(tmp_path), frame(1, epoch="other")).reason == "wrong_epoch"
    with pytest.raises(RefusedError, match="replaced"):
        inbox.greet(Introduction("eu", "other"))


def test_a_segment_too_far_ahead_is_refused_for_the_time_being(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, WireLimits(ahead_segments=3))
    error = refusal(inbox, frame(3))
    assert (error.reason, error.retryable) == ("too_far_ahead", True)
    for sequence in (2, 0, 1, 3):
        inbox.accept(frame(sequence))
    assert inbox.lowest_missing("eu") == 4


def test_a_full_inbox_refuses_for_the_time_being_and_still_acks_what_it_has(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, WireLimits(inbox_bytes=len(frame(0)) + 5))
    inbox.accept(frame(0))
    error = refusal(inbox, frame(1))
    assert (error.reason, error.retryable) == ("full", True)
    assert inbox.accept(frame(0)) == 0
    inbox.discard(1)
    assert inbox.accept(frame(1)) == 1


def test_one_site_cannot_fill_the_inbox_of_all(tmp_path: Path) -> None:
    size_bytes = len(frame(0))
    inbox = Inbox(tmp_path, WireLimits(origin_bytes=2 * size_bytes + 10))
    for number in (0, 1):
        inbox.accept(frame(number))
    assert refusal(inbox, frame(2)).reason == "full"
    other = encode_segment(Segment("us", "life", 0, ())).data
    assert inbox.accept(other) == 0
    again = Inbox(tmp_path, WireLimits(origin_bytes=2 * size_bytes + 10))
    assert refusal(again, frame(2)).reason == "full", "what waited before a restart still counts"
    again.discard(1)
    assert again.accept(frame(2)) == 2


def test_an_inbox_whose_disk_is_nearly_full_takes_nothing_new_until_there_is_room(tmp_path: Path) -> None:
    clock = ManualClock(1)
    free = [10**9]
    inbox = Inbox(tmp_path, free_space=FreeSpace(tmp_path, 10**6, clock, lambda folder: free[0]))
    inbox.accept(frame(0))
    free[0] = 10**5
    clock.advance(CHECK_EVERY_US)
    error = refusal(inbox, frame(1))
    assert (error.reason, error.retryable) == ("full", True)
    assert "free_disk" in error.message
    assert inbox.accept(frame(0)) == 0, "what it has is acknowledged again"
    free[0] = 10**9
    clock.advance(CHECK_EVERY_US)
    assert inbox.accept(frame(1)) == 1


def test_bad_bytes_are_refused_with_a_reason_and_counted(tmp_path: Path) -> None:
    def only_visits(segment: Segment) -> None:
        if any(u.fragment != "visits" for u in segment.updates()):
            raise WireError("unknown fragment")

    inbox = Inbox(tmp_path, WireLimits(frame_bytes=2_000, origins=1), only_visits)
    assert refusal(inbox, b"junk").reason == "corrupt"
    assert refusal(inbox, b"x" * 2_001).reason == "oversized"
    newer = frame(0)[:4] + struct.pack("<H", NEWEST_VERSION + 1) + frame(0)[6:]
    error = refusal(inbox, newer)
    assert (error.reason, error.hint) == (
        "unknown_version",
        "upgrade the older end; where both are upgraded, go by one release at a time",
    )
    assert f"version {NEWEST_VERSION + 1}" in error.message
    unknown = Updates("other", pa.table({"slice_us": [1]}))
    assert refusal(inbox, encode_segment(Segment("eu", "life", 0, (unknown,))).data).reason == "unfit"
    inbox.accept(frame(0))
    assert refusal(inbox, frame(0, origin="us")).reason == "too_many_origins"
    assert inbox.refused == {"corrupt": 1, "oversized": 1, "unknown_version": 1, "unfit": 1, "too_many_origins": 1}
    assert len(landed_segments(inbox)) == 1


def test_a_damaged_or_missing_landed_file_is_found_at_the_start(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for sequence in range(3):
        inbox.accept(frame(sequence))
    middle = sorted(tmp_path.glob(f"*{SEGMENT_SUFFIX}"))[1]
    content = middle.read_bytes()
    middle.write_bytes(content[:-1])
    with pytest.raises(WireError, match=middle.name):
        Inbox(tmp_path)
    middle.unlink()
    with pytest.raises(WireError, match="position 1 is missing"):
        Inbox(tmp_path)
    middle.write_bytes(content)
    assert Inbox(tmp_path).lowest_missing("eu") == 3


def test_threads_that_send_the_same_segments_land_each_once(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)

    def send_all(reverse: bool) -> None:
        for sequence in sorted(range(20), reverse=reverse):
            inbox.accept(frame(sequence))

    threads = [threading.Thread(target=send_all, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(s.sequence for s in landed_segments(inbox)) == list(range(20))


# ---- refusals


def test_refusals_are_counted_by_site_and_reason_with_their_first_and_last_time(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    inbox = Inbox(tmp_path, WireLimits(ahead_segments=1), clock=clock)
    inbox.accept(frame(0))
    for _ in range(3):
        clock.advance(10)
        refusal(inbox, frame(1, epoch="other"))
    refusal(inbox, frame(5, origin="us"), peer="us")
    refusal(inbox, b"no frame")
    told = inbox.refusals()
    assert told["eu"]["wrong_epoch"]["count"] == 3
    assert (told["eu"]["wrong_epoch"]["first_us"], told["eu"]["wrong_epoch"]["last_us"]) == (1_010, 1_030)
    assert "was replaced" in told["eu"]["wrong_epoch"]["message"]
    assert told["us"]["too_far_ahead"]["count"] == 1
    assert told[OTHERS]["corrupt"]["count"] == 1
    assert inbox.refused == {"wrong_epoch": 3, "too_far_ahead": 1, "corrupt": 1}


def test_a_refusal_that_is_repeated_is_logged_once_per_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    refusals = Refusals(clock)
    for _ in range(1000):
        refusals.note("eu", "unfit", "no such fragment", retryable=False)
        clock.advance(LOG_EVERY_US // 400)
    assert [line.split("(")[1] for line in caplog.messages] == [
        "1 since the last line)",
        "400 since the last line)",
        "400 since the last line)",
    ]
    clock.advance(-10 * LOG_EVERY_US)
    refusals.note("eu", "unfit", "no such fragment", retryable=False)
    assert len(caplog.messages) == 4, "a clock that was set back silences nothing"


def test_names_beyond_the_bound_are_counted_together() -> None:
    refusals = Refusals(ManualClock())
    for number in range(MAX_ORIGINS + 5):
        refusals.note(f"site{number}", "wrong_site", "another name", retryable=False)
    told = refusals.status()
    assert len(told) == MAX_ORIGINS + 1
    assert told[OTHERS]["wrong_site"]["count"] == 5


def test_a_renewed_outbox_forgets_what_it_held_and_numbers_from_zero_under_another_epoch(tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path)
    for sequence in range(5):
        outbox.append(sequence, some_messages(sequence))
    outbox.ack_below(2)
    former = outbox.epoch
    left_over = {p: p.read_bytes() for p in (tmp_path / "out").glob(f"*{SEGMENT_SUFFIX}")}
    outbox.renew(life=3, first=7)
    assert (outbox.life, outbox.first, outbox.enacted, outbox.is_empty, outbox.size_bytes) == (3, 7, 7, True, 0)
    assert outbox.epoch != former
    outbox.append(0, some_messages(9))
    new = outbox.read(0)
    del outbox
    for path, data in left_over.items():  # a power cut may bring the removed files back
        if not path.exists():
            path.write_bytes(data)
    again = make_outbox(tmp_path)
    assert (again.life, again.first, again.enacted) == (3, 7, 8)
    assert [p.sequence for p in again.pending()] == [0]
    assert again.read(0) == new
    assert len(list((tmp_path / "out").glob(f"*{SEGMENT_SUFFIX}"))) == 1


@pytest.mark.parametrize("calls", range(12))
def test_an_outbox_whose_renewal_is_interrupted_takes_no_damaged_segment_for_one_of_its_new_life(
    tmp_path: Path, calls: int
) -> None:
    outbox = make_outbox(tmp_path)
    for sequence in range(3):
        outbox.append(sequence, some_messages(sequence))
    del outbox
    damage(tmp_path / "out" / f"{1:020d}{SEGMENT_SUFFIX}")
    with pytest.raises(WireError, match="set aside"):
        make_outbox(tmp_path)
    outbox = make_outbox(tmp_path)  # it knows that 1 was there, and is to be stored again
    outbox.append(1, some_messages(1))
    damage(tmp_path / "out" / f"{2:020d}{SEGMENT_SUFFIX}")  # and nobody has noticed this one
    disk = SimulatedDisk(random.Random(0))
    disk.plan_fault(tmp_path, calls, DiskFault.KILL)
    with use_disk(disk), suppress(Killed):
        outbox.renew(life=1, first=3)
    del outbox
    again = make_outbox(tmp_path) if (life := stored_life(tmp_path)) else None
    if again is None:
        assert calls < 5, "the new life begins with its first file"
        return
    assert (life, again.life, again.enacted, again.is_empty, again.missing()) == (1, 1, 3, True, [])
    assert not list((tmp_path / "out").glob(f"*{SEGMENT_SUFFIX}*"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def stored_life(folder: Path) -> int:
    state = read_record(folder / "out" / STATE_FILE)
    assert state is not None
    return int(state["life"])
