"""How the markers of a stream are written: records that have nothing but the progress of a source."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from catchment.errors import QueryError


@dataclass(frozen=True)
class MarkerForm:
    """The columns of a stream by which a marker is written, as a line of JSON or CSV."""

    format: str
    delimiter: str
    columns: tuple[str, ...]  # all of the stream, in their order
    progress: str
    source: str | None

    def write_line(self, before: datetime, source: str | None) -> bytes:
        """Return the line by which a source, or the whole stream, states that nothing before an instant will come."""
        if source is not None and self.source is None:
            raise QueryError(
                "the stream names no source, so only the whole stream can state its progress",
                hint="leave source out, or declare the stream with source = '<column>'",
            )
        stated = before.astimezone(UTC).isoformat(timespec="microseconds")
        fields = {self.progress: stated} if source is None else {str(self.source): source, self.progress: stated}
        if self.format == "json":
            return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        line = io.StringIO()
        writer = csv.writer(line, delimiter=self.delimiter, lineterminator="\n")
        writer.writerow([fields.get(name, "") for name in self.columns])
        return line.getvalue().encode()

    def to_record(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> MarkerForm:
        """Return the form that was written as a record."""
        return cls(**{**record, "columns": tuple(record["columns"])})
