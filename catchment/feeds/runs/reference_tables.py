"""The reference tables of a running cloud: read again when a file changes; a wrong row is set aside alone.

What is wrong with the tables as they are now is in a quarantine file, one JSON line per rejected row with its file,
line and reason. It is written anew whenever the tables are read, and holds at most `MAX_REJECTED` rows; a last line
says how many there are beyond that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from catchment.errors import FeedError
from catchment.feeds.language.reference import ReferenceData, Row
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.project import read_lines, table_files
from catchment.storage.files import write_durably

MAX_REJECTED = 1000  # rows in the quarantine file

Place = tuple[str, int]  # a file and the number of a line


@dataclass
class RejectedRows:
    """The rows that could not be used, by place, each with the first thing that is wrong with it."""

    reasons: dict[Place, str] = field(default_factory=dict)
    more: int = 0

    def add(self, file: str, line: int, reason: str) -> None:
        if (file, line) in self.reasons:
            return
        if len(self.reasons) < MAX_REJECTED:
            self.reasons[file, line] = reason
        else:
            self.more += 1

    def __len__(self) -> int:
        return len(self.reasons) + self.more

    def write(self, path: Path) -> None:
        """Write the quarantine file; none is left where nothing is rejected."""
        if not self.reasons:
            path.unlink(missing_ok=True)
            return
        rows: list[dict[str, Any]] = [
            {"file": file, "line": line, "reason": why} for (file, line), why in self.reasons.items()
        ]
        if self.more:
            rows.append({"more": self.more})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


class ReferenceSource(Protocol):
    """Where reference data comes from."""

    @property
    def has_changed(self) -> bool:
        """Whether there is something to read that was not read yet."""

    @property
    def rejected(self) -> RejectedRows:
        """The rows of the last reading that could not be used."""

    def read(self) -> ReferenceData: ...

    def follow_program(self, program: FeedProgram) -> None:
        """Read the tables of another program from now on."""

    def reject_joined(self, error: FeedError, rows: Sequence[tuple[str, Row]]) -> None:
        """Reject rows that were joined to something that cannot be."""


class MadeReference:
    """Reference data that is in no file and never changes: that of a made-up world."""

    def __init__(self, data: ReferenceData) -> None:
        self.data = data
        self.rejected = RejectedRows()
        self.has_changed = True

    def read(self) -> ReferenceData:
        self.has_changed = False
        return self.data

    def follow_program(self, program: FeedProgram) -> None:
        """Go on: what was made up does not change."""

    def reject_joined(self, error: FeedError, rows: Sequence[tuple[str, Row]]) -> None:
        raise error


class ReferenceTables:
    """The tables in a folder, as they were last read."""

    def __init__(self, folder: Path, program: FeedProgram) -> None:
        self.folder = folder
        self.program = program
        self.written: Mapping[Path, float] | None = None
        self.rejected = RejectedRows()
        self._lines: dict[str, dict[Row, int]] = {}  # table -> row -> its first line

    def follow_program(self, program: FeedProgram) -> None:
        """Read the tables of another program from now on."""
        if program.tables != self.program.tables:
            self.written = None
        self.program = program

    @property
    def has_changed(self) -> bool:
        """Whether a file was written since the tables were read."""
        return table_files(self.folder, self.program) != self.written

    def read(self) -> ReferenceData:
        """Read all tables; wrong lines are rejected, a file that cannot be read at all is an error."""
        self.written = table_files(self.folder, self.program)
        self.rejected = RejectedRows()
        self._lines = {}
        tables: dict[str, list[Row]] = {}
        for name, declared in self.program.tables.items():
            if not declared.has_file:
                continue
            lines = self._lines.setdefault(name, {})
            rows = tables.setdefault(name, [])
            for number, values in read_lines(self.folder, declared, reject=self._reject_line):
                row = tuple(values)
                rows.append(row)
                lines.setdefault(row, number)
        return ReferenceData(tables)

    def _reject_line(self, path: Path, line: int, error: FeedError) -> None:
        self.rejected.add(path.name, line, error.message)

    def reject_joined(self, error: FeedError, rows: Sequence[tuple[str, Row]]) -> None:
        """Reject rows that were joined to something that cannot be; each is named, with the view that lacks it."""
        reason = f"{error.where}: {error.message}" if error.where else error.message
        places = [(self._file(table), self._lines[table].get(row, 0)) for table, row in rows if table in self._lines]
        for file, line in places or [("", 0)]:
            self.rejected.add(file, line, reason)

    def _file(self, table: str) -> str:
        return Path(self.program.tables[table].file_name).name
