"""Raw history in an object store: compacted runs of batches are moved there, and their files fetched to be read.

A run is written on disk first, as everywhere (`catchment.storage.compacted_batches`): the newest batches, and what the
store has not taken yet, stay there, so a store that is away delays nobody. Then its files become objects, below a name
that has a digest of its manifest in it: moving a run twice writes the same objects. Before the first of them a record
of that place (`_moving.json`) is made durable, so that a run that is removed before it was moved whole leaves no
object. The manifest is the last object. A record of where the run is (`_stored.json`) is made durable beside the
manifest on disk, and only then are its files removed there; so manifests on disk say which objects count, and who asks
which event times a batch holds needs no store.

What is fetched lies in `_fetched` beside the runs, and is forgotten beyond `MAX_FETCHED_BYTES`, but for what one read
needs together.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from catchment.errors import StorageError
from catchment.records.object_store import S3Settings, StoreError, path_in_store
from catchment.storage.batch_times import TimeSpan
from catchment.storage.compacted_batches import (
    MANIFEST,
    STORED,
    CompactedRun,
    StoredFiles,
    list_runs,
    read_run,
    read_stored,
)
from catchment.storage.files import read_record, remove_file, sync_files, write_record

FETCHED = "_fetched"
MOVING = "_moving.json"  # in the folder of a run of which some objects may be in the store
MAX_FETCHED_BYTES = 1 << 30
_COPY_BYTES = 8 << 20


@dataclass
class StoredHistory:
    """The history of one stream at one site, in a folder on disk and below an address of a store."""

    folder: Path
    address: str
    settings: S3Settings
    moved_runs: int = field(default=0, init=False)
    moved_bytes: int = field(default=0, init=False)

    def move_next(self) -> bool:
        """Move the oldest run that is on disk; return whether there was one."""
        for path in list_runs(self.folder):
            try:
                run = read_run(path)
                stored = read_stored(path)
            except StorageError:
                continue  # who reads it is told
            if run is None:
                continue
            if stored is None:
                self._move(run)
                return True
            if self._remove_local(run):
                return True
        return False

    def waiting_runs(self) -> int:
        """Return how many runs are on disk that the store has not taken yet."""
        return sum(not (path / STORED).exists() for path in list_runs(self.folder))

    def files_of(self, run: CompactedRun, span: TimeSpan | None = None) -> list[Path]:
        """Return the files of a run that may hold records of some event times, fetched where they are objects."""
        found = run.files_of(span)
        try:
            stored = read_stored(run.path)
        except StorageError as damage:
            raise StoreError(f"nobody knows where history is: {damage}") from damage
        return found if stored is None else self._fetch(run, stored, found)

    def make_room(self) -> None:
        """Forget the runs that were read longest ago, beyond what may lie fetched; before a read, not within one."""
        sizes = {path: _size_of(path) for path in self._fetched_runs()}
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: path.stat().st_mtime_ns):
            if total <= MAX_FETCHED_BYTES:
                return
            shutil.rmtree(path, ignore_errors=True)
            total -= sizes[path]

    def forget(self, run: Path) -> None:
        """Remove the objects of a run whose folder is about to be removed; raises while the store is away."""
        place = self._place_of(run)
        if place is not None:
            self._delete(place)
            shutil.rmtree(self._fetched(place), ignore_errors=True)

    def free_disk(self, run: Path) -> bool:
        """Remove the records on disk of a run that is about to be removed; return whether the store may have some."""
        for path in run.rglob("*.parquet"):
            remove_file(path)
        return self._place_of(run) is not None

    def _place_of(self, run: Path) -> str | None:
        """Return below which address objects of a run may be; None if none was ever written."""
        for name in (STORED, MOVING):
            with suppress(StorageError):  # one that is damaged is not needed: both say it
                record = read_record(run / name)
                if record is not None:
                    return str(record["address"])
        return None

    def _delete(self, place: str) -> None:
        """Remove all objects of a run, whose place nothing else has."""
        with self.settings.telling(place), suppress(FileNotFoundError):  # an earlier attempt has removed it
            self.settings.filesystem().delete_dir(path_in_store(place))

    # --- to the store -------------------------------------------------------------------------------------------

    def _move(self, run: CompactedRun) -> None:
        digest = hashlib.sha256((run.path / MANIFEST).read_bytes()).hexdigest()[:12]
        place = f"{self.address}/{run.path.name}-{digest}"
        names = [file.name for file in run.files]
        try:
            write_record(run.path / MOVING, {"address": place})
            sizes = {name: self._upload(run.path / name, f"{place}/{name}") for name in names}
            self._upload(run.path / MANIFEST, f"{place}/{MANIFEST}")
            write_record(run.path / STORED, {"address": place, "files": sizes})
        except FileNotFoundError as missing:
            if run.path.is_dir():
                raise StoreError(f"a run of history cannot be moved to {place}: {missing}") from missing
            self._delete(place)  # retention has removed the run meanwhile
            return
        self.moved_runs += 1
        self.moved_bytes += sum(sizes.values())
        self._remove_local(run)

    def _upload(self, path: Path, address: str) -> int:
        """Write a file to the store; return its size, as the store has it."""
        size = path.stat().st_size
        with self.settings.telling(address):
            store = self.settings.filesystem()
            with path.open("rb") as source, store.open_output_stream(path_in_store(address)) as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            found = store.get_file_info(path_in_store(address))
        if found.size != size:
            raise StoreError(f"{address} has {found.size} bytes in the store, and {size} were written")
        return size

    def _remove_local(self, run: CompactedRun) -> bool:
        """Remove the files of a run that is in the store; return whether there were any."""
        there = [run.path / file.name for file in run.files if (run.path / file.name).exists()]
        for path in there:
            remove_file(path)
        for folder in {path.parent for path in there} - {run.path}:
            if not any(folder.iterdir()):
                folder.rmdir()
        return bool(there)

    # --- from the store -----------------------------------------------------------------------------------------

    def _fetch(self, run: CompactedRun, stored: StoredFiles, paths: Sequence[Path]) -> list[Path]:
        fetched = self._fetched(stored.address)
        names = [path.relative_to(run.path).as_posix() for path in paths]
        for name in names:
            if _size_if_there(fetched / name) != stored.files[name]:
                self._download(f"{stored.address}/{name}", fetched / name, stored.files[name])
        if fetched.is_dir():
            os.utime(fetched)
        return [fetched / name for name in names]

    def _download(self, address: str, target: Path, size: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.part")
        try:
            with (
                self.settings.telling(address),
                self.settings.filesystem().open_input_file(path_in_store(address)) as source,
                unfinished.open("wb") as file,
            ):
                shutil.copyfileobj(source, file, _COPY_BYTES)
        except FileNotFoundError as gone:
            raise StoreError(f"{address} is gone, and the history of this site names it") from gone
        found = unfinished.stat().st_size
        if found != size:
            unfinished.unlink()
            raise StoreError(f"{address} has {found} bytes in the store, and the history of this site names {size}")
        sync_files([unfinished])  # or a power cut could leave a name of nothing, which would be read
        unfinished.replace(target)

    def _fetched_runs(self) -> Iterator[Path]:
        folder = self.folder / FETCHED
        yield from folder.iterdir() if folder.is_dir() else ()

    def _fetched(self, place: str) -> Path:
        return self.folder / FETCHED / place.rpartition("/")[2]


def _size_if_there(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
