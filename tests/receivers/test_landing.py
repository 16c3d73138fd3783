"""What is sent to a site is in its files once, whatever happens between the sending and the confirmation."""

from __future__ import annotations

import errno
import random
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.receivers.landing import LandingFolder, ReceivedLines
from catchment.receivers.lines import complete_lines, one_line, with_fields
from catchment.receivers.writer import KeyReusedError, LandingWriter, NoRoomError
from catchment.storage.disk import Disk, use_disk
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from tests.worlds.waiting import wait_until

CALLS_OF_ONE_RUN = 60  # more than two files need


def _delivery(number: int, key: str | None = None) -> ReceivedLines:
    return ReceivedLines(f'{{"n": {number}}}\n'.encode(), 1, key or f"k{number}", f"digest {number}")


def _landed(folder: Path) -> list[str]:
    visible = sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))
    return [line for path in visible for line in path.read_text().splitlines()]


def _open(folder: Path, max_bytes: int = 10**9, max_keys: int = 100) -> LandingFolder:
    landing = LandingFolder(folder, "json", max_bytes, max_keys)
    landing.open()
    return landing


@pytest.mark.parametrize("cuts_power", [False, True])
@pytest.mark.parametrize("calls", range(CALLS_OF_ONE_RUN))
def test_a_crash_at_any_call_of_the_disk_loses_and_doubles_nothing(
    tmp_path: Path, calls: int, cuts_power: bool
) -> None:
    disk = SimulatedDisk(random.Random(calls))
    folder = tmp_path / "landing"
    wanted = [[_delivery(1), _delivery(2)], [_delivery(3)]]
    confirmed = 0
    with use_disk(disk):
        disk.plan_fault(tmp_path, calls, DiskFault.KILL)
        try:
            landing = _open(folder)
            for deliveries in wanted:
                landing.land(deliveries)
                confirmed += len(deliveries)
        except Killed:
            pass
        disk.heal(tmp_path)
        disk.close_files(tmp_path)
        if cuts_power:
            disk.cut_power(tmp_path)
        landing = _open(folder)
        before = _landed(folder)
        assert len(before) >= confirmed
        for delivery in (d for deliveries in wanted for d in deliveries):  # the sender sends everything again
            if landing.digest_of(delivery.key or "") != delivery.digest:
                landing.land([delivery])
    assert sorted(_landed(folder)) == ['{"n": 1}', '{"n": 2}', '{"n": 3}']


def test_the_oldest_keys_are_forgotten_with_their_files(tmp_path: Path) -> None:
    landing = _open(tmp_path, max_keys=5)
    for number in range(20):
        landing.land([_delivery(number)])
    for opened in (landing, _open(tmp_path, max_keys=5)):
        assert [n for n in range(20) if opened.digest_of(f"k{n}")] == [15, 16, 17, 18, 19]
    assert len(list((tmp_path / ".keys").iterdir())) == 5


def test_a_writer_confirms_what_has_landed_and_recognises_what_is_sent_again(tmp_path: Path) -> None:
    writer = LandingWriter(LandingFolder(tmp_path, "json", 10**9, 100), "stream 'hits'")
    writer.start()
    first, again, other = writer.offer(_delivery(1)), writer.offer(_delivery(1)), writer.offer(_delivery(2))
    assert (first.result(60), again.result(60), other.result(60)) == (True, False, True)
    assert writer.offer(_delivery(1)).result(60) is False
    with pytest.raises(KeyReusedError, match="'k1'"):
        writer.offer(_delivery(7, key="k1"), is_key_unique=True)
    writer.stop()
    assert sorted(_landed(tmp_path)) == ['{"n": 1}', '{"n": 2}']
    assert writer.status()["repeated"] == 2


