"""The record of what is deployed, on disk: `run`, `submit` and `drop` change it, and running processes follow it.

The record says what is wanted. Each role applies it between two of its micro-batches and journals what it did, so a
process that is killed at any point continues after its restart. A change is written whole or not at all, under a lock,
and has a version of its own. The center writes down which version it has reached; sites begin new fragments only then,
so that no site sends a fragment that the center does not know.

A site that has joined a deployment from a machine of its own is given the record by its center, with what is declared
(`DeploymentStore.install`); it changes nothing by itself.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from catchment.center.results.names import write_names
from catchment.errors import ConfigError
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import SINKS_FOLDER
from catchment.project.joined_site import DECLARED, DEPLOYMENT_FILE
from catchment.storage.codec import decode, encode
from catchment.storage.files import make_folder, read_record, write_record

FILE = DEPLOYMENT_FILE
CENTER_FILE = "deployment-center.json"  # the version that the center has reached
MAX_DECODED = 4  # records that are remembered as they were decoded


@lru_cache(maxsize=MAX_DECODED)  # every process of a simulated deployment reads the same record at each start
def _decode(document: str) -> Deployed:
    deployed: Deployed = decode(base64.b64decode(document))
    return deployed


def write_all_names(state_folder: Path, deployed: Deployed) -> None:
    """Write down for readers, at the center and at every other sink, which definitions of views are the newest."""
    write_names(state_folder, {view: deployed.query_name(view) for view in deployed.definitions})
    for sink, part in deployed.sinks.items():
        if part.definitions:
            make_folder(state_folder / SINKS_FOLDER / sink)
            write_all_names(state_folder / SINKS_FOLDER / sink, part)


class DeploymentStore:
    """Reads and changes the record of one state folder."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder

    def read(self) -> Deployed | None:
        """Return what is deployed; None before the first run."""
        record = read_record(self.folder / FILE)
        return None if record is None else _decode(record["deployed"])

    def read_document(self) -> bytes | None:
        """Return what is deployed as it is encoded; None before the first run."""
        record = read_record(self.folder / FILE)
        return None if record is None else base64.b64decode(record["deployed"])

    def keep(self, deployed: Deployed) -> None:
        """Write this as what is deployed, unless the record is newer."""
        self.change(lambda now: deployed if now is None or now.version < deployed.version else now)

    def change(self, make: Callable[[Deployed | None], Deployed]) -> Deployed:
        """Replace the record by what `make` returns for it, one change at a time."""
        make_folder(self.folder)
        with FileLock(self.folder / f"{FILE}.lock"):
            now = self.read()
            made = make(now)
            if made is not now:
                self._refuse_at_joined_site()
                document = base64.b64encode(encode(made)).decode()
                write_record(self.folder / FILE, {"version": made.version, "deployed": document})
                write_all_names(self.folder, made)
            return made

    def install(self, version: int, document: bytes, declared: Mapping[str, Any]) -> None:
        """Write what the center has told a site that has joined it, whole: an encoded deployment, what is declared."""
        make_folder(self.folder)
        told = {"version": version, "deployed": base64.b64encode(document).decode(), DECLARED: declared}
        with FileLock(self.folder / f"{FILE}.lock"):
            write_record(self.folder / FILE, told)

    def _refuse_at_joined_site(self) -> None:
        record = read_record(self.folder / FILE) or {}
        if DECLARED in record:
            raise ConfigError(
                "this is the folder of a site, where nothing is changed",
                where=str(self.folder),
                hint="give the change to the center: --center HOST:PORT",
            )

    @property
    def version(self) -> int:
        """The version of what is deployed; 0 before the first run."""
        record = read_record(self.folder / FILE)
        return 0 if record is None else int(record["version"])

    @property
    def stamp(self) -> tuple[int, int, int]:
        """What changes with the record, so that a change is noticed cheaply; zeros before the first run.

        Every change is a new file, and so another inode: two changes may have one modification time, because the clocks
        of file systems are coarse.
        """
        try:
            found = (self.folder / FILE).stat()
        except FileNotFoundError:
            return 0, 0, 0
        return found.st_mtime_ns, found.st_ino, found.st_size

    def acknowledge(self, version: int) -> None:
        """Write down that the center has reached a version."""
        make_folder(self.folder)
        write_record(self.folder / CENTER_FILE, {"version": version})

    @property
    def center_version(self) -> int | None:
        """The version that the center has reached; None if the center does not write into this folder."""
        record = read_record(self.folder / CENTER_FILE)
        return None if record is None else int(record["version"])
