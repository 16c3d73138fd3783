"""A TOML file that knows on which lines its settings are, so that errors can name them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchment.errors import ConfigError

_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?")


@dataclass(frozen=True)
class TomlFile:
    """One parsed file: its path, its text and its tables."""

    path: Path
    text: str
    tables: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> TomlFile:
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, text, tomllib.loads(text))
        except tomllib.TOMLDecodeError as cause:
            line = re.search(r"at line (\d+)", str(cause))
            raise ConfigError(
                f"this is not TOML: {cause}",
                where=f"{path}:{line.group(1)}" if line else str(path),
                hint='a setting is written name = "value", below its [table]',
            ) from cause
        except UnicodeDecodeError as cause:
            raise ConfigError("this file is not UTF-8 text", where=str(path)) from cause

    def at(self, table: str | None, key: str | None, index: int = 0) -> str:
        """Return file:line of a key of a table (of the index-th one of that name), or of the table itself.

        Without a table, it is the line on which the table `key` begins.
        """
        if table is None:
            table, key = key, None
        parent, _, name = (table or "").rpartition(".")
        line = (
            self._line(table or "", key, index) or self._line(table or "", None, index) or self._line(parent, name, 0)
        )
        return f"{self.path}:{line}" if line else str(self.path)

    def _line(self, table: str, key: str | None, index: int) -> int | None:
        seen = -1
        here = False
        for number, line in enumerate(self.text.splitlines(), start=1):
            header = _HEADER.match(line)
            if header:
                name = re.sub(r"[\"'\s]", "", header.group(1))
                seen += name == table
                here = name == table and seen == index
                if key is None and (here or name.startswith(table + ".")):
                    return number
            elif here and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return number
        return None
