"""A watched folder: which files are in it, and what the file system says of them.

Names that begin with `_` or `.` and those that end with `._COPYING_` are of files that are being written, as everywhere
around Spark, and are passed over. Folders named `column=value` are entered, others are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path

from catchment.errors import EngineError
from catchment.site.known_files import FileStat

_UNFINISHED = "._COPYING_"
_ALTERNATIVES = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file in a folder, by its name there."""

    name: str
    stat: FileStat
    modified_ns: int  # decides in which order files are read, and nothing else


@dataclass(frozen=True)
class WatchedFolder:
    """The files of a folder whose names match a pattern: `*`, `?`, `[abc]` and `{one,other}` as Hadoop has them."""

    folder: Path
    pattern: str = "*"

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

    def stat(self, name: str) -> FileStat | None:
        """Return what the file system says of a file; None if it is gone."""
        try:
            return _stat_of(os.stat(self.path(name)))
        except FileNotFoundError:
            return None

    @cached_property
    def _matcher(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(pattern) for pattern in _expand(self.pattern)))

    def _scan(self, folder: Path, prefix: str) -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(("_", ".")) or entry.name.endswith(_UNFINISHED):
                    continue
                if entry.is_dir():
                    if "=" in entry.name:
                        yield from self._scan(folder / entry.name, f"{prefix}{entry.name}/")
                elif self._matcher.fullmatch(entry.name):
                    yield prefix + entry.name


def _stat_of(found: os.stat_result) -> FileStat:
    return FileStat(found.st_size, found.st_ino, found.st_ctime_ns)


def _expand(pattern: str) -> Iterator[str]:
    """Yield a pattern for each choice of its alternatives."""
    found = _ALTERNATIVES.search(pattern)
    if found is None:
        yield pattern
        return
    for choice in found[1].split(","):
        yield from _expand(pattern[: found.start()] + choice + pattern[found.end() :])
