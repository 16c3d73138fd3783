"""A look at a watched folder: what is to be read, and whether what was read is still as it was.

- A file that is not known, by name or by content, is read from its beginning.
- A known file whose content is found under another name, and no longer under its own, was renamed. It is not read
  again. Two files of equal content that are there together are two files; and so are all where names are unique.
- A known file that has other content, or more of it, is an error (`FileChangedError`): nothing more of the stream is
  read until it is put right, and nothing is lost.
- Where files may grow, more content is read, in complete lines; only what was read must not change.

Contents are compared only where the file system says that something changed, `MAX_CHECKS` of them per look; and it is
asked about `MAX_ASKED` of the known files per look, so that a folder of many files is not slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from catchment.errors import EngineError
from catchment.files.folder import NO_MARK, SeenFile, Watched
from catchment.files.lines import last_line_end
from catchment.files.same_content import WantedFile, find_same_content
from catchment.records.object_store import S3Settings
from catchment.site.known_files import NEVER_READ, FileStat, FolderSeen, KnownFiles, ReadFile, StreamTimes
from catchment.timeline import SECOND_US

MAX_CHECKS = 1_000  # known files whose content is compared in one look; the others wait for the next one
MAX_ASKED = 2_000  # known files that the file system is asked about in one look, in turn
DEFAULT_KEEP_US = 7 * 86_400 * SECOND_US
NOT_SETTLED = -1
MAX_NAMED = 3  # files that an error names
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz")


class FileChangedError(EngineError):
    """A file is not as it was when it was read: once it is put right, reading goes on."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Bytes [start, end) of a file that are to be read; a whole file, but where files may grow."""

    name: str
    path: str
    start: int
    end: int
    stat: FileStat
    mark: bytes = NO_MARK  # tells the content of an object before it is read
    store: S3Settings | None = None  # where `path` is the address of an object


@dataclass(frozen=True)
class FolderLook:
    """What a look has found: pieces to read, in their order, and what is to be remembered of known files."""

    pieces: tuple[FilePiece, ...]
    seen: FolderSeen | None
    has_more: bool = False  # whether another look, at once, may find more


def settled(stat: FileStat, settled_ns: int) -> FileStat:
    """Return what the file system said, unless the file could have changed since without showing it.

    Its clock ticks in milliseconds: two changes within one tick have the same time. What was changed just now is
    compared again, until it is older than any tick.
    """
    age_ns = time.time_ns() - stat.changed_ns
    return stat if age_ns > settled_ns else replace(stat, changed_ns=NOT_SETTLED)


