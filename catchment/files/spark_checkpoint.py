"""The files that Spark's own file source has read: its checkpoint, as older state folders have it.

Spark numbers the lists of new files that it finds. A list is in `sources/0/<number>`, or in `<number>.compact`, which
has the entries of all lists so far. `offsets/<batch>` says up to which list a batch reads. The files of the batches
that were committed are known; those that were planned beyond are not, and are found again in the folder.
"""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from catchment.errors import EngineError
from catchment.files.digest import digest_of
from catchment.files.folder import WatchedFolder
from catchment.site.known_files import NEVER_READ, FilesRead, FileStat, ReadFile

_VERSION = "v1"
_LISTS = "sources/0"


def is_spark_file_log(checkpoint: Path) -> bool:
    """Return whether a checkpoint has lists of files."""
    return (checkpoint / _LISTS).is_dir()


def take_over(checkpoint: Path, committed: int, stream: str, watched: WatchedFolder) -> FilesRead:
    """Return the files of all batches up to the committed one as read, with the content that they have now.

    Spark did not record what the files held, so a file that has changed since it was read is taken as it is.
    """
    folder = PurePosixPath(watched.folder.absolute())
    names = sorted({_name(address, folder) for address in _addresses(checkpoint, committed)})
    files = [_as_read(name, watched) for name in names]
    return FilesRead(stream, tuple(file for file in files if file is not None))


def _as_read(name: str, watched: WatchedFolder) -> ReadFile | None:
    """Return a file as read; None for an empty one, of which nothing was read."""
    stat = watched.stat(name)
    if stat is None:
        return ReadFile(name, 0, NEVER_READ, FileStat(0, 0, 0))
    if stat.size_bytes == 0:
        return None
    return ReadFile(name, stat.size_bytes, digest_of(watched.path(name), stat.size_bytes) or NEVER_READ, stat)


def _addresses(checkpoint: Path, committed: int) -> list[str]:
    """Return the addresses of the files of all batches up to the committed one."""
    lists = checkpoint / _LISTS
    try:
        last = _last_list(checkpoint, committed)
        compacted = max((int(path.stem) for path in lists.glob("*.compact")), default=-1)
        paths = [lists / str(number) for number in range(compacted + 1, last + 1)]
        if compacted >= 0:
            paths.append(lists / f"{compacted}.compact")
        entries = [entry for path in paths for entry in _entries(path)]
        return [entry["path"] for entry in entries if entry["batchId"] <= last]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"Spark's list of the files that were read cannot be read: {error}",
            where=str(checkpoint),
            hint="restore the site's whole state folder from one copy; nothing was read and nothing was changed",
        ) from error


def _last_list(checkpoint: Path, batch: int) -> int:
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[-1])["logOffset"])


def _entries(path: Path) -> list[dict[str, Any]]:
    version, *lines = path.read_text(encoding="utf-8").splitlines()
    if version != _VERSION:
        raise ValueError(f"{path} begins with {version!r}, and {_VERSION!r} was expected")
    return [json.loads(line) for line in lines]


def _name(address: str, folder: PurePosixPath) -> str:
    """Return the name of a file within the watched folder, also where that was moved since."""
    path = PurePosixPath(unquote(urlsplit(address).path))
    if path.is_relative_to(folder):
        return str(path.relative_to(folder))
    *folders, name = path.parts
    inner = list(reversed([*takewhile(lambda part: "=" in part, reversed(folders))]))
    return "/".join([*inner, name])