def test_a_packet_number_that_is_used_again_is_another_message(tmp_path: Path) -> None:
    writer = LandingWriter(LandingFolder(tmp_path, "json", 10**9, 100), "stream 'hits'", is_patient=True)
    writer.start()
    for number, is_repetition in ((1, False), (1, True), (1, False), (2, True)):
        text = f'{{"n": {number}}}\n'.encode()
        writer.offer(ReceivedLines(text, 1, "7", f"digest {number}", may_repeat=is_repetition)).result(60)
    writer.stop()
    assert _landed(tmp_path) == ['{"n": 1}', '{"n": 1}', '{"n": 2}']


def test_a_full_folder_refuses_and_takes_again_when_it_was_read(tmp_path: Path) -> None:
    writer = LandingWriter(LandingFolder(tmp_path, "json", 4, 100), "stream 'hits'")
    writer.start()
    writer.offer(_delivery(1)).result(60)

    def offer() -> bool:
        try:
            writer.offer(_delivery(2))
        except NoRoomError:
            return False
        return True

    wait_until(lambda: not writer.status()["has_room"], "the folder is full")
    assert not offer()
    for path in tmp_path.glob("*.json"):
        path.unlink()  # as the site does with what it has read
    wait_until(offer, "the folder takes records again")
    writer.stop()
    assert _landed(tmp_path) == ['{"n": 2}']


def test_a_patient_sender_waits_for_room_without_being_confirmed(tmp_path: Path) -> None:
    writer = LandingWriter(LandingFolder(tmp_path, "json", 4, 100), "stream 'hits'", is_patient=True)
    writer.start()
    writer.offer(_delivery(1)).result(60)
    wait_until(lambda: not writer.status()["has_room"], "the folder is full")
    waiting = writer.offer(_delivery(2))
    assert not waiting.done()
    for path in tmp_path.glob("*.json"):
        path.unlink()
    assert waiting.result(60) is True
    writer.stop()


class _FullDisk(Disk):
    """A disk that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.takes = threading.Event()
        self.refused = threading.Event()

    def write(self, file: int, data: memoryview) -> int:
        if not self.takes.is_set():
            self.refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, data)


def test_a_disk_that_refuses_is_tried_again_and_nothing_is_confirmed_before(tmp_path: Path) -> None:
    disk = _FullDisk()
    with use_disk(disk):
        writer = LandingWriter(LandingFolder(tmp_path, "json", 10**9, 100), "stream 'hits'")
        writer.start()
        landed: Future[bool] = writer.offer(_delivery(1))
        assert disk.refused.wait(60)
        wait_until(lambda: writer.status()["problem"] is not None, "the problem is told")
        assert not landed.done()
        disk.takes.set()
        assert landed.result(60) is True
        writer.stop()
    assert writer.status()["problem"] is None
    assert _landed(tmp_path) == ['{"n": 1}']


def test_a_stop_on_a_full_disk_confirms_nothing(tmp_path: Path) -> None:
    disk = _FullDisk()
    with use_disk(disk):
        writer = LandingWriter(LandingFolder(tmp_path, "json", 10**9, 100), "stream 'hits'")
        writer.start()
        landed = writer.offer(_delivery(1))
        assert disk.refused.wait(60)
        writer.stop()
    with pytest.raises(NoRoomError):
        landed.result(60)
    assert _landed(tmp_path) == []


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), min_size=1)))
def test_lines_are_those_that_are_not_blank(lines: list[str]) -> None:
    kept, count = complete_lines("\n".join(lines).encode())
    expected = [line for line in lines if line.encode().strip()]
    assert count == len(expected)
    assert kept == "".join(f"{line}\n" for line in expected).encode()


def test_messages_become_one_line_and_take_fields() -> None:
    assert one_line(b'{\n  "a": 1\r\n}') == b'{   "a": 1  }\n'
    assert with_fields(b' {"a": 1} ', {"topic": 'x/"y"'}) == b'{"a": 1, "topic": "x/\\"y\\""}'
    assert with_fields(b"{}", {"topic": "x"}) == b'{"topic": "x"}'
    assert with_fields(b"21.5", {"topic": "x"}) == b"21.5"
