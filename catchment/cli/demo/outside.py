"""The world outside the demo's sites: records that arrive as files, late or too many, and links that are cut.

Records are written into the folders that the sites watch, ten minutes of event time after another; a file appears under
its name only when it is whole. What was written is counted, to compare it with what catchment sends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path

import zstandard

from catchment.storage.files import make_folder
from catchment.wire.sending.uplink import Greeting, Introduction, LinkError, Uplink

WINDOW_S = 600  # what one step feeds: a window of the demo's views
ARRIVING = "arriving"  # the folder of the demo in which each site has one of its own
SHIPPED_ROWS = 500  # rows that a log shipper would compress together
_TIME = '{"ts":"'  # how every line of the log begins; the time follows
_TIME_LENGTH = len("2017-01-01T02:00:01Z")


@dataclass
class Shipped:
    """What shipping every record would have sent: as it is, and compressed in batches as a log shipper does."""

    rows: int = 0
    raw_bytes: int = 0
    zstd_bytes: int = 0

    def add(self, lines: Sequence[str]) -> None:
        """Count lines."""
        compressor = zstandard.ZstdCompressor(level=3)
        for start in range(0, len(lines), SHIPPED_ROWS):
            text = ("\n".join(lines[start : start + SHIPPED_ROWS]) + "\n").encode()
            self.raw_bytes += len(text)
            self.zstd_bytes += len(compressor.compress(text))
        self.rows += len(lines)

    def copy(self) -> Shipped:
        return Shipped(self.rows, self.raw_bytes, self.zstd_bytes)


@dataclass
class Outside:
    """The records that arrive at the sites of a demo folder."""

    folder: Path
    logs: dict[str, dict[int, list[str]]]  # site -> beginning of a window in seconds -> its lines
    shipped: Shipped = field(default_factory=Shipped)
    fed_rows: dict[str, int] = field(default_factory=dict)
    _held: dict[str, list[str]] = field(default_factory=dict)  # lines that a site has not delivered yet
    _files: int = 0

    @classmethod
    def read(cls, folder: Path) -> Outside:
        """Read the logs of a demo project, and make the folders that its sites watch."""
        logs = {path.name.split(".")[0]: _read_log(path) for path in sorted((folder / "data").glob("*.jsonl.zst"))}
        for site in logs:
            make_folder(folder / ARRIVING / site)
        return cls(folder, logs, fed_rows=dict.fromkeys(logs, 0))

    @property
    def windows(self) -> list[int]:
        """The beginnings of all windows of the log, in seconds."""
        return sorted({start_s for log in self.logs.values() for start_s in log})

    def feed(self, start_s: int, *, hold_at: str | None = None) -> int:
        """Let the records of one window arrive; of every second one at the site `hold_at`, only later. Return those."""
        held = 0
        for site, log in self.logs.items():
            lines = log.get(start_s, [])
            if site == hold_at:
                self._held.setdefault(site, []).extend(lines[::2])
                held = len(lines[::2])
                lines = lines[1::2]
            self._write(site, lines)
        return held

    def deliver_held(self, site: str) -> int:
        """Let what was held back at a site arrive; return how many records these are."""
        lines = self._held.pop(site, [])
        self._write(site, lines)
        return len(lines)

    def flood(self, site: str, start_s: int, rows: int) -> None:
        """Let this many records of the site's log arrive at once, with event times within one window."""
        lines = [line for _, log in sorted(self.logs[site].items()) for line in log]
        many = islice(cycle(lines), rows)
        self._write(site, [_at(line, start_s + WINDOW_S * n // rows) for n, line in enumerate(many)])

    def _write(self, site: str, lines: Sequence[str]) -> None:
        if not lines:
            return
        self._files += 1
        path = self.folder / ARRIVING / site / f"{self._files:05}.json"
        unfinished = path.with_name(f".{path.name}")  # sources ignore such names
        unfinished.write_text("\n".join(lines) + "\n", encoding="utf-8")
        unfinished.rename(path)
        self.shipped.add(lines)
        self.fed_rows[site] += len(lines)


@dataclass
class CutLinks:
    """The links of sites that are cut: nothing passes, as if a cable were out."""

    sites: set[str] = field(default_factory=set)

    def wrap(self, uplink: Uplink) -> Uplink:
        """Return an uplink that fails while the link of its site is cut."""
        return _CuttableUplink(uplink, self.sites)


class _CuttableUplink:
    def __init__(self, inner: Uplink, cut: set[str]) -> None:
        self._inner = inner
        self._cut = cut
        self._origin = ""

    def connect(self, introduction: Introduction) -> Greeting:
        self._origin = introduction.origin
        self._check()
        return self._inner.connect(introduction)

    def send(self, data: bytes) -> int:
        self._check()
        return self._inner.send(data)

    def close(self) -> None:
        self._inner.close()

    def _check(self) -> None:
        if self._origin in self._cut:
            raise LinkError("the demo has cut this link")


def _read_log(path: Path) -> dict[int, list[str]]:
    windows: dict[int, list[str]] = {}
    with zstandard.open(path, "rt", encoding="utf-8") as log:
        for line in log:
            instant = datetime.fromisoformat(json.loads(line)["ts"])
            start_s = int(instant.timestamp()) // WINDOW_S * WINDOW_S
            windows.setdefault(start_s, []).append(line.rstrip("\n"))
    return windows


def _at(line: str, instant_s: int) -> str:
    """Return a line of the log with another event time."""
    time = datetime.fromtimestamp(instant_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _TIME + time + line[len(_TIME) + _TIME_LENGTH :]
