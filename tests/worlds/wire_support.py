"""What the tests of the wire share: messages to send, an uplink that misbehaves, a disk that fails at a
chosen call.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from catchment.quality.merge_sites import SiteEstimate
from catchment.storage.disk import Disk, use_disk
from catchment.wire.frames import codec
from catchment.wire.frames.codec import decode_segment
from catchment.wire.frames.versions import NEWEST_VERSION
from catchment.wire.messages import (
    Closing,
    Counted,
    Progress,
    Relayed,
    Repaired,
    Resumed,
    Segment,
    Shed,
    Skipped,
    Standing,
    Suspended,
    Updates,
)
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.segment_folder import GROUP_SUFFIX, SEGMENT_SUFFIX
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, Uplink
from tests.worlds.waiting import wait_until
from tests.worlds.wire_messages import some_messages


def landed_segments(inbox: Inbox) -> list[Segment]:
    """All segments that are in an inbox: on its disk, and as its consumer is given them."""
    by_position = frames_on_disk(inbox.folder)
    on_disk = [decode_segment(by_position[p]) for p in sorted(by_position) if p >= inbox.first_position]
    end = inbox.last_position + 1
    assert inbox.read_segments(end - len(on_disk), end) == on_disk
    return on_disk


def frames_on_disk(folder: Path) -> dict[int, bytes]:
    """The bytes of the segments in a folder by number: those of files of their own, and those that share a file."""
    found = {int(file.stem): file.read_bytes() for file in folder.glob(f"*{SEGMENT_SUFFIX}")}
    for file in folder.glob(f"*{GROUP_SUFFIX}"):
        first, count = map(int, file.stem.split("-"))
        data = file.read_bytes()
        at = 4 * count
        for number, length in enumerate(struct.unpack(f"<{count}I", data[:at]), first):
            found[number] = data[at : at + length]
            at += length
        assert at == len(data)
    return found


def land_together(inbox: Inbox, frames: Sequence[bytes], disk: FailingDisk) -> list[int | BaseException]:
    """Let several calls bring segments at once: the first lands alone, the others as one group; what each was told."""
    told: dict[int, int | BaseException] = {}

    def accept(place: int) -> None:
        try:
            told[place] = inbox.accept(frames[place])
        except BaseException as failure:  # noqa: BLE001 - it is given to whoever compares
            told[place] = failure

    def others_wait() -> None:
        others = len(frames) - 1  # of which some may be answered at once: what they bring is here already
        wait_until(lambda: inbox.landing + len(told) >= others, "the other calls to wait", pause_s=0.001)
        disk.before_open = lambda: None

    disk.before_open = others_wait
    calls = [threading.Thread(target=accept, args=(place,)) for place in range(len(frames))]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    disk.before_open = lambda: None
    return [told[place] for place in range(len(frames))]


# ---- hypothesis: any segment that a site may send

_INTEGERS = st.integers(-(2**63), 2**63 - 1)
_COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), _INTEGERS),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(allow_nan=False, width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.sampled_from(["eu", "us", "asia"])),
    (pa.binary(), st.binary(max_size=20)),
    (pa.timestamp("us", tz="UTC"), st.integers(0, 2**50)),
    (pa.date32(), st.integers(0, 30_000)),
    (pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3)),
    (pa.list_(pa.int64()), st.lists(_INTEGERS, max_size=3)),
    (pa.null(), st.none()),
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of partials: some columns of any type, nulls among the values, in one chunk or several, maybe a
    slice.
    """
    rows = draw(st.sampled_from([0, 1, 2, 7, 64, 200]))
    chosen = draw(st.lists(st.sampled_from(_COLUMNS), max_size=4))
    few = st.integers(0, 3)  # repeat a few values, as keys do
    columns = {"slice_us": pa.array([draw(few) for _ in range(rows)], pa.int64())}
    for number, (kind, values) in enumerate(chosen):
        palette = draw(st.lists(st.none() | values, min_size=1, max_size=8))
        picks = random.Random(draw(st.integers(0, 999))).choices(palette, k=rows)
        columns[f"c{number}"] = pa.array(picks, kind)
    table = pa.table(columns)
    cut = draw(st.integers(0, rows))
    return draw(st.sampled_from([table, table.slice(cut), pa.concat_tables([table.slice(0, cut), table.slice(cut)])]))


