"""A watched folder: which files are in it, and what the file system says of them.

Names that begin with `_` or `.` and those that end with `._COPYING_` are of files that are being written, as everywhere
around Spark, and are passed over. Folders named `column=value` are entered, others are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

from catchment.errors import EngineError
from catchment.files.digest import digest_of
from catchment.records.object_store import S3Settings
from catchment.site.known_files import FileStat

NO_MARK = b""  # of a file whose content only reading tells
_UNFINISHED = "._COPYING_"
_ALTERNATIVES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file in a folder, by its name there."""

    name: str
    stat: FileStat
    modified_ns: int  # decides in which order files are read, and nothing else


class Watched(Protocol):
    """A place with files that appear in it: a folder, or objects of a store."""

    @property
    def settled_ns(self) -> int:
        """How old a file must be, by what is said of it, for no other change to have the same time."""

    @property
    def store(self) -> S3Settings | None:
        """How the object store is reached whose objects the files are; None for files on disk."""

    def names(self) -> dict[str, None]:
        """Return the names of the files that are there."""

    def see(self, names: Iterable[str]) -> dict[str, SeenFile]:
        """Return those of the named files that are there, or were when names were last asked for."""

    def place(self, name: str) -> str:
        """Return the path or address of a file."""

    def marks(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return those of the named files that are there, with what tells their content before they are read."""

    def digests(self, lengths: Mapping[str, int]) -> dict[str, bytes]:
        """Return the digests of the first bytes of files, those that are there and as long, by name."""

    def examine(self, lengths: Mapping[str, int]) -> dict[str, tuple[FileStat, bytes]]:
        """Return what is said now of files, and such digests of them."""


@dataclass(frozen=True)
class WatchedFolder:
    """The files of a folder whose names match a pattern: `*`, `?`, `[abc]` and `{one,other}` as Hadoop has them."""

    folder: Path
    pattern: str = "*"
    settled_ns: ClassVar[int] = 2_000_000_000  # longer than a tick of any file system's clock
    store: ClassVar[None] = None

    @classmethod
    def of(cls, path: Path) -> WatchedFolder:
        """Return what a declared path names: a folder, a file in one, or the files that match a pattern."""
        names_files = not path.is_dir() and (bool(path.suffix) or "*" in path.name)
        folder = path.parent if names_files else path
        if not folder.is_dir():
            raise EngineError(f"there is no folder {folder} to read from", hint="make it; files may come later")
        return cls(folder, path.name if names_files else "*")

    def names(self) -> dict[str, None]:
        """Return the names of the files that are there."""
        return dict.fromkeys(self._scan(self.folder, ""))

    def see(self, names: Iterable[str]) -> dict[str, SeenFile]:
        """Return those of the named files that are there, by name."""
        found = {}
        for name in names:
            try:
                stat = os.stat(self.path(name))
            except FileNotFoundError:
                continue  # it was removed or renamed meanwhile
            found[name] = SeenFile(name, _stat_of(stat), stat.st_mtime_ns)
        return found

    def path(self, name: str) -> Path:
        """Return where a file is."""
        return self.folder / name

    def place(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path(name))

    def marks(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return those of the named files that are there; only reading tells their content."""
        return dict.fromkeys((name for name in names if self.stat(name) is not None), NO_MARK)

    def digests(self, lengths: Mapping[str, int]) -> dict[str, bytes]:
        """Return the digests of the first bytes of files, those that are there and as long, by name."""
        found = ((name, digest_of(self.path(name), length)) for name, length in lengths.items())
        return {name: digest for name, digest in found if digest is not None}

    def examine(self, lengths: Mapping[str, int]) -> dict[str, tuple[FileStat, bytes]]:
        """Return what the file system says of files after their content was looked at, with their digests."""
        digests = self.digests(lengths)
        stats = ((name, self.stat(name)) for name in digests)
        return {name: (stat, digests[name]) for name, stat in stats if stat is not None}

    def stat(self, name: str) -> FileStat | None:
        """Return what the file system says of a file; None if it is gone."""
        try:
            return _stat_of(os.stat(self.path(name)))
        except FileNotFoundError:
            return None

    @cached_property
    def _matcher(self) -> re.Pattern[str]:
        return compile_pattern(self.pattern)

    def _scan(self, folder: Path, prefix: str) -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_passed_over(entry.name):
                    continue
                if entry.is_dir():
                    if "=" in entry.name:
                        yield from self._scan(folder / entry.name, f"{prefix}{entry.name}/")
                elif self._matcher.fullmatch(entry.name):
                    yield prefix + entry.name


def _stat_of(found: os.stat_result) -> FileStat:
    return FileStat(found.st_size, found.st_ino, found.st_ctime_ns)


def is_passed_over(name: str) -> bool:
    """Return whether a name is that of a file or folder that is being written."""
    return name.startswith(("_", ".")) or name.endswith(_UNFINISHED)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return what names of files match a pattern."""
    return re.compile("|".join(translate(choice) for choice in _expand(pattern)))


def _expand(pattern: str) -> Iterator[str]:
    """Yield a pattern for each choice of its alternatives."""
    found = _ALTERNATIVES.search(pattern)
    if found is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield from _expand(pattern[: found.start()] + choice + pattern[found.end() :])
