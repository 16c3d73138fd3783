"""The audit log: who changed what in a deployment, when, and what came of it; one line of JSON each.

A line is written after the change was made or refused, and before its answer is given. The log is bounded: at
`MAX_BYTES` it becomes the previous log, which replaces the one before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from catchment.storage.files import make_folder

FILE = "audit.jsonl"
PREVIOUS_FILE = "audit.previous.jsonl"
MAX_BYTES = 8 * 2**20
MAX_TEXT = 4096  # characters of one argument that are kept


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change that somebody asked for; `refused` is why it was not made, `version` what it gave."""

    at_us: int
    who: str
    role: str
    command: str
    arguments: Mapping[str, Any]
    version: int | None = None
    refused: str | None = None


class AuditLog:
    """The log in one state folder; its owner writes one entry at a time."""

    def __init__(self, state_folder: Path) -> None:
        self._folder = state_folder
        self._path = state_folder / FILE

    def append(self, entry: AuditEntry) -> None:
        """Write an entry durably."""
        make_folder(self._folder)
        if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
            self._path.replace(self._folder / PREVIOUS_FILE)
        kept = {**asdict(entry), "arguments": {name: _shorten(value) for name, value in entry.arguments.items()}}
        with self._path.open("a", encoding="utf-8") as file:
            if file.tell() and not self._ends_with_a_line():
                file.write("\n")  # the last line was torn by a power cut
            file.write(json.dumps(kept) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> Iterator[AuditEntry]:
        """Yield the entries, oldest first; a line that was torn is left out."""
        for path in (self._folder / PREVIOUS_FILE, self._path):
            if not path.exists():
                continue
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    yield AuditEntry(**json.loads(line))
                except (ValueError, TypeError):
                    continue

    def _ends_with_a_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _shorten(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    return value
