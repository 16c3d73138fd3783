"""The disk fails, or the process ends, at every single call: nothing acked is lost, nothing lands twice.

A site stores segments, sends them (out of order, some twice) and hears acks; a center consumes what landed
and discards it. Both are stopped at call k, for every k; then they start again, being stopped during the
start as well, and finish. The only things that survive besides the files are the site's journal (all messages
by number) and the center's (what it consumed, up to which position): the journals of the real pipelines.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from catchment.errors import CatchmentError
from catchment.storage.disk import current_disk, use_disk
from catchment.testing.simulated.disk import DiskFault, Killed, SimulatedDisk
from catchment.wire.frames.codec import encode_segment
from catchment.wire.messages import Segment
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.uplink import RefusedError
from tests.worlds.wire_messages import some_messages
from tests.worlds.wire_support import NEVER, FailingDisk, failing_disk, land_together, landed_segments

SEGMENTS = 4
MODES = ["kill", "names", "content", "error"]


class World:
    """A site and a center; what is in this object has been journalled or said to someone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored: set[int] = set()
        self.acked: set[int] = set()
        self.consumed: list[tuple[int, int]] = []
        self.position = 0

    def open(self) -> tuple[Outbox, Inbox]:
        return Outbox(self.folder / "out", "eu", "center", 10**9), Inbox(self.folder / "in")

    def run(self) -> None:
        """From whatever state to the end: every step is safe to do again."""
        outbox, inbox = self.open()
        for number in range(SEGMENTS):
            outbox.append(number, some_messages(number))
            self.stored.add(number)
            if number % 2:
                self._send(outbox, inbox, list(reversed([p.sequence for p in outbox.pending()])))
                self._consume(inbox)
        assert not outbox.pending()
        assert outbox.next_sequence == SEGMENTS

    def _send(self, outbox: Outbox, inbox: Inbox, numbers: list[int]) -> None:
        for number in numbers:
            data = outbox.read(number)
            assert data is not None
            for _ in range(2):
                assert inbox.accept(data) == number
                self.acked.add(number)
            outbox.ack(number)

    def _consume(self, inbox: Inbox) -> None:
        end = inbox.last_position + 1
        for segment in inbox.read_segments(self.position, end):
            (update,) = segment.updates()
            self.consumed.append((segment.sequence, update.table["n"][0].as_py()))
        self.position = end
        inbox.discard(end)

    def check_recovered(self) -> None:
        """What was promised before the stop holds after it."""
        outbox, inbox = self.open()
        pending = {p.sequence for p in outbox.pending()}
        assert self.stored <= pending | set(range(outbox.next_sequence)) - set(outbox.missing())
        assert not outbox.missing()
        landed = {segment.sequence for segment in landed_segments(inbox)}
        assert self.acked <= landed | {sequence for sequence, _ in self.consumed}
        assert inbox.last_position + 1 >= self.position

    def check_finished(self) -> None:
        assert sorted(self.consumed) == [(n, n) for n in range(SEGMENTS)]


class CrowdedWorld(World):
    """Segments come to the center by several calls at once, each twice, so that most of them land in one file."""

    def _send(self, outbox: Outbox, inbox: Inbox, numbers: list[int]) -> None:
        disk = current_disk()
        assert isinstance(disk, FailingDisk)
        frames = [frame for frame in map(outbox.read, numbers) if frame is not None]
        told = land_together(inbox, frames * 2, disk)
        self.acked.update(answer for answer in told if isinstance(answer, int))
        failures = [answer for answer in told if isinstance(answer, BaseException)]
        if failures:  # the end of the process, and not what those were told that came after it
            raise min(failures, key=lambda failure: isinstance(failure, RefusedError))
        for number in numbers:
            outbox.ack(number)


def stopped_worlds(
    folder: Path, mode: str, kind: type[FailingDisk] = FailingDisk, make_world: type[World] = World
) -> Iterator[World]:
    """A world stopped at call 0, another at call 1, and so on until one runs to its end."""
    for at in count():
        world = make_world(folder / str(at))
        with failing_disk(kind(at, mode)) as disk:
            world.run()
        yield world
        if disk.calls <= at:
            return


def recover(world: World, mode: str) -> None:
    """Start again, stopped at the first call of the start, then at its second, until it comes through."""
    for at in count():
        with failing_disk(FailingDisk(at, mode)) as disk:
            world.open()
        if disk.calls <= at:
            return


