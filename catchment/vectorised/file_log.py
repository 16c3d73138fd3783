"""Which files a micro-batch reads: Spark's own record of them, in the checkpoint of the stream.

Spark's file source numbers the lists of new files that it finds. A list is written to `sources/0/<number>` before the
batch that reads it is planned; every tenth file is compacted: it has the entries of all lists so far, the newest last.
`offsets/<batch>` says up to which list a batch reads. So the files of a batch are known without asking Spark, also when
it is run again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from catchment.vectorised.coercion import NotVectorisedError

_VERSION = "v1"
_BLOCK_BYTES = 1 << 16  # read at a time, from the end of a compacted list


def files_of_batch(checkpoint: Path, batch: int) -> list[str]:
    """Return the paths of the files that a micro-batch reads, in the order of their names."""
    try:
        last = _last_list(checkpoint, batch)
        first = _last_list(checkpoint, batch - 1) + 1 if batch > 0 else 0
        paths = {path for number in range(first, last + 1) for path in _listed(checkpoint, number)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotVectorisedError(f"Spark's list of the files of batch {batch} cannot be read: {error}") from error
    return sorted(paths)


def _last_list(checkpoint: Path, batch: int) -> int:
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[-1])["logOffset"])


def _listed(checkpoint: Path, number: int) -> Iterator[str]:
    """Yield the files of one list."""
    lists = checkpoint / "sources" / "0"
    try:
        file = (lists / str(number)).open("rb")
    except FileNotFoundError:
        file = (lists / f"{number}.compact").open("rb")
    for line in _lines_from_end(file):
        if line == _VERSION:
            return
        entry = json.loads(line)
        if entry["batchId"] < number:
            return
        if entry["batchId"] == number:
            yield _local_path(entry)


def _local_path(entry: dict[str, Any]) -> str:
    address = urlsplit(entry["path"])
    if address.scheme not in ("", "file") or address.netloc:
        raise NotVectorisedError(f"{entry['path']} is not a local file")
    return unquote(address.path)


def _lines_from_end(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file, the last one first; a compacted list is long, and only its end is wanted."""
    with file:
        at = file.seek(0, 2)
        rest = b""
        while at > 0:
            step = min(_BLOCK_BYTES, at)
            at -= step
            file.seek(at)
            rest, *lines = (file.read(step) + rest).split(b"\n")
            yield from (line.decode("utf-8") for line in reversed(lines) if line)
        if rest:
            yield rest.decode("utf-8")
