"""Events that do not fit in memory, on disk: by feed and time, in one SQLite file.

A host keeps what its views may still need in memory up to a bound, and moves the oldest events here. The core knows
only the `Spool` interface; a simulation gives it a database in memory, a device or a cloud a file.

A spool is an extension of a host's memory, not a log: nothing in it is fsynced, and its file has no name once it is
open, so that it is gone with its process, however that ends.
Its size is bounded by its owner (`retained.py`), which counts what it drops.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Protocol

from catchment.feeds.device.limits import HostLimits
from catchment.feeds.protocol.messages import FeedEvent

OVERHEAD_BYTES = 48  # what a row costs in the file beside its key and its values
_CACHE_KIB = 4096  # pages that SQLite keeps in memory


class Spool(Protocol):
    """A place for events that do not fit in memory."""

    @property
    def used_bytes(self) -> int:
        """How much the events take that are held, indexes and half-empty pages included."""

    def append(self, events: Sequence[FeedEvent]) -> None:
        """Take events that are not yet here."""

    def contains(self, event: FeedEvent) -> bool:
        """Return whether an event is here."""

    def between(self, feed: str, low_us: int, high_us: int) -> list[FeedEvent]:
        """Return the events of a feed from an instant to another, both included, in order of time."""

    def let_go(self, feed: str, before_us: int) -> int:
        """Forget the events of a feed before an instant; return how many there were."""

    def let_go_oldest(self, feed: str, count: int) -> int:
        """Forget at least so many of the oldest events of a feed, as far as there are; return how many."""

    def clear(self) -> None:
        """Forget everything."""


class SqliteSpool:
    """A spool in a SQLite file of a folder; without a folder, in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.used_bytes = 0
        self.feeds: dict[str, int] = {}
        if folder is None:
            self._open(":memory:")
        else:
            with TemporaryDirectory(prefix="spool-", dir=folder) as inside:
                self._open(str(Path(inside) / "events.db"))

    def _open(self, path: str) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self.db.execute(f"PRAGMA {setting}")
        self.db.execute(
            "CREATE TABLE events (feed INT, at_us INT, key TEXT, fields TEXT, PRIMARY KEY (feed, at_us, key)) "
            "WITHOUT ROWID"
        )

    def append(self, events: Sequence[FeedEvent]) -> None:
        rows = [(self._number(e.feed), e.at_us, _text(e.key), _text(e.values)) for e in events]
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        self.db.execute("COMMIT")
        self.used_bytes += sum(_row_bytes(len(key), len(fields)) for _, _, key, fields in rows)

    def contains(self, event: FeedEvent) -> bool:
        wanted = (self._number(event.feed), event.at_us, _text(event.key))
        found = self.db.execute("SELECT 1 FROM events WHERE feed = ? AND at_us = ? AND key = ?", wanted)
        return found.fetchone() is not None

    def between(self, feed: str, low_us: int, high_us: int) -> list[FeedEvent]:
        found = self.db.execute(
            "SELECT key, at_us, fields FROM events WHERE feed = ? AND at_us BETWEEN ? AND ? ORDER BY at_us",
            (self._number(feed), low_us, high_us),
        )
        return [FeedEvent(feed, tuple(json.loads(k)), at_us, tuple(json.loads(v))) for k, at_us, v in found]

    def let_go(self, feed: str, before_us: int) -> int:
        found = self.db.execute(
            "DELETE FROM events WHERE feed = ? AND at_us < ? RETURNING length(key), length(fields)",
            (self._number(feed), before_us),
        ).fetchall()
        self.used_bytes -= sum(_row_bytes(*lengths) for lengths in found)
        return len(found)

    def let_go_oldest(self, feed: str, count: int) -> int:
        last = self.db.execute(
            "SELECT at_us FROM events WHERE feed = ? ORDER BY at_us LIMIT 1 OFFSET ?",
            (self._number(feed), count - 1),
        ).fetchone()
        return self.let_go(feed, 2**62 if last is None else last[0] + 1)

    def clear(self) -> None:
        self.db.execute("DELETE FROM events")
        self.used_bytes = 0

    @property
    def file_bytes(self) -> int:
        """How large the file is."""
        (pages,) = self.db.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = self.db.execute("PRAGMA page_size").fetchone()
        return int(pages * page_bytes)

    def _number(self, feed: str) -> int:
        return self.feeds.setdefault(feed, len(self.feeds))


def spool_for(limits: HostLimits, folder: Path | None = None) -> SqliteSpool | None:
    """Open a spool for a host that may use the disk: in a folder, or where the system keeps temporary files."""
    return SqliteSpool(folder or Path(gettempdir())) if limits.disk_bytes else None


def _text(values: tuple[object, ...]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _row_bytes(key_chars: int, fields_chars: int) -> int:
    """Return what a row takes in the file; pages of a growing index are half empty at worst."""
    return 2 * (key_chars + fields_chars) + OVERHEAD_BYTES