@dataclass
class FolderWatch:
    """Looks at the folder of one stream, again and again."""

    stream: str
    watched: Watched
    growing: bool = False
    keep_us: int = DEFAULT_KEEP_US  # how long files that are gone stay known, at least
    horizon_us: int = 0  # by which event time must have moved on since
    has_unique_names: bool = False  # a file of the content of one that is gone is another file
    _checked: dict[str, FileStat] = field(default_factory=dict, init=False)  # known files found unchanged since
    _turn: int = field(default=0, init=False)  # where the next look goes on asking about known files
    _sizes: dict[str, int] | None = field(default=None, init=False)  # of the files that may be read; None: all

    def freeze(self) -> None:
        """From now on, take only what is in the folder now."""
        seen = self.watched.see(self.watched.names())
        self._sizes = {name: file.stat.size_bytes for name, file in seen.items()}

    def look(self, known: KnownFiles, times: StreamTimes) -> FolderLook:
        """Compare the folder with what was read."""
        names = self.watched.names()
        present = [file for name, file in known.files.items() if name in names]
        missing = [file for name, file in known.files.items() if name not in names]
        fresh = self._new_files(name for name in names if name not in known.files)
        asked = self._choose(present, fresh)
        seen = self.watched.see(file.name for file in asked)
        missing += [file for file in asked if file.name not in seen]  # renamed or removed since the names were listed
        suspects = [f for f in present if f.name in seen and seen[f.name].stat != self._stat_of(f)]
        changed = self._find_changed(suspects[:MAX_CHECKS], seen)
        # a name whose known content is elsewhere may have been taken over, as when logs are rotated
        unknown = [*fresh.values(), *(seen[file.name] for file in changed)]
        renamed = {} if self.has_unique_names else dict(self._find_renamed([*missing, *changed], unknown))
        lost = [file for file in changed if file.name not in renamed]
        if lost:
            raise self._changed_error(lost, seen)
        taken = set(renamed.values())
        pieces = [self._whole(file) for file in unknown if file.name not in taken and file.stat.size_bytes]
        if self.growing:
            waiting = renamed.keys() | {file.name for file in suspects[MAX_CHECKS:]}
            pieces = [line for piece in pieces for line in self._complete_lines(piece.name, 0, piece.stat)]
            pieces += self._grown((f for f in present if f.name not in waiting), seen)
        pieces = [p for p in pieces if self._sizes is None or p.end <= self._sizes.get(p.name, 0)]
        order = {file.name: (file.modified_ns, file.name) for file in (*seen.values(), *fresh.values())}
        pieces.sort(key=lambda piece: order[piece.name])
        has_more = len(suspects) > MAX_CHECKS or (self.growing and bool(pieces or renamed))
        return FolderLook(tuple(pieces), self._to_remember(known, names, renamed, times), has_more)

    def _new_files(self, names: Iterable[str]) -> dict[str, SeenFile]:
        """Return the files whose names are not known; an empty one is passed over until it has content."""
        return {name: file for name, file in self.watched.see(names).items() if file.stat.size_bytes}

    def _choose(self, present: Sequence[ReadFile], fresh: Mapping[str, SeenFile]) -> Sequence[ReadFile]:
        """Return the known files to ask the file system about: some, in turn, and those that a new one may be.

        All of them where files may grow: only the file system says which have.
        """
        if self.growing or len(present) <= MAX_ASKED:
            return present
        start = self._turn % len(present)
        self._turn = start + MAX_ASKED
        in_turn = [*present[start : start + MAX_ASKED]]
        sizes = {file.read_bytes for file in present}
        alike = [file for file in fresh.values() if file.stat.size_bytes in sizes]
        contents = set(self.watched.digests({file.name: file.stat.size_bytes for file in alike}).values())
        return [*in_turn, *(file for file in present if file.digest in contents)] if contents else in_turn

    def _whole(self, file: SeenFile) -> FilePiece:
        place = self.watched.place(file.name)
        return FilePiece(file.name, place, 0, file.stat.size_bytes, file.stat, store=self.watched.store)

    def mark(self, pieces: Sequence[FilePiece]) -> tuple[FilePiece, ...]:
        """Return the pieces whose files are still there, as they are to be read."""
        marks = self.watched.marks(piece.name for piece in pieces)
        return tuple(replace(piece, mark=marks[piece.name]) for piece in pieces if piece.name in marks)

    def settle(self, pieces: Sequence[FilePiece]) -> list[ReadFile]:
        """Return the files of pieces that have been read, if they are as they were before; else raise."""
        found = self.watched.examine({piece.name: piece.end for piece in pieces})
        return [self._settle(piece, found.get(piece.name)) for piece in pieces]

    def _settle(self, piece: FilePiece, found: tuple[FileStat, bytes] | None) -> ReadFile:
        if found is not None:
            stat, digest = found
            if self._is_same_file(stat, piece) and piece.mark in (NO_MARK, digest):
                return ReadFile(piece.name, piece.end, digest, settled(stat, self.watched.settled_ns))
        raise FileChangedError(
            f"the file {piece.path} was changed while it was read: nothing of this batch counts, and it is read again",
            hint="write files elsewhere, and rename them into the folder when they are whole",
        )

    def _is_same_file(self, stat: FileStat, piece: FilePiece) -> bool:
        return stat.inode == piece.stat.inode if self.growing else stat == piece.stat

    # --- known files ------------------------------------------------------------------------------------------

    def _stat_of(self, file: ReadFile) -> FileStat:
        return self._checked.get(file.name, file.stat)

    def _find_changed(self, suspects: Sequence[ReadFile], seen: Mapping[str, SeenFile]) -> list[ReadFile]:
        """Return the files of which something that was read is no longer there, or, unless they may grow, more is."""
        fitting = {f.name: f.read_bytes for f in suspects if self._may_hold(f, seen[f.name].stat.size_bytes)}
        digests = self.watched.digests(fitting)
        changed = []
        for file in suspects:
            if file.digest not in (NEVER_READ, digests.get(file.name)):  # else it may be known by its name alone
                changed.append(file)
            else:
                self._checked[file.name] = settled(seen[file.name].stat, self.watched.settled_ns)
        return changed

    def _may_hold(self, file: ReadFile, size_bytes: int) -> bool:
        return size_bytes == file.read_bytes or (self.growing and size_bytes > file.read_bytes)

    def _find_renamed(self, absent: Sequence[ReadFile], fresh: Iterable[SeenFile]) -> Iterator[tuple[str, str]]:
        """Return (old name, new name) of files that are known by content; each stands for one file only."""
        known = {file.name: file for file in absent if file.digest != NEVER_READ}
        there = {file.name: file for file in fresh}

        def has_same_inode(old: str, new: str) -> bool:  # which a rename mostly keeps
            return known[old].stat.inode == there[new].stat.inode

        return find_same_content(
            [WantedFile(file.name, file.read_bytes, file.digest) for file in known.values()],
            {name: file.stat.size_bytes for name, file in there.items()},
            lambda name, length: self.watched.digests({name: length}).get(name),
            may_be_longer=self.growing,
            is_likelier=has_same_inode,
        )

    def _changed_error(self, lost: Sequence[ReadFile], seen: dict[str, SeenFile]) -> FileChangedError:
        named = [self._describe_change(file, seen[file.name]) for file in lost[:MAX_NAMED]]
        more = f", and {len(lost) - MAX_NAMED} others too" if len(lost) > MAX_NAMED else ""
        hint = "give what is new a name of its own and put back what was read, or remove the file"
        if not self.growing and self.watched.store is None:
            hint += "; or declare the stream with growing = true, if lines are appended to its files"
        return FileChangedError("; ".join(named) + more, hint=hint)

    def _describe_change(self, file: ReadFile, seen: SeenFile) -> str:
        path = self.watched.place(file.name)
        size = seen.stat.size_bytes
        if size > file.read_bytes and self.watched.digests({file.name: file.read_bytes}).get(file.name) == file.digest:
            return f"the file {path} has grown from {file.read_bytes} to {size} bytes since it was read"
        what = f"its first {file.read_bytes} bytes" if self.growing else f"it ({file.read_bytes} bytes)"
        return f"the file {path} has other content than when {what} was read"

    def _to_remember(
        self, known: KnownFiles, names: Mapping[str, None], renamed: dict[str, str], times: StreamTimes
    ) -> FolderSeen | None:
        for name in [n for n in self._checked if n not in names or n in renamed]:
            del self._checked[name]
        missing = (name for name in known.files if name not in names and name not in renamed)
        gone = tuple(name for name in missing if name not in known.gone)
        back = tuple(name for name in known.gone if name in names)
        if not (gone or back or renamed or known.overdue(self.keep_us, self.horizon_us, times)):
            return None
        return FolderSeen(self.stream, gone, back, tuple(renamed.items()), self.keep_us, self.horizon_us)

    # --- files that grow --------------------------------------------------------------------------------------

    def _grown(self, known: Iterable[ReadFile], seen: dict[str, SeenFile]) -> Iterator[FilePiece]:
        for file in known:
            is_longer = file.name in seen and seen[file.name].stat.size_bytes > file.read_bytes
            if is_longer and file.digest != NEVER_READ:
                yield from self._complete_lines(file.name, file.read_bytes, seen[file.name].stat)

    def _complete_lines(self, name: str, start: int, stat: FileStat) -> Iterator[FilePiece]:
        path = self.watched.place(name)
        if name.endswith(COMPRESSED):
            raise EngineError(
                f"the file {path} is compressed, and its stream is declared with growing = true",
                hint="only plain text can grow: name the files in path so that compressed ones are left out",
            )
        size = stat.size_bytes if self._sizes is None else min(stat.size_bytes, self._sizes.get(name, 0))
        end = last_line_end(Path(path), start, size)
        if end > start:
            yield FilePiece(name, path, start, end, stat)
