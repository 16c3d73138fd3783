"""History that a project keeps in an object store: where that of each stream is, and when a little more of it is moved.

A store that is away is tried again after a pause that doubles up to `LONGEST_PAUSE_US`; until then runs stay on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catchment.project.config import Project
from catchment.records.object_store import S3Settings, StoreError
from catchment.records.stored_history import StoredHistory
from catchment.timeline import SECOND_US, Clock

FIRST_PAUSE_US = SECOND_US
LONGEST_PAUSE_US = 60 * SECOND_US
_log = logging.getLogger(__name__)


def find_stored_history(project: Project, site: str, stream: str) -> StoredHistory | None:
    """Return the history of a stream at a site that is in a store; None where the project names none."""
    address = project.defaults.history_store
    if address is None:
        return None
    config = project.defaults.history_store_config
    settings = S3Settings.read(str(project.folder / config) if config else "")
    folder = project.site_folder(site) / "history" / stream
    return StoredHistory(folder, f"{address.rstrip('/')}/{site}/{stream}", settings)


@dataclass
class HistoryMover:
    """Moves the history of one stream to its store, a run per call at most."""

    stored: StoredHistory
    clock: Clock
    failure: str | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)  # in a row
    _next_us: int = field(default=0, init=False)

    def move_next(self) -> bool:
        """Move a run if there is one, unless the store was away just now; return whether one was moved."""
        return self._call(self.stored.move_next)

    def forget(self, folder: Path) -> bool:
        """Remove what a store has of a run that is removed; return whether nothing of it is left there.

        The disk has its room back at once, also while the store is away.
        """
        if not self.stored.free_disk(folder):
            return True

        def forget() -> bool:
            self.stored.forget(folder)
            return True

        return self._call(forget)

    def status(self) -> dict[str, Any]:
        """Return what was moved since the start, what waits, and why, as plain JSON."""
        return {
            "moved_runs": self.stored.moved_runs,
            "moved_bytes": self.stored.moved_bytes,
            "waiting_runs": self.stored.waiting_runs(),
            "store_failure": self.failure,
        }

    def _call(self, work: Callable[[], bool]) -> bool:
        now_us = self.clock.now_us()
        if now_us < self._next_us:
            return False
        try:
            done = work()
        except StoreError as away:
            if self.failure is None:
                _log.warning("history is not moved to its store for now: %s", away)
            self.failure = str(away)
            self._next_us = now_us + min(FIRST_PAUSE_US << min(self._failures, 10), LONGEST_PAUSE_US)
            self._failures += 1
            return False
        self.failure = None
        self._failures = 0
        return done
