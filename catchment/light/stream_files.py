"""The files of one stream of a light site: found, read chunk by chunk, and committed with what is sent of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from catchment.errors import EngineError
from catchment.files.digest import digest_of
from catchment.files.folder import WatchedFolder
from catchment.files.watch import COMPRESSED, DEFAULT_KEEP_US, FileChangedError, FilePiece, FolderWatch
from catchment.light.core import BegunFile, Event, LightCore, RecordsPacked, times_at
from catchment.light.packing import CHUNK_BYTES, nothing_new, pack_lines, read_chunk
from catchment.light.streams import LightStream
from catchment.log_fields import about
from catchment.project.config import Project
from catchment.query.sql.connectors import FilesConnector
from catchment.site.known_files import FilesRead
from catchment.storage.files import remove_file
from catchment.storage.host import Host
from catchment.timeline import SECOND_US, Clock
from catchment.wire.messages import Records

QUIET_EVERY_US = 10 * SECOND_US  # a site that reads nothing says so this often
LOOKED_AT = "files"  # names the journal entries about folders that were looked at
_log = logging.getLogger(__name__)


@dataclass
class StreamFiles:
    """Reads the files of one stream, in their order, while there is room for what they hold."""

    site: str
    stream: LightStream
    watch: FolderWatch
    host: Host[Event, Records]
    core: LightCore
    clock: Clock
    has_room: Callable[[], bool]
    removed_when_read: bool = False
    chunk_bytes: int = CHUNK_BYTES
    sent_us: int = 0  # when something of the stream was last put into the outbox

    @classmethod
    def open(
        cls,
        project: Project,
        site: str,
        stream: LightStream,
        host: Host[Event, Records],
        core: LightCore,
        clock: Clock,
        has_room: Callable[[], bool],
    ) -> StreamFiles:
        """Return the reader of a stream; records that are sent to the site are read from the files where they land."""
        connector = stream.connector
        is_received = not isinstance(connector, FilesConnector)
        path = project.landing_folder(site, stream.name)
        if isinstance(connector, FilesConnector):
            path = project.folder / connector.path.replace("{site}", site)
        growing = isinstance(connector, FilesConnector) and connector.growing
        keep_us = DEFAULT_KEEP_US if project.limits.history_keep_us is None else project.limits.history_keep_us
        horizon_us = project.defaults.repair_horizon_us
        if is_received:  # names of its own files never come again
            keep_us, horizon_us = 0, 0
        watch = FolderWatch(stream.name, WatchedFolder.of(path), growing, keep_us, horizon_us, is_received)
        return cls(site, stream, watch, host, core, clock, has_room, is_received)

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    def read(self) -> bool:
        """Look at the folder and send what is new, as far as there is room; return whether there may be more."""
        if self.removed_when_read:
            self._remove_read()
        found = self.watch.look(self.core.files.of(self.name), times_at(self.clock.now_us()))
        if found.seen is not None:
            self.host.submit(LOOKED_AT, [found.seen])
        begun = self._find_begun(found.pieces)
        if begun is not None and not self._send(begun, self.core.parts[self.name].sent_bytes):
            return True
        for piece in found.pieces:
            if piece is not begun and not self._send(piece, piece.start):
                return True
        return found.has_more

    def say_quiet(self) -> None:
        """Say that the stream was looked at, if nothing was sent of it for a while."""
        if self.clock.now_us() - self.sent_us >= QUIET_EVERY_US:
            self._submit([RecordsPacked(nothing_new(self.name))])

    def _remove_read(self) -> None:
        """Remove the site's own files that were read."""
        known = self.core.files.of(self.name)
        for name in known.files.keys() - known.gone.keys():
            remove_file(Path(self.watch.watched.place(name)))

    def _find_begun(self, pieces: Sequence[FilePiece]) -> FilePiece | None:
        """Return the file that was sent in part: it is read to its end before any other, or is gone.

        It may have another name now. What has its name must be it: else it was changed, and nothing goes on.
        """
        part = self.core.parts.get(self.name)
        if part is None:
            return None
        for piece in pieces:
            if piece.name == part.name:
                self._refuse_changed(part, piece)
                return piece
        for piece in pieces:
            if piece.stat.inode == part.stat.inode and self._is_begun(part, piece):
                return piece
        of = about(site=self.site, stream=self.name)
        _log.warning("the file %s was removed after %d bytes of it were sent", part.name, part.sent_bytes, extra=of)
        return None

    def _is_begun(self, part: BegunFile, piece: FilePiece) -> bool:
        is_as_long = self.watch.growing or piece.stat.size_bytes == part.stat.size_bytes
        return is_as_long and digest_of(Path(piece.path), part.sent_bytes) == part.digest

    def _refuse_changed(self, part: BegunFile, piece: FilePiece) -> None:
        if not self._is_begun(part, piece):
            raise FileChangedError(
                f"the file {piece.path} was changed after {part.sent_bytes} bytes of it had been sent",
                hint="put back what was sent, or remove the file, and give what is new a name of its own",
            )

    def _send(self, piece: FilePiece, at: int) -> bool:
        """Send a piece of a file from a byte on; return False if there was no room for all of it."""
        if piece.path.endswith(COMPRESSED):
            raise EngineError(
                f"the file {piece.path} is compressed, and a light site sends plain lines",
                hint="name the files in path so that compressed ones are left out",
            )
        path = Path(piece.path)
        while at < piece.end:
            if not self.has_room():
                return False
            try:
                lines = read_chunk(path, at, piece.end, self.chunk_bytes)
            except FileNotFoundError:
                return True  # it was removed before it was read
            records = pack_lines(self.name, lines, begins_file=at == 0)
            at += len(lines)
            self._submit(self._committed(piece, path, records, at))
        return True

    def _committed(self, piece: FilePiece, path: Path, records: Records, at: int) -> list[Event]:
        """Return what is committed with records that end at a byte of a piece, if the file is as it was."""
        if at >= piece.end:
            return [RecordsPacked(records), FilesRead(self.name, tuple(self.watch.settle([piece])))]
        digest = digest_of(path, at)
        if digest is None:
            raise FileChangedError(f"the file {path} became shorter while it was read", hint="put back what was sent")
        return [RecordsPacked(records, BegunFile(piece.name, piece.stat, at, digest))]

    def _submit(self, events: Sequence[Event]) -> None:
        self.host.submit(self.name, events)
        self.sent_us = self.clock.now_us()
