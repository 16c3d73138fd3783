"""Acknowledged segments that are set aside because one of them could not be merged, by the site that sent them.

    set_aside/SITE/00000000000000000017.segment   segments from the first one that could not be merged on
    set_aside/SITE/reason.json                    which one it was, why, and since when
    set_aside/SITE/resume                         made by a person: try them again

Nothing of a site that is set aside is lost: what its outbox still has is refused and stays there, and what was already
acknowledged is here. Bound: `max_bytes` over all sites; segments beyond it are dropped and counted, and then the site
cannot be taken back where it stopped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from catchment.storage.files import make_folder, read_record, remove_file, sync_folder, write_durably, write_record

FOLDER = "set_aside"
REASON_FILE = "reason.json"
RESUME_FILE = "resume"
MAX_BYTES = 2**30

_SUFFIX = ".segment"


class SetAside:
    """The folder of the segments that an inbox has set aside."""

    def __init__(self, inbox_folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = inbox_folder / FOLDER
        self.max_bytes = max_bytes
        self._size_bytes = sum(_size_bytes(file) for file in self.folder.glob(f"*/*{_SUFFIX}"))

    def explain(self, origin: str, sequence: int, reason: str, since_us: int) -> None:
        """Write down why a site was set aside; what is known of it already stays."""
        path = self._of(origin) / REASON_FILE
        if not path.exists():
            make_folder(path.parent)
            write_record(path, {"sequence": sequence, "reason": reason, "since_us": since_us, "dropped": 0})

    def add(self, origin: str, sequence: int, data: bytes) -> None:
        """Keep a segment durably; keeping it again changes nothing."""
        path = self._file(origin, sequence)
        if path.exists():
            sync_folder(path.parent)  # whoever wrote it may have been killed before its name was safe
            return
        if self._size_bytes + len(data) > self.max_bytes:
            self._count_dropped(origin)
            return
        make_folder(path.parent)
        write_durably(path, data)
        self._size_bytes += len(data)

    def origins(self) -> list[str]:
        """List the sites of which something is here."""
        return sorted(path.name for path in self.folder.glob("*/"))

    def sequences(self, origin: str) -> list[int]:
        """List the numbers of a site's segments that are here, lowest first."""
        return sorted(int(path.name.removesuffix(_SUFFIX)) for path in self._of(origin).glob(f"*{_SUFFIX}"))

    def read(self, origin: str, sequence: int) -> bytes:
        """Return the bytes of a segment."""
        return self._file(origin, sequence).read_bytes()

    def remove(self, origin: str, sequence: int) -> None:
        """Remove a segment that is in the inbox again."""
        path = self._file(origin, sequence)
        self._size_bytes -= _size_bytes(path)
        remove_file(path)

    def forget(self, origin: str) -> None:
        """Remove what is left of a site: it is taken again."""
        for sequence in self.sequences(origin):
            self.remove(origin, sequence)
        shutil.rmtree(self._of(origin), ignore_errors=True)

    def resume_requests(self) -> Iterator[str]:
        """Yield the sites that a person wants to be tried again."""
        yield from (origin for origin in self.origins() if (self._of(origin) / RESUME_FILE).exists())

    def describe(self, origin: str) -> Mapping[str, Any]:
        """Return what is here of a site, as plain JSON, and what a person can do about it."""
        known = read_record(self._of(origin) / REASON_FILE) or {"dropped": 0}
        way_out = f"mend the cause, then try again: touch {self._of(origin) / RESUME_FILE}"
        if known["dropped"]:
            way_out = f"too much was dropped to go on where it stopped: catchment sites replace {origin}"
        return {
            "segments": len(self.sequences(origin)),
            "dropped_segments": known["dropped"],
            "folder": str(self._of(origin)),
            "way_out": way_out,
        }

    def _count_dropped(self, origin: str) -> None:
        path = self._of(origin) / REASON_FILE
        known = read_record(path)
        if known is not None:
            write_record(path, {**known, "dropped": known["dropped"] + 1})

    def _of(self, origin: str) -> Path:
        return self.folder / origin

    def _file(self, origin: str, sequence: int) -> Path:
        return self._of(origin) / f"{sequence:020d}{_SUFFIX}"


def _size_bytes(file: Path) -> int:
    """Return the size of a file; nothing if the receiver has taken it meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def request_resume(inbox_folder: Path, origin: str) -> None:
    """Ask a running receiver to take a site again whose segments it has set aside."""
    os.close(os.open(inbox_folder / FOLDER / origin / RESUME_FILE, os.O_CREAT | os.O_WRONLY, 0o644))
