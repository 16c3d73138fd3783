"""A folder of numbered segments, one file each, written durably and checked when they are read.

Outbox and inbox are built on it; what a number means, which comes next and which were seen is their concern.
"""

from __future__ import annotations

from pathlib import Path

from catchment.storage.files import make_folder, remove_file, remove_remnants, rename_file, write_durably
from catchment.storage.lock import lock_folder
from catchment.wire.codec import EncodedSegment, FrameHead, read_frame, read_frame_head
from catchment.wire.limits import WireLimits

SEGMENT_SUFFIX = ".segment"
DAMAGED_SUFFIX = ".damaged"  # ends the file name of a segment that was set aside


class SegmentFolder:
    """Files of segments by number; the folder belongs to this process while the object lives."""

    def __init__(self, path: Path, limits: WireLimits) -> None:
        self.path = path
        self._limits = limits
        self._sizes: dict[int, int] = {}
        self.size_bytes = 0
        make_folder(path)
        lock_folder(path, self)
        remove_remnants(path)

    def __len__(self) -> int:
        return len(self._sizes)

    def file(self, number: int) -> Path:
        """Return where the segment of a number is, or would be."""
        return self.path / f"{number:020d}{SEGMENT_SUFFIX}"

    def find_numbers(self) -> list[int]:
        """List the numbers of all files that are there, also of those that were not loaded, lowest first."""
        return sorted(int(file.name.removesuffix(SEGMENT_SUFFIX)) for file in self.path.glob(f"*{SEGMENT_SUFFIX}"))

    def find_damaged(self) -> list[int]:
        """List the numbers of the segments that were set aside."""
        return sorted(int(file.name.split(".")[0]) for file in self.path.glob(f"*{SEGMENT_SUFFIX}{DAMAGED_SUFFIX}"))

    def remove_damaged(self) -> None:
        """Remove the segments that were set aside."""
        for number in self.find_damaged():
            file = self.file(number)
            remove_file(file.with_name(file.name + DAMAGED_SUFFIX))

    def write(self, number: int, segment: EncodedSegment) -> None:
        """Store a segment; it is durable when this returns."""
        write_durably(self.file(number), segment.data)
        self.add(number, len(segment.data))

    def add(self, number: int, size_bytes: int) -> None:
        """Count in a segment whose file is there."""
        self._sizes[number] = size_bytes
        self.size_bytes += size_bytes

    def size_of(self, number: int) -> int:
        """Return the bytes of a segment that is counted in; 0 for any other."""
        return self._sizes.get(number, 0)

    def read(self, number: int) -> EncodedSegment:
        """Read a segment and check it."""
        return read_frame(self.file(number).read_bytes(), self._limits)

    def read_head(self, number: int) -> FrameHead:
        """Read the header and the checksum of a segment, and not what is between."""
        with open(self.file(number), "rb") as file:
            return read_frame_head(file, self._limits)

    def remove(self, number: int) -> None:
        """Remove a segment; after a power cut its file may be back."""
        self.size_bytes -= self._sizes.pop(number, 0)
        remove_file(self.file(number))

    def set_aside(self, number: int) -> Path:
        """Rename the file of a damaged segment, so that the number can be stored anew; return where it is now."""
        self.size_bytes -= self._sizes.pop(number, 0)
        file = self.file(number)
        aside = file.with_name(file.name + DAMAGED_SUFFIX)
        rename_file(file, aside)
        return aside
