"""The core of a light site: which files it has read and sent, and what it sends. It knows no event times.

A pure state machine under a host (`catchment.storage.host`): the entry that has records in it also says which files
they are of, so what was read and what leaves are one commit. Each entry sends one segment at most.

A file that is larger than one chunk is sent in several entries. Until the last of them, `BegunFile` says how far it
got: a process that was killed goes on from there.

Bound: a file that is gone is forgotten as at a site that computes (`catchment.site.known_files`), by the clock alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from catchment.site.known_files import FilesRead, FileStat, FolderSeen, KnownFilesState, KnownFolders, StreamTimes
from catchment.storage.codec import stored
from catchment.wire.messages import Records


@stored()
@dataclass(frozen=True, slots=True)
class BegunFile:
    """A file of which the first `sent_bytes` were sent, and more is to come; `digest` is of these."""

    name: str
    stat: FileStat
    sent_bytes: int
    digest: bytes


@stored()
@dataclass(frozen=True, slots=True)
class RecordsPacked:
    """Records of a stream were read and packed; `part` is the file that they are of, unless it is read to its end."""

    records: Records
    part: BegunFile | None = None


Event = RecordsPacked | FilesRead | FolderSeen


@stored()
@dataclass(frozen=True)
class LightState:
    """What a light site knows of its streams."""

    files: dict[str, KnownFilesState]
    parts: dict[str, BegunFile]
    rows: dict[str, int] = field(default_factory=dict)


class LightCore:
    """Takes what was read in, and gives out what is to be sent."""

    def __init__(self) -> None:
        self.files = KnownFolders()
        self.parts: dict[str, BegunFile] = {}  # by stream
        self.rows: dict[str, int] = {}  # that were sent, by stream

    def handle_all(self, events: Sequence[Event], now_us: int) -> Sequence[Records]:
        """Return what is to be sent after these events, which are one entry of the journal."""
        sent = []
        for event in events:
            if isinstance(event, RecordsPacked):
                sent.append(event.records)
                self._note_packed(event)
            else:
                self.files.take_in(event, times_at(now_us))
                if isinstance(event, FilesRead):
                    self.parts.pop(event.stream, None)  # a part is read to its end before any other file, or is gone
        return sent

    def _note_packed(self, event: RecordsPacked) -> None:
        stream = event.records.stream
        self.rows[stream] = self.rows.get(stream, 0) + event.records.rows
        if event.part is not None:
            self.parts[stream] = event.part

    def snapshot(self) -> LightState:
        """Return all that is known."""
        return LightState(self.files.snapshot(), dict(self.parts), dict(self.rows))

    def restore(self, state: LightState) -> None:
        """Know what a snapshot says, and nothing else."""
        self.files = KnownFolders.restored(state.files)
        self.parts = dict(state.parts)
        self.rows = dict(state.rows)


def times_at(now_us: int) -> StreamTimes:
    """Return where a stream stands whose event times are not known: at the time of the clock."""
    return StreamTimes(now_us, now_us, now_us)
