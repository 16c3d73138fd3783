"""What is deployed, on disk: one small record that `run`, `submit` and `drop` change and running processes follow.

The record says what is wanted; each role brings itself there between two of its micro-batches and journals what it
did, so a process that is killed at any point comes back and goes on. A change is written whole or not at all, under a
lock, and counts its versions. The center says up to which version it has come: sites begin new fragments only then,
so that nothing is sent to a center that does not know it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from catchment.optimizer.sharing.deployed import Deployed
from catchment.storage.codec import decode, encode
from catchment.storage.files import make_folder, read_record, write_record

FILE = "deployment.json"
REACHED = "deployment-center.json"


class DeploymentStore:
    """The record of one state folder."""

    def __init__(self, state_folder: Path) -> None:
        self.folder = state_folder

    def read(self) -> Deployed | None:
        """What is deployed; None before the first run."""
        record = read_record(self.folder / FILE)
        if record is None:
            return None
        deployed: Deployed = decode(base64.b64decode(record["deployed"]))
        return deployed

    def keep(self, deployed: Deployed) -> None:
        """Make this what is deployed, unless there is something newer."""
        self.change(lambda now: deployed if now is None or now.version < deployed.version else now)

    def change(self, make: Callable[[Deployed | None], Deployed]) -> Deployed:
        """Replace the record by what is made of it; one change at a time."""
        make_folder(self.folder)
        with FileLock(self.folder / f"{FILE}.lock"):
            now = self.read()
            made = make(now)
            if made is not now:
                document = base64.b64encode(encode(made)).decode()
                write_record(self.folder / FILE, {"version": made.version, "deployed": document})
            return made

    @property
    def version(self) -> int:
        """Of what is deployed; 0 before the first run."""
        record = read_record(self.folder / FILE)
        return 0 if record is None else int(record["version"])

    @property
    def stamp(self) -> int:
        """Changes whenever the record may have; cheap to ask."""
        path = self.folder / FILE
        return path.stat().st_mtime_ns if path.exists() else 0

    def acknowledge(self, version: int) -> None:
        """Write down that the center has come to a version."""
        make_folder(self.folder)
        write_record(self.folder / REACHED, {"version": version})

    @property
    def center_version(self) -> int | None:
        """How far the center has come; None where its word is not in this folder."""
        record = read_record(self.folder / REACHED)
        return None if record is None else int(record["version"])
