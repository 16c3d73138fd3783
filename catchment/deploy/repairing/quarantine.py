"""Another try for quarantined records: they leave the quarantine, and are read again as a new file of their stream.

What makes it exactly once is that the new file is read like any other (`catchment.files.watch`): those that still
cannot be used are quarantined again, and those beyond the repair horizon are registered as late.

A replay is done in steps, each of which may be interrupted: the new file is written under a hidden name, a note says
what is being done, the batches leave the quarantine, the file gets its name, the note is removed. The next replay first
finishes one that was interrupted. Only batches that the journal has committed are taken: others may be read again.

It is for streams of JSON or CSV files. Records that a single view has failed on are not taken: their stream has used
them, and the other views would count them twice. They get another try by the name of the view (`set_aside`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from filelock import FileLock

from catchment.deploy.deployment import Deployment
from catchment.deploy.landed import as_landed
from catchment.deploy.processes.housekeeping import QUARANTINE
from catchment.deploy.repairing.doctor import read_journal
from catchment.deploy.repairing.set_aside import retry_set_aside
from catchment.deploy.submit import find_definition
from catchment.errors import ConfigError
from catchment.files.folder import WatchedFolder
from catchment.project.config import Project
from catchment.project.options import did_you_mean
from catchment.query.catalog import load_catalog
from catchment.query.sql.connectors import FilesConnector
from catchment.query.sql.statements import Stream
from catchment.replay.spool_writer import read_header
from catchment.storage.compacted_batches import PREFIX
from catchment.storage.files import read_record, remove_file, rename_file, sync_folder, write_durably, write_record

LOCK_FILE = "quarantine-replay.lock"  # in the folder of the site
NOTE = "_replay.json"  # Spark and Arrow pass over names that begin so
LEFT = "_replayed-"
RAW = "_raw"


def replay_quarantine(project_folder: Path, name: str, site: str | None = None) -> dict[str, Any]:
    """Give quarantined records another try, at one site or at all that run from this state folder.

    The name is that of a stream, which could not use them, or of a view, which has set them aside.
    """
    project = Project.load(project_folder)
    catalog = load_catalog(project)
    if name in catalog.streams:
        return _replay_stream(project, catalog.streams, name, site)
    deployment = Deployment.plan(catalog)
    if find_definition(deployment, name) is None:
        hint = did_you_mean(name, [*catalog.streams, *catalog.views])
        raise ConfigError(f"there is no stream and no view {name!r}", where=str(project.folder), hint=hint)
    return retry_set_aside(project, deployment, name, site)


def _replay_stream(
    project: Project, streams: Mapping[str, Stream], stream_name: str, site: str | None
) -> dict[str, Any]:
    """Let the quarantined records of a stream be read again."""
    stream = as_landed(streams[stream_name], project)
    _refuse_what_has_no_files(stream)
    found = sorted(project.state_folder.glob(f"sites/*/{QUARANTINE}/{stream_name}"))
    here = [path.parent.parent.name for path in found]
    if site is not None and site not in here:
        hint = f"it has something at {', '.join(here)}" if here else "catchment show quarantine lists what there is"
        raise ConfigError(f"stream {stream_name!r} has no quarantine at site {site!r}", hint=hint)
    replays = [Replay.of(project, stream, name) for name in here if site in (None, name)]
    done = [{"site": replay.site, "records": replay.run_alone()} for replay in replays]
    return {"stream": stream_name, "records": sum(entry["records"] for entry in done), "sites": done}


@dataclass(frozen=True)
class Replay:
    """A replay of the quarantine of one stream at one site."""

    site: str
    connector: FilesConnector
    watched: WatchedFolder
    quarantine: Path
    journal: Path
    stream: str

    @classmethod
    def of(cls, project: Project, stream: Stream, site: str) -> Replay:
        """Return the replay of a stream that is read from files."""
        assert isinstance(stream.connector, FilesConnector)
        watched = WatchedFolder.of(project.folder / stream.connector.path.replace("{site}", site))
        if watched.pattern != "*" and "*" not in watched.pattern:
            raise ConfigError(
                f"stream {stream.name!r} reads the one file {watched.pattern}, and a replay adds another",
                where=stream.where,
                hint="let path name a folder or a pattern such as 'data/*.json'",
            )
        folder = project.site_folder(site)
        quarantine = folder / QUARANTINE / stream.name
        return cls(site, stream.connector, watched, quarantine, folder / "journal", stream.name)

    def run_alone(self) -> int:
        """Finish what was begun, then run, while nobody else does; return how many records."""
        with FileLock(self.journal.with_name(LOCK_FILE)):
            return self.finish() + self.run()

    def run(self) -> int:
        """Move what is in quarantine into a new file of the stream; return how many records."""
        batches = self._committed_batches()
        lines = [line for number in batches for line in self._lines(number)]
        if not lines:
            return 0
        mark = hashlib.sha256(f"{self.stream} {self.site} {batches}".encode()).hexdigest()[:12]
        name = f"replayed-{batches[0]}-{batches[-1]}-{mark}"
        text = "".join(f"{line}\n" for line in [*self._header(), *lines, *_blank_lines(mark)])
        write_durably(self.watched.folder / f".{name}", text.encode())
        write_record(self.quarantine / NOTE, {"name": name, "batches": batches, "records": len(lines)})
        return self.finish()

    def finish(self) -> int:
        """Finish a replay that was begun; return how many records it has, 0 if there is none."""
        note = read_record(self.quarantine / NOTE)
        if note is None:
            return 0
        for number in note["batches"]:
            path = self.quarantine / f"{PREFIX}{number}"
            if path.exists():
                os.replace(path, self.quarantine / f"{LEFT}{number}")
        sync_folder(self.quarantine)
        hidden = self.watched.folder / f".{note['name']}"
        if hidden.exists():
            rename_file(hidden, self.watched.folder / self._visible(note["name"]))
            sync_folder(self.watched.folder)
        for left in self.quarantine.glob(f"{LEFT}*"):
            shutil.rmtree(left, ignore_errors=True)
        remove_file(self.quarantine / NOTE)
        sync_folder(self.quarantine)
        return int(note["records"])

    def _committed_batches(self) -> list[int]:
        committed = read_journal(self.journal).batches.get(self.stream, -1)
        names = (path.name.removeprefix(PREFIX) for path in self.quarantine.glob(f"{PREFIX}*"))
        return sorted(int(name) for name in names if name.isdigit() and int(name) <= committed)

    def _lines(self, number: int) -> Iterator[str]:
        for path in sorted((self.quarantine / f"{PREFIX}{number}").glob("*.parquet")):
            yield from pq.read_table(path, columns=[RAW]).column(RAW).to_pylist()

    def _header(self) -> Sequence[str]:
        """Return the first line of a CSV file: that of the other files, whose order of columns the records have."""
        if self.connector.format != "csv" or not self.connector.header:
            return ()
        names = sorted(self.watched.names())
        if not names:
            raise ConfigError(
                f"no file of stream {self.stream!r} is left that says in which order its columns are",
                where=str(self.watched.folder),
                hint="put a file with the header there, or read the records with catchment show quarantine",
            )
        return (self.connector.delimiter.join(read_header(self.watched.path(names[0]), self.connector.delimiter)),)

    def _visible(self, name: str) -> str:
        if self.watched.pattern == "*":
            return f"{name}.{self.connector.format}"
        return self.watched.pattern.replace("*", name, 1).replace("*", "")


def _blank_lines(mark: str) -> Iterator[str]:
    """Yield lines that mean nothing, and tell this replay from every other one.

    Otherwise the same records, replayed again after the file of the first replay was removed, would be taken for that
    file under another name, and would not be read.
    """
    return (" " if bit == "0" else "  " for bit in f"{int(mark, 16):048b}")


def _refuse_what_has_no_files(stream: Stream) -> None:
    connector = stream.connector
    if type(connector) is FilesConnector and connector.format != "parquet" and not connector.is_in_store:
        return
    kind = f"{connector.kind!r}"
    if type(connector) is FilesConnector:
        kind = "an object store" if connector.is_in_store else f"files of format {connector.format!r}"
    raise ConfigError(
        f"stream {stream.name!r} comes from {kind}: only JSON and CSV files on disk can be replayed from quarantine",
        where=stream.where,
        hint="catchment show quarantine prints the records: correct them and send them again",
    )
