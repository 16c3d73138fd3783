"""The log of a process: one line per event, as text for people or as JSON for programs, with a bound on its files.

Each line has the time, the level, the role and the site of the process, and the site, view, window, stream or fragment
that it is about (`catchment.log_fields`). Warnings of catchment are also shown on the terminal; with JSON, standard
error carries the same lines as the file. What Java, gRPC and other libraries print is never among them: it goes to a
file of its own (`catchment.cli.library_output`). A line that cannot be written, because the disk is full, is lost.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from catchment.log_fields import fields_of
from catchment.storage.files import make_folder

FILE_MAX_BYTES = 10_000_000
OLD_FILES = 4  # full files that are kept, as NAME.log.1 (the newest) to NAME.log.4


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class LogChoice:
    """How a process logs."""

    format: LogFormat = LogFormat.TEXT
    level: LogLevel = LogLevel.INFO

    @property
    def number(self) -> int:
        """The level as `logging` counts it."""
        return logging.getLevelNamesMapping()[self.level.upper()]


@contextmanager
def write_log(path: Path, choice: LogChoice, role: str, site: str | None = None) -> Iterator[None]:
    """Write what this process logs to a file, for as long as the context lasts."""
    make_folder(path.parent)
    fields = {"role": role, **({"site": site} if site else {})}
    file = _PatientFile(path, maxBytes=FILE_MAX_BYTES, backupCount=OLD_FILES, encoding="utf-8")
    file.setFormatter(_formatter(choice.format, fields))
    ours = logging.getLogger("catchment")
    shown = _shown_handler(choice, fields)
    before = ours.level
    logging.getLogger().addHandler(file)  # other libraries too: their warnings
    ours.addHandler(shown)
    ours.setLevel(choice.number)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        ours.setLevel(before)
        ours.removeHandler(shown)
        logging.getLogger().removeHandler(file)
        file.close()


def _formatter(written: LogFormat, fields: dict[str, str]) -> logging.Formatter:
    return JsonLines(fields) if written is LogFormat.JSON else TextLines(fields)


def _shown_handler(choice: LogChoice, fields: dict[str, str]) -> logging.Handler:
    """Return what shows lines to whoever started the process."""
    if choice.format is LogFormat.TEXT:
        return _Terminal(logging.WARNING)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(fields))
    return handler


class _PatientFile(RotatingFileHandler):
    """A file that loses lines while the disk is full: a log must not end what it tells of."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging calls
        """Lose the line."""


class _Terminal(logging.Handler):
    """Shows warnings to a person, above the live table."""

    def emit(self, record: logging.LogRecord) -> None:
        from catchment.cli.output import notes  # large, and a light site shows nothing

        text = f"{record.levelname.lower()}: {record.getMessage()}"
        notes.print(text, highlight=False, markup=False, soft_wrap=True)


class TextLines(logging.Formatter):
    """A line for people: the time, the level, what it is about, and the text."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        named = " ".join(f"{name}={value}" for name, value in {**self._fields, **fields_of(record)}.items())
        line = f"{_time(record)} {record.levelname.lower():<7} {named}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """A line for programs: one JSON object."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            **self._fields,
            **fields_of(record),
            "message": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
