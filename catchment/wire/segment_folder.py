"""A folder of numbered segments, written durably and checked when they are read.

A segment has a file of its own, or is one of several with consecutive numbers that were written at once: their file,
`NUMBER-COUNT.segments`, begins with the length of each, and is removed with the last of them.

Outbox and inbox are built on it; what a number means, which comes next and which were seen is their concern.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from catchment.errors import WireError
from catchment.storage.files import (
    make_folder,
    remove_file,
    remove_remnants,
    rename_file,
    sync_folder,
    write_durably,
)
from catchment.storage.lock import lock_folder
from catchment.wire.frames.codec import EncodedSegment, FrameHead, read_frame, read_frame_head
from catchment.wire.frames.limits import WireLimits

SEGMENT_SUFFIX = ".segment"
GROUP_SUFFIX = ".segments"
DAMAGED_SUFFIX = ".damaged"  # ends the file name of a segment that was set aside
_GROUP_NAME = re.compile(r"([0-9]{20})-([0-9]+)" + re.escape(GROUP_SUFFIX))


class SegmentFolder:
    """Files of segments by number; the folder belongs to this process while the object lives."""

    def __init__(self, path: Path, limits: WireLimits) -> None:
        self.path = path
        self._limits = limits
        self._sizes: dict[int, int] = {}
        self._groups: dict[int, Path] = {}  # the files of segments that were written with others
        self._left: Counter[Path] = Counter()  # how many segments of a group are still here
        self.size_bytes = 0
        make_folder(path)
        lock_folder(path, self)
        remove_remnants(path)
        sync_folder(path)  # a process may have been killed between a rename and its sync: what is found is relied on

    def __len__(self) -> int:
        return len(self._sizes)

    def file(self, number: int) -> Path:
        """Return where the segment of a number is, or would be."""
        return self._groups.get(number) or self.path / f"{number:020d}{SEGMENT_SUFFIX}"

    def find_numbers(self) -> list[int]:
        """List the numbers of all files that are there, also of those that were not loaded, lowest first."""
        alone = [int(file.name.removesuffix(SEGMENT_SUFFIX)) for file in self.path.glob(f"*{SEGMENT_SUFFIX}")]
        for file in self.path.glob(f"*{GROUP_SUFFIX}"):
            named = _GROUP_NAME.fullmatch(file.name)
            if named is not None:
                self._note_group(file, int(named[1]), int(named[2]))
        return sorted({*alone, *self._groups})

    def find_damaged(self) -> list[int]:
        """List the numbers of the segments that were set aside."""
        return sorted(int(file.name.split(".")[0]) for file in self.path.glob(f"*{SEGMENT_SUFFIX}{DAMAGED_SUFFIX}"))

    def clear(self) -> None:
        """Remove every segment, also those that were set aside; none is back after a power cut."""
        for number in self.find_damaged():
            file = self.file(number)
            remove_file(file.with_name(file.name + DAMAGED_SUFFIX))
        for number in self.find_numbers():
            self.remove(number)
        sync_folder(self.path)

    def write(self, number: int, segment: EncodedSegment) -> None:
        """Store a segment; it is durable when this returns."""
        write_durably(self.file(number), segment.data)
        self.add(number, len(segment.data))

    def write_group(self, first: int, segments: Sequence[EncodedSegment]) -> None:
        """Store segments under consecutive numbers; all of them are durable when this returns, or none is there.

        They are not counted in: that is left to `add`.
        """
        if len(segments) == 1:
            write_durably(self.file(first), segments[0].data)
            return
        file = self.path / f"{first:020d}-{len(segments)}{GROUP_SUFFIX}"
        lengths = struct.pack(f"<{len(segments)}I", *(len(segment.data) for segment in segments))
        write_durably(file, b"".join((lengths, *(segment.data for segment in segments))))
        self._note_group(file, first, len(segments))

    def _note_group(self, file: Path, first: int, count: int) -> None:
        self._groups.update(dict.fromkeys(range(first, first + count), file))
        self._left[file] = count

    def add(self, number: int, size_bytes: int) -> None:
        """Count in a segment whose file is there."""
        self._sizes[number] = size_bytes
        self.size_bytes += size_bytes

    def size_of(self, number: int) -> int:
        """Return the bytes of a segment that is counted in; 0 for any other."""
        return self._sizes.get(number, 0)

    def read(self, number: int) -> EncodedSegment:
        """Read a segment and check it."""
        return read_frame(read_segment_file(self.file(number), number), self._limits)

    def read_head(self, number: int) -> FrameHead:
        """Read the header and the checksum of a segment, and not what is between."""
        with open(self.file(number), "rb") as file:
            return read_frame_head(file, self._limits)

    def remove(self, number: int) -> None:
        """Remove a segment; after a power cut its file may be back."""
        self.size_bytes -= self._sizes.pop(number, 0)
        file = self.file(number)
        if self._groups.pop(number, None) is not None:
            self._left[file] -= 1
            if self._left[file]:
                return
            del self._left[file]
        remove_file(file)

    def set_aside(self, number: int) -> Path:
        """Rename the file of a damaged segment, so that the number can be stored anew; return where it is now."""
        self.size_bytes -= self._sizes.pop(number, 0)
        file = self.file(number)
        aside = file.with_name(file.name + DAMAGED_SUFFIX)
        rename_file(file, aside)
        return aside


def read_segment_file(file: Path, number: int) -> bytes:
    """Return the bytes of one segment, whose file may have others too."""
    named = _GROUP_NAME.fullmatch(file.name)
    if named is None:
        return file.read_bytes()
    first, count = int(named[1]), int(named[2])
    with open(file, "rb") as opened:
        head = opened.read(4 * count)
        if len(head) < 4 * count:
            raise WireError("the file ends within the lengths of its segments")
        lengths = struct.unpack(f"<{count}I", head)
        opened.seek(sum(lengths[: number - first]), 1)
        return opened.read(lengths[number - first])