@pytest.mark.parametrize("make_world", [World, CrowdedWorld])
@pytest.mark.parametrize("mode", MODES)
def test_a_stop_at_any_call_loses_nothing_acked_and_doubles_nothing(
    tmp_path: Path, mode: str, make_world: type[World]
) -> None:
    visited = 0
    for world in stopped_worlds(tmp_path, mode, make_world=make_world):
        recover(world, mode)
        world.check_recovered()
        with failing_disk(FailingDisk(NEVER, mode)):
            world.run()
        world.check_finished()
        visited += 1
    assert visited > 100, "fewer calls than the steps of this story make"


class LosesEverything(random.Random):
    """Of what a power cut may take back, it takes all."""

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return 0


def test_what_an_inbox_finds_after_a_kill_is_there_after_a_power_cut(tmp_path: Path) -> None:
    """A process that was killed before the name of a segment was synced has not acked it; the next one relies on it."""
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    outbox.append(0, some_messages(0))
    data = outbox.read(0)
    assert data is not None
    found = []
    for call in count():
        folder = tmp_path / str(call)
        disk = SimulatedDisk(LosesEverything())
        with use_disk(disk):
            first = Inbox(folder / "in")
            disk.plan_fault(folder, call, DiskFault.KILL)
            with suppress(Killed):
                first.accept(data)
            was_killed = disk.machine(folder).planned is None
            disk.heal(folder)
            del first
            second = Inbox(folder / "in")
            found.append(second.last_position)
            del second
            disk.cut_power(folder)
            assert Inbox(folder / "in").last_position == found[-1], f"killed at call {call}"
        if not was_killed:
            break
    assert set(found) == {-1, 0}, "killed before, and after, the segment had its name"


class LyingDisk(FailingDisk):
    """Says that everything is synced, and syncs nothing."""

    def fsync(self, file: int) -> None:
        self._step()


@pytest.mark.parametrize("make_world", [World, CrowdedWorld])
@pytest.mark.parametrize("mode", ["names", "content"])
def test_a_sync_that_does_nothing_would_be_noticed_here(tmp_path: Path, mode: str, make_world: type[World]) -> None:
    """The check of the checker."""
    noticed = 0
    for world in stopped_worlds(tmp_path, mode, LyingDisk, make_world):
        try:
            world.check_recovered()
        except (AssertionError, CatchmentError):
            noticed += 1
    assert noticed


def test_segments_that_come_at_once_share_one_sync_and_are_read_again_after_a_restart(tmp_path: Path) -> None:
    frames = [encode_segment(Segment("eu", "e", number, tuple(some_messages(number)))).data for number in range(9)]
    inbox = Inbox(tmp_path / "in")
    with failing_disk(CountingDisk(NEVER, "kill")) as disk:
        told = land_together(inbox, frames, disk)
    assert sorted(map(str, told)) == [str(number) for number in range(9)]
    assert isinstance(disk, CountingDisk)
    assert disk.syncs == 4, "a file and its name, twice: of the first segment, and of the eight others"
    landed = [segment.sequence for segment in landed_segments(inbox)]
    assert sorted(landed) == list(range(9))
    inbox.discard(4)  # some of the segments of a shared file are gone; it stays for the others
    assert [segment.sequence for segment in landed_segments(inbox)] == landed[4:]
    del inbox
    again = Inbox(tmp_path / "in")
    assert [segment.sequence for segment in landed_segments(again)] == landed[4:]
    assert again.size_bytes == sum(len(frames[number]) for number in landed[4:])
    assert again.lowest_missing("eu") == 9
    again.discard(9)
    assert not list((tmp_path / "in").glob("*.segment*")), "the shared file goes with the last of its segments"


class CountingDisk(FailingDisk):
    """Counts what is synced."""

    syncs = 0

    def fsync(self, file: int) -> None:
        self.syncs += 1
        super().fsync(file)


def test_after_a_disk_error_the_inbox_takes_nothing_more_and_says_why(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "out", "eu", "center", 10**9)
    outbox.append(0, some_messages(0))
    data = outbox.read(0)
    assert data is not None
    inbox = Inbox(tmp_path / "in")
    inbox.raise_failure()
    with failing_disk(FailingDisk(2, "error")):
        inbox.accept(data)
    with pytest.raises(RefusedError, match="disk") as caught:
        inbox.accept(data)
    assert caught.value.retryable
    with pytest.raises(OSError, match="the disk fails"):
        inbox.raise_failure()
    assert Inbox(tmp_path / "in").accept(data) == 0
