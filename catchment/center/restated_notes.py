"""Notes of final windows that are published again, on disk until the journal knows of them.

That a window was computed again, or its estimates were made exact, follows while an entry is carried out, when nothing
can be journalled. So it is noted before it is published; then it becomes an entry of its own, by which views that read
the window are revised, and the note is removed.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from catchment.center.events import Publish, RestatedWindow, WindowsRestated
from catchment.storage.codec import decode, encode
from catchment.storage.files import read_record, remove_file, write_record

FILE = "restated.json"


class RestatedNotes:
    """Restated windows that are not journalled yet, each with the number of the enactment that published them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        record = read_record(self._path)
        self._notes: dict[tuple[str, int], WindowsRestated] = (
            {} if record is None else decode(base64.b64decode(record["notes"]))
        )

    def add(self, number: int, query: str, published: Sequence[Publish]) -> None:
        """Note the windows that an enactment is about to publish again, durably."""
        windows = tuple(
            RestatedWindow(p.window.start_us, p.revision, p.status, p.coverage, p.missing_sites) for p in published
        )
        self._notes[query, number] = WindowsRestated(query, windows)
        write_record(self._path, {"notes": base64.b64encode(encode(self._notes)).decode()})

    def events(self) -> list[WindowsRestated]:
        """Return what is to be journalled."""
        return list(self._notes.values())

    def clear(self) -> None:
        """Forget the notes: they are journalled."""
        self._notes = {}
        remove_file(self._path)
