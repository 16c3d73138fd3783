"""Which files of a stream were read, and how far: part of the site's state, so that a batch commits its files too.

A file is known by its name within the watched folder, by how many of its bytes were read, and by a digest of those
bytes. What a file system says of it beside (`FileStat`) only tells whether a look at the content is worth while.

Bound: an entry is forgotten when its file has been gone for `keep_us` and the stream has moved on by the repair horizon
since, in event time. A file that comes back later still is read again, but all its records are then beyond the horizon:
they are registered as late, never merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from catchment.storage.codec import stored

NEVER_READ = b""  # the digest of a file that was read before digests were taken, and is gone

_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("read_bytes", pa.int64()),
        ("digest", pa.binary()),
        ("size_bytes", pa.int64()),
        ("inode", pa.uint64()),
        ("changed_ns", pa.int64()),
        ("gone_us", pa.int64()),
        ("gone_read_us", pa.int64()),
    ]
)


@stored()
@dataclass(frozen=True, slots=True)
class FileStat:
    """What the file system says of a file: while it says the same, the content is the same.

    `changed_ns` is when content or attributes last changed, by the clock of the file system. Nobody can set it, unlike
    the modification time.
    """

    size_bytes: int
    inode: int
    changed_ns: int


@stored()
@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file of which the first `read_bytes` were read; `digest` is of these, and `stat` is from after the reading."""

    name: str
    read_bytes: int
    digest: bytes
    stat: FileStat


@stored()
@dataclass(frozen=True, slots=True)
class FilesRead:
    """A micro-batch of a stream has read these files, up to these bytes."""

    stream: str
    files: tuple[ReadFile, ...]


@stored()
@dataclass(frozen=True, slots=True)
class FolderSeen:
    """The folder of a stream was looked at: known files that are gone, are back, or have another name (old, new).

    `keep_us` and `horizon_us` decide what is forgotten.
    """

    stream: str
    gone: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    keep_us: int = 0
    horizon_us: int = 0


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Where a stream stands: the clock, its low mark, and the newest event time that was read of it."""

    now_us: int
    low_mark_us: int
    newest_read_us: int | None


@dataclass(frozen=True, slots=True)
class GoneFile:
    """Since when a file is gone, and the newest event time that had been read by then."""

    since_us: int
    read_us: int | None

    def is_overdue(self, keep_us: int, horizon_us: int, times: StreamTimes) -> bool:
        """Return whether it is gone for long enough to be forgotten."""
        if self.read_us is None or times.now_us - self.since_us <= keep_us:
            return False
        return times.low_mark_us - self.read_us > horizon_us


@stored()
@dataclass
class KnownFilesState:
    """The known files of a stream as a table, and what was counted."""

    table: pa.Table
    read: int
    renamed: int
    forgotten: int


@dataclass
class KnownFiles:
    """The files of one stream that were read."""

    files: dict[str, ReadFile] = field(default_factory=dict)  # by name
    gone: dict[str, GoneFile] = field(default_factory=dict)  # those that are no longer in the folder
    read: int = 0  # files, in the life of the stream
    renamed: int = 0
    forgotten: int = 0

    def note_read(self, event: FilesRead) -> None:
        """Take in what a batch has read."""
        for file in event.files:
            self.read += file.name not in self.files
            self.files[file.name] = file
            self.gone.pop(file.name, None)

    def note_seen(self, event: FolderSeen, times: StreamTimes) -> None:
        """Take in what a look at the folder has found."""
        moved = {new: self.files.pop(old) for old, new in event.renamed}
        for old, _ in event.renamed:
            self.gone.pop(old, None)
        for new, file in moved.items():
            self.files[new] = replace(file, name=new)
        self.renamed += len(moved)
        for name in event.back:
            self.gone.pop(name, None)
        for name in event.gone:
            self.gone.setdefault(name, GoneFile(times.now_us, times.newest_read_us))
        for name in self.overdue(event.keep_us, event.horizon_us, times):
            del self.files[name], self.gone[name]
            self.forgotten += 1

    def overdue(self, keep_us: int, horizon_us: int, times: StreamTimes) -> list[str]:
        """Return the files that are gone for long enough to be forgotten."""
        return [name for name, gone in self.gone.items() if gone.is_overdue(keep_us, horizon_us, times)]

    def status(self) -> dict[str, int]:
        """Return the counts, as plain JSON."""
        return {
            "read": self.read,
            "known": len(self.files),
            "gone": len(self.gone),
            "renamed": self.renamed,
            "forgotten": self.forgotten,
        }

    def snapshot(self) -> KnownFilesState:
        """Return the state; a table, because there may be many files."""
        files = self.files.values()
        absences = [self.gone.get(file.name) for file in files]
        columns = [
            [f.name for f in files],
            [f.read_bytes for f in files],
            [f.digest for f in files],
            [f.stat.size_bytes for f in files],
            [f.stat.inode for f in files],
            [f.stat.changed_ns for f in files],
            [gone.since_us if gone else None for gone in absences],
            [gone.read_us if gone else None for gone in absences],
        ]
        arrays = [pa.array(values, column.type) for values, column in zip(columns, _SCHEMA, strict=True)]
        return KnownFilesState(pa.Table.from_arrays(arrays, schema=_SCHEMA), self.read, self.renamed, self.forgotten)

    @classmethod
    def restored(cls, state: KnownFilesState) -> KnownFiles:
        """Return the known files of a state."""
        known = cls(read=state.read, renamed=state.renamed, forgotten=state.forgotten)
        for name, read_bytes, digest, size, inode, changed_ns, gone_us, read_us in _rows(state.table):
            known.files[name] = ReadFile(name, read_bytes, digest, FileStat(size, inode, changed_ns))
            if gone_us is not None:
                known.gone[name] = GoneFile(gone_us, read_us)
        return known


class KnownFolders:
    """The known files of every stream of a site that reads files."""

    def __init__(self) -> None:
        self._streams: dict[str, KnownFiles] = {}

    def __contains__(self, stream: str) -> bool:
        return stream in self._streams

    def of(self, stream: str) -> KnownFiles:
        """Return the files of a stream that were read."""
        return self._streams.get(stream) or KnownFiles()

    def take_in(self, event: FilesRead | FolderSeen, times: StreamTimes) -> None:
        """Take in what was read or seen of a stream."""
        known = self._streams.setdefault(event.stream, KnownFiles())
        if isinstance(event, FilesRead):
            known.note_read(event)
        else:
            known.note_seen(event, times)

    def status(self) -> dict[str, Any]:
        """Return the counts of each stream, as plain JSON."""
        return {name: known.status() for name, known in self._streams.items()}

    def snapshot(self) -> dict[str, KnownFilesState]:
        """Return the state of every stream."""
        return {name: known.snapshot() for name, known in self._streams.items()}

    @classmethod
    def restored(cls, states: Mapping[str, KnownFilesState]) -> KnownFolders:
        """Return the known files of all streams from their states."""
        folders = cls()
        folders._streams = {name: KnownFiles.restored(state) for name, state in states.items()}
        return folders


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in _SCHEMA.names), strict=True)
