"""The host of a cloud's core, or of an edge cloud's."""

from __future__ import annotations

from catchment.storage.host import Action, Event, Host
from catchment.storage.journal import snapshot_path

MIN_JOURNAL_BYTES = 4 * 2**20  # a snapshot is written when the journal is larger, and twice the last snapshot


class CloudHost(Host[Event, Action]):
    """A host whose snapshots cost no more than what was journalled since the last one."""

    def _is_snapshot_due(self) -> bool:
        last = snapshot_path(self.journal.folder, self.journal.base)
        last_bytes = last.stat().st_size if last.exists() else 0
        return self.journal.size_bytes > max(MIN_JOURNAL_BYTES, 2 * last_bytes)
