"""The files of a cloud that works in batches: events as Parquet, each file whole and durable or not there.

What is done is decided by a core and may be done again after a crash, so each action tolerates that it was done before:
a file that is there is not written again, and what a later action has removed is not missed. When everything was done
again, `settle` checks that exactly the files are there that the core knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from catchment.errors import StorageError
from catchment.feeds.cloud.batch_plane import EventFile, EventRow, FileAction, LandEvents, MergeFiles, RemoveFiles
from catchment.storage.files import make_folder, remove_file, remove_remnants, write_durably

EVENT_TYPES = {
    "arrival": "BIGINT",
    "feed": "STRING",
    "key": "STRING",
    "at_us": "BIGINT",
    "rank": "DOUBLE",
    "values": "STRING",
}
EVENT_SQL = ", ".join(f"{name} {kind}" for name, kind in EVENT_TYPES.items())
ARROW_TYPES = {
    "STRING": pa.string(),
    "DOUBLE": pa.float64(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "BOOLEAN": pa.bool_(),
}
_SCHEMA = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in EVENT_TYPES.items()])
_SUFFIX = ".parquet"
EVENTS_FOLDER = "events"  # of a cloud that works in batches, within its state folder


class EventFiles:
    """A folder of files of events."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)
        remove_remnants(folder)

    def path(self, name: str) -> Path:
        """Return where a file is."""
        return event_path(self.folder, name)

    def enact(self, actions: Iterable[FileAction]) -> None:
        """Do what a core has decided; what it removes is gone for good only after what it writes is safe."""
        for action in actions:
            match action:
                case LandEvents(file, rows):
                    if not self.path(file.name).exists():
                        self._write(file, _table_of(rows))
                case MergeFiles(file, sources):
                    self._merge(file, sources)
                case RemoveFiles(names):
                    self._remove(names)

    def _write(self, file: EventFile, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_durably(self.path(file.name), sink.getvalue().to_pybytes())

    def _merge(self, file: EventFile, sources: tuple[str, ...]) -> None:
        paths = [self.path(name) for name in sources]
        if not self.path(file.name).exists() and all(path.exists() for path in paths):
            self._write(file, pa.concat_tables([pq.read_table(path, schema=_SCHEMA) for path in paths]))
        self._remove(sources)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            remove_file(self.path(name))

    def read(self, name: str) -> list[EventRow]:
        """Return the events of a file."""
        table = pq.read_table(self.path(name), schema=_SCHEMA)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def settle(self, files: Iterable[EventFile]) -> None:
        """Refuse a folder that lacks a file; remove those that are of no use any more."""
        known = {self.path(file.name) for file in files}
        for path in sorted(known):
            if not path.exists():
                raise StorageError(
                    "a file of events is missing",
                    where=str(path),
                    hint="restore the whole state folder from one copy, or remove it: the cloud then begins anew",
                )
        for path in self.folder.glob(f"*{_SUFFIX}"):
            if path not in known:
                remove_file(path)


def event_path(folder: Path, name: str) -> Path:
    """Return where a file of events is."""
    return folder / f"{name}{_SUFFIX}"


def _table_of(rows: Iterable[EventRow]) -> pa.Table:
    columns = zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    return pa.Table.from_arrays([pa.array(column, field.type) for column, field in columns], schema=_SCHEMA)
