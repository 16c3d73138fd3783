"""What a site keeps of raw and bad records, within the limits of `[limits]`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from catchment.deploy.processes.history_store import HistoryMover
from catchment.project.sections import StorageLimits
from catchment.records.stored_history import StoredHistory
from catchment.site.retry import SET_ASIDE_BY
from catchment.storage.batch_retention import BatchRetention
from catchment.storage.batch_times import note_removed
from catchment.storage.compacted_batches import BatchCompactor, times_of_run
from catchment.timeline import Clock

HISTORY = "history"
QUARANTINE = "quarantine"


@dataclass
class SiteHousekeeping:
    """Removes old history and quarantine of the streams at one site.

    `needed` says which batches of a stream are still to be read from history: those of which something is owed, and the
    past of fragments that begin in it. `event_time_of` is the column by which a stream's records belong to windows.
    """

    folder: Path
    limits: StorageLimits
    clock: Clock
    needed: Callable[[str], Container[int]]
    event_time_of: Callable[[str], str | None] = lambda stream: None
    owed: Callable[[str], Container[int]] = lambda stream: ()  # batches of which something is still to be repaired
    stored: Callable[[str], StoredHistory | None] = lambda stream: None  # the part of its history that is in a store
    _movers: dict[str, HistoryMover] = field(default_factory=dict, init=False)
    _kept: dict[tuple[str, str], BatchRetention] = field(default_factory=dict, init=False)
    _compactors: dict[str, BatchCompactor] = field(default_factory=dict, init=False)

    def tick(self, streams: Iterable[str]) -> None:
        """Remove a little of what is beyond the limits."""
        for stream in streams:
            self._of(HISTORY, stream, self.limits.history_keep_us, self.limits.history_max_bytes).tidy(
                self.needed(stream)
            )
            self._of(QUARANTINE, stream, None, self.limits.quarantine_max_bytes).tidy()
            for folder in (self.folder / QUARANTINE / stream).glob(
                f"{SET_ASIDE_BY}*"
            ):  # what single fragments set aside
                self._of(QUARANTINE, f"{stream}/{folder.name}", None, self.limits.quarantine_max_bytes).tidy()

    def compact(self, streams: Iterable[str]) -> None:
        """Compact a little of the history of each stream; may be called by another thread than `tick`."""
        for stream in streams:
            event_time = self.event_time_of(stream)
            if event_time is not None and not self._compactor(stream, event_time).compact_next():
                mover = self._mover(stream)
                if mover is not None:
                    mover.move_next()

    def _compactor(self, stream: str, event_time: str) -> BatchCompactor:
        if stream not in self._compactors:
            folder = self.folder / HISTORY / stream
            self._compactors[stream] = BatchCompactor(folder, event_time, partial(self.owed, stream))
        return self._compactors[stream]

    def _mover(self, stream: str) -> HistoryMover | None:
        if stream not in self._movers:
            stored = self.stored(stream)
            if stored is None:
                return None
            self._movers[stream] = HistoryMover(stored, self.clock)
        return self._movers[stream]

    def status(self) -> dict[str, Any]:
        """Return per kind and stream how much is kept, and how much was removed since the start."""
        found: dict[str, dict[str, Any]] = {HISTORY: {}, QUARANTINE: {}}
        for (kind, stream), kept in self._kept.items():
            found[kind][stream] = {
                "batches": len(kept),
                "size_bytes": kept.size_bytes,
                "removed_batches": kept.removed_batches,
                "removed_bytes": kept.removed_bytes,
            }
            if kind == HISTORY and stream in self._compactors:
                found[kind][stream] |= self._compactors[stream].status()
            if kind == HISTORY and stream in self._movers:
                found[kind][stream] |= self._movers[stream].status()
        return found

    def _of(self, kind: str, stream: str, keep_us: int | None, max_bytes: int | None) -> BatchRetention:
        key = kind, stream
        if key not in self._kept:
            folder = self.folder / kind / stream
            self._kept[key] = BatchRetention(folder, self.clock, keep_us, max_bytes)
            if kind == HISTORY:
                self._kept[key].note = lambda batches: note_removed(
                    folder, batches, self.event_time_of(stream), times_of_run
                )
                mover = self._mover(stream)
                if mover is not None:
                    self._kept[key].forget = mover.forget
        return self._kept[key]
