"""The micro-batches of a stream of files: which files each reads, under which number, and what is remembered of them.

A batch has the number after the newest one in the journal. Its journal entry names the files that it has read
(`FilesRead`), so a batch that was not committed has read nothing: what it would have read is found in the folder again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from catchment.files.folder import WatchedFolder
from catchment.files.spark_checkpoint import is_spark_file_log, take_over
from catchment.files.watch import FilePiece, FolderLook, FolderWatch
from catchment.log_fields import about
from catchment.site.core import SiteCore
from catchment.site.events import Action, Event
from catchment.site.known_files import FilesRead
from catchment.spark.pipelines.micro_batch import Records, StreamState
from catchment.spark.sources.files import FileSource
from catchment.spark.sources.history import BatchFolder
from catchment.spark.streaming import refuse_lost_checkpoint
from catchment.storage.files import remove_file
from catchment.storage.host import Host
from catchment.timeline import Clock

CAUSE = "files"  # of journal entries about folders that were looked at
Settle = Callable[[], Sequence[Event]]  # what is to be committed with a batch that was reduced, or an error
_log = logging.getLogger(__name__)


@dataclass
class FileBatches:
    """Looks at the folder of one stream, and has what is new read; `folder` is the site's."""

    state: StreamState
    source: FileSource
    watch: FolderWatch
    host: Host[Event, Action]
    core: SiteCore
    clock: Clock
    folder: Path
    on_batch: Callable[[StreamState, Records, int, Settle], None]

    @property
    def _stream(self) -> str:
        return self.state.stream.name

    @property
    def _about(self) -> dict[str, Mapping[str, str]]:
        return about(site=self.folder.name, stream=self._stream)

    def take_over_checkpoint(self) -> None:
        """Take over what Spark's file source has read for an earlier version, and remove its checkpoint."""
        checkpoint = self.folder / "checkpoints" / self._stream
        committed = self.host.batches.get(self._stream)
        if committed is not None and self._stream not in self.core.files:
            refuse_lost_checkpoint(checkpoint, committed)
            assert isinstance(self.source.watched, WatchedFolder), "Spark's file source has read no objects"
            taken = take_over(checkpoint, committed, self._stream, self.source.watched)
            self.host.submit(CAUSE, [taken])
            _log.info(
                "%d files that were read before are known by content from now on", len(taken.files), extra=self._about
            )
        if is_spark_file_log(checkpoint):
            shutil.rmtree(checkpoint)

    def look(self) -> FolderLook:
        """Look at the folder, and remember which known files are gone or renamed."""
        if self.source.removed_when_read:
            self._remove_read()
        times = self.core.times_of(self._stream, self.clock.now_us())
        found = self.watch.look(self.core.files.of(self._stream), times)
        if found.seen is not None:
            for old, new in found.seen.renamed:
                _log.info(
                    "the file %s of %s is now named %s: it is not read again", old, self._stream, new, extra=self._about
                )
            self.host.submit(CAUSE, [found.seen])
        return found

    def _remove_read(self) -> None:
        """Remove the site's own files that were read, unless records of the stream are still to be read again."""
        known = self.core.files.of(self._stream)
        if not all(debt.is_in_history for debt in self.core.debts.of(self._stream)):
            return
        for name in known.files.keys() - known.gone.keys():
            remove_file(Path(self.source.watched.place(name)))

    def read(self, pieces: Sequence[FilePiece], following: Sequence[Sequence[FilePiece]] = ()) -> None:
        """Read pieces of files as one batch; those that follow are the next ones."""
        present = self.watch.mark(pieces)
        if len(present) < len(pieces):
            removed = len(pieces) - len(present)
            _log.warning("%d files of %s were removed before they were read", removed, self._stream, extra=self._about)
        if not present:
            return
        number = self.host.batches.get(self._stream, -1) + 1
        self._remove_attempt(number)
        self.state.pieces = present
        self.state.following = tuple(map(self.watch.mark, following))

        def settle() -> Sequence[Event]:
            return [FilesRead(self._stream, tuple(self.watch.settle(present)))]

        try:
            self.on_batch(self.state, cache(lambda: self.source.read(present)), number, settle)
        finally:
            self.source.remove_copies()

    def _remove_attempt(self, number: int) -> None:
        """Remove what an attempt of this batch has written that may have read other files."""
        for kind in ("history", "quarantine"):
            BatchFolder(self.folder / kind / self._stream).remove(number)
