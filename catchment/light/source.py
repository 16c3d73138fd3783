"""A light site as it runs: it reads its streams, packs their records and sends them to the site that evaluates them.

The order of every step is that of a site which computes: read, journal, outbox, link. A record is in the journal with
the file that it came from before it is sent, and in the outbox until it is acknowledged, so a process that is killed
anywhere sends everything once. It needs no Spark.

Bound: while the outbox is full, nothing is read. Files wait where they are, and whoever sends records to the site is
told to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from catchment.errors import ConfigError, EngineError
from catchment.light.core import Event, LightCore
from catchment.light.packing import CHUNK_BYTES
from catchment.light.stream_files import StreamFiles
from catchment.light.streams import LightStream
from catchment.log_fields import about
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.routes import outgoing_link
from catchment.receivers.site_receivers import SiteReceivers
from catchment.storage.free_space import FreeSpace
from catchment.storage.host import Host
from catchment.storage.journal import Journal
from catchment.timeline import Clock
from catchment.wire.messages import Records
from catchment.wire.sending.outbox import Outbox, stored_destination
from catchment.wire.sending.sender import Sender

JOURNAL_BYTES = 8 << 20  # of entries that a restart reads again, and has in memory
_log = logging.getLogger(__name__)


class LightSource:
    """Everything that runs at one light site; `run` reads until it is stopped, or once what is there."""

    def __init__(
        self,
        project: Project,
        site: str,
        streams: Sequence[LightStream],
        make_sender: Callable[[Outbox], Sender],
        clock: Clock,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.project = project
        self.site = site
        self.clock = clock
        self.folder = project.source_folder(site)
        self.link = outgoing_link(project, site)
        self._refuse_other_place()
        self._streams = tuple(streams)
        self._chunk_bytes = chunk_bytes
        self.outbox = Outbox(self.folder / "outbox", site, self.link.destination, self.link.outbox_max_bytes)
        self.free_space = FreeSpace(self.folder, project.limits.free_disk_bytes, clock)
        self.core = LightCore()
        self.host: Host[Event, Records] = Host(self.core, Journal(self.folder / "journal"), self._enact, clock)
        self.host.recover(self.outbox.enacted)
        self.sender = make_sender(self.outbox)
        self.receivers = SiteReceivers(project, site)
        self._readers: dict[str, StreamFiles] = {}
        self._problems: dict[str, str] = {}  # of streams that cannot be read now
        self._once = False
        self._has_read_all = False
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    def _refuse_other_place(self) -> None:
        """Refuse to send records elsewhere than before: what was evaluated of them, and their history, is there."""
        place = stored_destination(self.folder / "outbox")
        if place is not None and place != self.link.destination:
            raise ConfigError(
                f"the records of {self.site!r} were evaluated at {place!r} so far, and cannot be evaluated at "
                f"{self.link.destination!r} now",
                where=str(self.project.folder / PROJECT_FILE),
                hint=f'set evaluate_at = "{place}" in [sites.{self.site}], and keep its link to {place}: a light site '
                "that has run keeps its place",
            )

    def start(self, *, once: bool = False) -> None:
        """Begin to send and to receive; with `once`, only what is there now is read."""
        self._once = once
        self.receivers.prepare(self._streams)
        if not once:
            self.receivers.follow(self._streams)
        self.sender.start()

    def start_thread(self, *, once: bool = False) -> None:
        """Start, and read in a thread of its own."""
        self.start(once=once)
        self._thread = threading.Thread(target=self._run, name=f"light site {self.site}", daemon=True)
        self._thread.start()

    def follow(self, streams: Sequence[LightStream]) -> None:
        """Read these streams from the next look on; one that nobody reads any more is read no longer."""
        self._streams = tuple(streams)
        if not self._once:
            self.receivers.follow(self._streams)

    def run(self, wait: Callable[[float], bool], seconds: float | None = None) -> None:
        """Read at every trigger until `wait`, which is given the seconds to wait, returns True, or the time is over."""
        end_us = None if seconds is None else self.clock.now_us() + seconds * 1e6
        while True:
            self.step()
            if self.finished or (end_us is not None and self.clock.now_us() > end_us):
                return
            if wait(self.project.defaults.trigger_us / 1e6):
                return

    def step(self) -> None:
        """Read what is new of every stream, as far as there is room for it."""
        self.sender.raise_failure()
        before = self.outbox.next_sequence
        is_read = [self._read(stream) for stream in self._streams]
        if self.outbox.is_empty and not self._once:  # what waits to be sent is a sign of life as well
            for stream in (s for s in self._streams if s.name not in self._problems):
                self._readers[stream.name].say_quiet()
        if self.outbox.next_sequence > before:
            self.sender.notify()
        if self.host.journal.size_bytes > JOURNAL_BYTES:
            self.host.checkpoint()
        self._has_read_all = self._once and all(is_read)

    @property
    def finished(self) -> bool:
        """Whether everything that there was to read once is read, sent and acknowledged."""
        return self._has_read_all and self.outbox.is_empty

    def raise_failure(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def status(self) -> dict[str, Any]:
        """Return what was sent and what waits, as plain JSON."""
        link = self.sender.snapshot()
        return {
            "to": self.link.destination,
            "rows": dict(self.core.rows),
            "sent_bytes": link.bytes_acked,
            "queued_bytes": self.outbox.size_bytes,
            "has_room": self._has_room(),
            "connected": link.connected,
            "last_error": link.last_error,
            "problems": dict(self._problems),
            "files": self.core.files.status(),
            "receivers": self.receivers.status(),
            "disk": self.free_space.status(),
        }

    def stop(self) -> None:
        """Stop reading, receiving and sending; what is not sent yet waits in the outbox."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self.receivers.stop()
        self.sender.stop()
        self.host.journal.close()

    def _run(self) -> None:
        try:
            self.run(self._stopping.wait)
        except BaseException as failure:  # noqa: BLE001 - a thread's end must not go unnoticed: raise_failure() raises it
            self._failure = failure

    def _read(self, stream: LightStream) -> bool:
        """Read one stream; return whether all of it was. What is wrong with its files stops it alone, for now."""
        try:
            while self._reader_of(stream).read():
                self.sender.notify()
                if not self._has_room() or self._stopping.is_set():
                    return False
            self._problems.pop(stream.name, None)
            return True
        except EngineError as error:
            if self._once:
                raise
            if self._problems.get(stream.name) != str(error):
                _log.warning("stream %s is not read: %s", stream.name, error, extra=about(site=self.site))
            self._problems[stream.name] = str(error)
            return False

    def _reader_of(self, stream: LightStream) -> StreamFiles:
        """Return the reader of a stream; its folder may be there only later."""
        if stream.name not in self._readers:
            reader = StreamFiles.open(self.project, self.site, stream, self.host, self.core, self.clock, self._has_room)
            reader.chunk_bytes = self._chunk_bytes
            if self._once:
                reader.watch.freeze()
            self._readers[stream.name] = reader
        return self._readers[stream.name]

    def _has_room(self) -> bool:
        return not self.outbox.full and not self.free_space.is_low()

    def _enact(self, number: int, actions: Sequence[Records]) -> int:
        self.outbox.append(number, actions)
        return 1