_NAMES = st.text(min_size=1, max_size=8)
_COUNTS = st.integers(0, 2**63 - 1)
_UPDATES = st.builds(Updates, _NAMES, tables(), st.lists(st.tuples(_INTEGERS, _COUNTS), max_size=3).map(tuple))
_PROGRESS = st.builds(Progress, _NAMES, _INTEGERS, _COUNTS)
_SLICES = st.lists(st.tuples(_INTEGERS, _COUNTS), max_size=3).map(tuple)
_SHARES = st.floats(0, 1)
_RATES = st.floats(0, 1, exclude_min=True, exclude_max=True)
_SIZES = st.floats(0, allow_infinity=False) | st.integers(0, 2**40).map(float)
_TOTALS = st.floats(allow_nan=False, allow_infinity=False)
_SHED = st.builds(Shed, _NAMES, _COUNTS, _RATES, _SLICES, st.lists(st.tuples(st.text(), _RATES), max_size=3).map(tuple))
_REPAIRED = st.builds(Repaired, _NAMES, _COUNTS, st.booleans())
_ESTIMATES = st.builds(SiteEstimate, _SHARES, st.none() | _SIZES, _SIZES, _TOTALS)
_SOURCES = st.lists(st.tuples(st.text(), _SHARES), max_size=3).map(tuple)
_CLOSINGS = st.builds(Closing, _INTEGERS, _NAMES, st.lists(_ESTIMATES, max_size=3).map(tuple), _SOURCES)
_STANDINGS = st.builds(Standing, _NAMES, _NAMES, _INTEGERS, st.lists(_CLOSINGS, max_size=3).map(tuple))
_COUNTED = st.builds(Counted, _NAMES, st.lists(st.tuples(_INTEGERS, _COUNTS), min_size=1, max_size=3).map(tuple))
_SUSPENDED = st.builds(Suspended, _NAMES, _COUNTS, _INTEGERS, _NAMES, st.text(), st.text())
_SUSPENSIONS = _SUSPENDED | st.builds(Skipped, _NAMES, _COUNTS, _SLICES) | st.builds(Resumed, _NAMES)
_FACTS = _PROGRESS | _SHED | _REPAIRED | _STANDINGS | _SUSPENSIONS
_RELAYED = st.builds(Relayed, _NAMES, _FACTS | _COUNTED)
_MESSAGES = st.lists(_UPDATES | _FACTS | _RELAYED, max_size=4).map(tuple)
segments = st.builds(Segment, _NAMES, _NAMES, _COUNTS, _MESSAGES)


# ---- a link that duplicates, delays and loses


class FaultyUplink:
    """Delivers some segments twice, some later than the ones after them, some not at all; loses some acks."""

    def __init__(self, inner: Uplink, seed: int, duplicate: float, reorder: float, drop: float) -> None:
        self._inner, self._random = inner, random.Random(seed)
        self._duplicate, self._reorder, self._drop = duplicate, reorder, drop
        self._late: list[bytes] = []

    def connect(self, introduction: Introduction) -> Greeting:
        self._maybe_drop()
        return self._inner.connect(introduction)

    def send(self, data: bytes) -> int:
        self._deliver_late_ones()
        if self._random.random() < self._reorder:
            self._late.append(data)
            raise LinkError("no answer yet; it will arrive after others")
        self._maybe_drop()
        acked = self._inner.send(data)
        if self._random.random() < self._duplicate:
            assert self._inner.send(data) == acked
        self._maybe_drop()
        return acked

    def close(self) -> None:
        self._deliver_late_ones(share=1.0)
        self._inner.close()

    def _deliver_late_ones(self, share: float = 0.3) -> None:
        arriving = [data for data in self._late if self._random.random() < share]
        self._late = [data for data in self._late if data not in arriving]
        self._random.shuffle(arriving)
        for data in arriving:
            self._inner.send(data)

    def _maybe_drop(self) -> None:
        if self._random.random() < self._drop / 2:
            raise LinkError("lost")


