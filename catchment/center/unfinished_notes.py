"""Notes of what is found while an entry is carried out, on disk until the journal knows of them.

That a view's last step fails is found while an entry is carried out, when nothing can be journalled. So it is noted
first; then the rows are written without the view's columns; then the suspension becomes an entry of its own, and the
note is removed. After a crash in between, the note says which enactment was written so, and what is still to be
journalled.
"""

from __future__ import annotations

import base64
from pathlib import Path

from catchment.center.events import AnswersSuspended
from catchment.storage.codec import decode, encode
from catchment.storage.files import read_record, write_record

FILE = "unfinished.json"


class UnfinishedNotes:
    """The suspensions that are not journalled yet, each with the number of the enactment that found it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        record = read_record(self._path)
        self._notes: dict[str, tuple[int, AnswersSuspended]] = (
            {} if record is None else decode(base64.b64decode(record["notes"]))
        )

    def add(self, number: int, event: AnswersSuspended) -> None:
        """Note a suspension durably."""
        self._notes[event.query] = (number, event)
        write_record(self._path, {"notes": base64.b64encode(encode(self._notes)).decode()})

    def is_unfinished(self, query: str, number: int) -> bool:
        """Return whether an enactment was written, or is to be, without the columns of a view."""
        return query in self._notes and self._notes[query][0] == number

    def events(self) -> list[AnswersSuspended]:
        """Return what is to be journalled."""
        return [event for _, event in self._notes.values()]

    def clear(self) -> None:
        """Forget the notes: they are journalled."""
        self._notes = {}
        self._path.unlink(missing_ok=True)
