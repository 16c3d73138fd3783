"""The folder of part files: named by the run and the attempt that wrote them, removed when nothing names them any more.

A cluster may run a task twice at once. So a file has a name of its own attempt, and only those whose names reach the
journal count. Files are removed after the state of the core was written down: until then a restart may want them again.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from catchment.storage.files import make_folder, remove_file, sync_folder

SUFFIX = ".arrow"


@dataclass(frozen=True)
class PartFolder:
    """Where the part files of a center lie; every worker of its cluster sees it under the same path."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.resolve())  # tasks run in folders of their own

    def begin_run(self, number: int) -> Path:
        """Return the folder for the files of one run, which is named by the position behind its last segment."""
        folder = self.path / f"{number:020d}"
        make_folder(folder)
        return folder

    def remove_unused(self, used: Collection[str], before: int) -> int:
        """Remove the files of runs below a number that nothing names; return how many bytes stay."""
        kept_bytes = 0
        for folder in sorted(self.path.glob("*")) if self.path.exists() else []:
            is_ended = not folder.name.isdigit() or int(folder.name) < before
            for file in list(folder.iterdir()):
                if is_ended and str(file) not in used:
                    remove_file(file)
                else:
                    kept_bytes += file.stat().st_size
            if is_ended and not any(folder.iterdir()):
                with suppress(OSError):
                    shutil.rmtree(folder)
        return kept_bytes


def write_part_file(folder: Path, rows: pa.Table) -> str:
    """Write rows into a new file of a folder, durably; return its path."""
    path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    written = os.open(path, os.O_RDONLY)
    try:
        os.fsync(written)
    finally:
        os.close(written)
    sync_folder(folder)
    return str(path)