# ---- a disk that stops at a chosen call


NEVER = -1


class Killed(BaseException):
    """The process is gone: nothing that handles errors may run its course."""


class FailingDisk(Disk):
    """Ends the process at call number `at`.

    `kill`: what was written stays. `names`: a power cut after which every rename and removal since the last
    sync of the folder is undone. `content`: a power cut after which files that were not synced are cut to
    half. `error`: the call fails with an OSError, and the caller must treat that as its end. No real fsync is
    made: what it means is modelled.
    """

    def __init__(self, at: int, mode: str) -> None:
        self.at, self.mode, self.calls, self.dead = at, mode, 0, False
        self._open: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self._undo: list[tuple[Path, Callable[[], None]]] = []  # folder, and how to take a change of a name back
        self.before_open: Callable[[], None] = lambda: None  # where a thread waits for others

    def open(self, path: Path, flags: int) -> int:
        self.before_open()
        self._step()
        file = super().open(path, flags)
        self._open[file] = Path(path)
        return file

    def close(self, file: int) -> None:
        self._open.pop(file)
        os.close(file)

    def write(self, file: int, data: memoryview) -> int:
        self._step(lambda: os.write(file, data[: len(data) // 2]))
        self._unsynced.add(self._open[file])
        return os.write(file, data)

    def fsync(self, file: int) -> None:
        self._step()
        synced = self._open[file]
        self._unsynced.discard(synced)
        self._undo = [(folder, back) for folder, back in self._undo if folder != synced]

    def replace(self, old: Path, new: Path) -> None:
        self._step()
        before = new.read_bytes() if new.exists() else None
        self._undo.append((new.parent, lambda: _put_back(new, before)))
        if old in self._unsynced:
            self._unsynced = self._unsynced - {old} | {new}
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        self._step()
        content = path.read_bytes()
        self._undo.append((path.parent, lambda: _put_back(path, content)))
        os.unlink(path)

    def _step(self, partly: Callable[[], object] = lambda: None) -> None:
        if self.dead:
            raise Killed
        self.calls += 1
        if self.calls - 1 != self.at:
            return
        if self.mode == "error":
            raise OSError(5, "the disk fails")
        partly()
        self.dead = True
        raise Killed

    def lose_what_was_not_synced(self) -> None:
        """What a power cut leaves; called when the process is gone."""
        if self.mode == "names":
            for _, back in reversed(self._undo):
                back()
        if self.mode == "content":
            for path in filter(Path.exists, self._unsynced):
                os.truncate(path, path.stat().st_size // 2)


def _put_back(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


@contextmanager
def failing_disk(disk: FailingDisk) -> Iterator[FailingDisk]:
    """Every durable write goes through the disk; ends quietly when the process is 'killed'."""
    with use_disk(disk):
        try:
            yield disk
        except Killed:
            pass
        except OSError:
            if disk.mode != "error":
                raise
    disk.lose_what_was_not_synced()


def forged(header: object, body: bytes = b"", version: int = NEWEST_VERSION) -> bytes:
    """A frame with a right checksum around a header that nobody should have written."""
    packed = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    frame = struct.pack("<4sHI", codec.MAGIC, version, len(packed)) + packed + body
    return frame + struct.pack("<I", zlib.crc32(frame))


def store(outbox: Outbox, numbers: range) -> None:
    """Append a segment of some messages for each number."""
    for number in numbers:
        outbox.append(number, some_messages(number))
