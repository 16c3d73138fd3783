"""A disk on which any call can fail, and of which a power cut leaves only what was synced.

Files are real, in a folder that is fast (tmpfs); what fsync means is modelled. Content that was not synced may be lost
or replaced by zeros from some byte on; a name that was created, changed or removed may be as before unless its folder
was synced since. Each machine of a deployment has the files below one folder, and faults of its own.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from catchment.storage.disk import Disk
from catchment.wire.segment_folder import DAMAGED_SUFFIX

LOCK_NAMES = ("in-use", ".lock")  # ends of the names of files that hold no state
SECTOR_BYTES = 512


class Killed(BaseException):
    """The process of a role has ended: nothing that handles errors may run its course."""


class DiskFault(StrEnum):
    """What happens at the chosen call of a disk."""

    KILL = "kill"  # the process ends before the call
    TORN_WRITE = "torn write"  # a write is made in part, then the process ends
    ERROR = "error"  # the call fails, and the process lives on
    MISDIRECTED = "misdirected"  # a whole file is written into another one, and the disk reports success


@dataclass
class PlannedFault:
    """A fault that waits for the n-th call from now on."""

    calls_left: int
    kind: DiskFault


@dataclass
class Machine:
    """What one machine's disk has not synced, its faults, and what happened to it."""

    folder: Path
    unsynced: dict[Path, int] = field(default_factory=dict)  # file -> how many of its bytes are synced
    undo: list[tuple[Path, Callable[[], None]]] = field(default_factory=list)  # folder, how to take a change back
    planned: PlannedFault | None = None
    fsync_us: int = 0  # how long each fsync takes
    stalled_us: int = 0  # how long calls took since someone asked
    damaged: dict[Path, bytes] = field(default_factory=dict)  # what files held before they were damaged
    was_damaged: bool = False  # whether any file ever was
    calls: int = 0
    errors: int = 0  # calls that have failed


class SimulatedDisk(Disk):
    """The disks of all machines; a path belongs to the machine whose folder holds it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._machines: dict[Path, Machine] = {}
        self._machines_by_parent: dict[str, Machine] = {}  # whose files a folder holds, once that was asked
        self._open: dict[int, Path] = {}
        self._spare = Machine(Path())  # of files that belong to no machine
        self.on_sync: Callable[[], None] = lambda: None  # called when everything is to be made durable

    def machine(self, folder: Path) -> Machine:
        """Return the machine of a folder, which is added if it is new."""
        if folder not in self._machines:
            self._machines[folder] = Machine(folder)
            self._machines_by_parent.clear()  # some of what is below it may have belonged to another
        return self._machines[folder]

    # --- the calls of a disk ------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        machine = self._step(path)
        is_new = bool(flags & os.O_CREAT) and not path.exists()
        file = super().open(path, flags)
        self._open[file] = path
        if is_new:
            machine.undo.append((path.parent, lambda: path.unlink(missing_ok=True)))
        if flags & os.O_TRUNC:
            machine.unsynced[path] = 0
        return file

    def write(self, file: int, data: memoryview) -> int:
        path = self._open[file]
        machine = self._machine_of(path)
        fault = self._due(machine)
        machine.unsynced.setdefault(path, os.fstat(file).st_size)
        if fault is DiskFault.TORN_WRITE:
            super().write(file, data[: self._chance.randrange(len(data) + 1)])
            raise Killed
        if fault is DiskFault.MISDIRECTED and self._misdirect(machine, file, path, bytes(data)):
            return len(data)
        self._enact(machine, fault)
        return super().write(file, data)

    def truncate(self, file: int, size_bytes: int) -> None:
        path = self._open[file]
        machine = self._step(path)
        if size_bytes < os.fstat(file).st_size:
            machine.unsynced[path] = min(machine.unsynced.get(path, size_bytes), size_bytes)
        super().truncate(file, size_bytes)

    def fsync(self, file: int) -> None:
        synced = self._open[file]
        machine = self._step(synced)
        machine.stalled_us += machine.fsync_us
        machine.unsynced.pop(synced, None)
        for any_machine in (*self._machines.values(), self._spare):  # a folder's name is kept in its parent
            any_machine.undo = [(folder, back) for folder, back in any_machine.undo if folder != synced]

    def close(self, file: int) -> None:
        self._open.pop(file, None)
        super().close(file)

    def replace(self, old: Path, new: Path) -> None:
        machine = self._step(new)
        if old.is_dir():
            machine.undo.append((new.parent, lambda: _rename_back(old, new)))
            super().replace(old, new)
            return
        before = new.read_bytes() if new.exists() else None
        machine.undo.append((new.parent, lambda: self._take_back(machine, old, new, before)))
        if old in machine.unsynced:
            machine.unsynced[new] = machine.unsynced.pop(old)
        machine.damaged.pop(new, None)
        if old in machine.damaged:  # what is set aside is missing where it was
            kept_at = old if new.suffix == DAMAGED_SUFFIX else new
            machine.damaged[kept_at] = machine.damaged.pop(old)
        super().replace(old, new)

    def unlink(self, path: Path) -> None:
        machine = self._step(path)
        content = path.read_bytes()
        machine.undo.append((path.parent, lambda: _put_back(path, content)))
        machine.damaged.pop(path, None)
        super().unlink(path)

    def make_folder(self, folder: Path) -> None:
        machine = self._step(folder)
        machine.undo.append((folder.parent, lambda: shutil.rmtree(folder, ignore_errors=True)))
        super().make_folder(folder)

    def sync_everything(self) -> None:
        """Say so to whoever stands for what libraries write."""
        self.on_sync()

    # --- faults ----------------------------------------------------------------------------------------------------

    def plan_fault(self, folder: Path, calls: int, kind: DiskFault) -> None:
        """Let a fault happen at the n-th call from now on, counted from 0."""
        self.machine(folder).planned = PlannedFault(calls, kind)

    def heal(self, folder: Path) -> None:
        """Let no further fault happen; what is damaged stays so."""
        machine = self.machine(folder)
        machine.planned = None
        machine.fsync_us = 0

    def close_files(self, folder: Path) -> None:
        """Close what a process has open, which has ended."""
        for file in [f for f, path in self._open.items() if path.is_relative_to(folder)]:
            self.close(file)

    def cut_power(self, folder: Path) -> int:
        """Lose what was not synced; return how many changes were taken back."""
        machine = self.machine(folder)
        lost = machine.undo[self._chance.randrange(len(machine.undo) + 1) :]
        for _, back in reversed(lost):
            back()
        for path, synced_bytes in machine.unsynced.items():
            if path.is_file() and path.stat().st_size > synced_bytes:
                self._lose_content(path, synced_bytes)
        changes = len(lost) + len(machine.unsynced)
        machine.undo.clear()
        machine.unsynced.clear()
        return changes

    def rot(self, folder: Path) -> Path | None:
        """Alter one byte of a file of a machine that is down; return which, or None if it has no file."""
        machine = self.machine(folder)
        files = [p for p in state_files(folder) if p.stat().st_size]
        if not files:
            return None
        path = self._chance.choice(files)
        good = path.read_bytes()
        place = self._chance.randrange(len(good))
        path.write_bytes(good[:place] + bytes([good[place] ^ (1 << self._chance.randrange(8))]) + good[place + 1 :])
        machine.damaged.setdefault(path, good)
        machine.was_damaged = True
        return path

    def restore(self, folder: Path) -> int:
        """Put back what damaged files held, as from a copy; return how many there were."""
        machine = self.machine(folder)
        for path, good in machine.damaged.items():
            if path.parent.exists():
                path.write_bytes(good)
        restored = len(machine.damaged)
        machine.damaged.clear()
        return restored

    def replace_all(self, folder: Path, files: Mapping[Path, bytes]) -> None:
        """Leave these files below a folder of a machine that is down, durably, and no others."""
        machine = self.machine(folder)
        shutil.rmtree(folder, ignore_errors=True)
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        machine.undo.clear()
        machine.unsynced.clear()
        machine.damaged.clear()

    @staticmethod
    def _take_back(machine: Machine, old: Path, new: Path, before: bytes | None) -> None:
        """Give a renamed file its old name again, and put back what had its new one."""
        moved = new.read_bytes() if new.exists() else None
        _put_back(new, before)
        _put_back(old, moved)
        if new in machine.unsynced:
            machine.unsynced[old] = machine.unsynced.pop(new)

    def _lose_content(self, path: Path, synced_bytes: int) -> None:
        """Cut the end that was not synced, or leave zeros in its place from some sector on."""
        size = path.stat().st_size
        kept = self._chance.randint(synced_bytes, size)
        with open(path, "r+b") as file:
            if self._chance.random() < 0.3:
                start = max(synced_bytes, kept - kept % SECTOR_BYTES)
                file.seek(start)
                file.write(bytes(size - start))
            else:
                file.truncate(kept)

    def _misdirect(self, machine: Machine, file: int, path: Path, data: bytes) -> bool:
        """Write the content of a new file over another one; return False where there is no other."""
        others = [p for p in state_files(machine.folder) if p != path and p.suffix != ".log"]
        if path.suffix == ".log" or not others:
            return False  # an entry that was synced and is not there cannot be told from one that never was
        victim = self._chance.choice(others)
        machine.damaged.setdefault(victim, victim.read_bytes())
        victim.write_bytes(data)
        machine.damaged[path] = data
        machine.was_damaged = True
        os.write(file, bytes(len(data)))
        return True

    # --- which fault is due ---------------------------------------------------------------------------------------

    def _step(self, path: Path) -> Machine:
        machine = self._machine_of(path)
        self._enact(machine, self._due(machine))
        return machine

    def _due(self, machine: Machine) -> DiskFault | None:
        machine.calls += 1
        planned = machine.planned
        if planned is None:
            return None
        planned.calls_left -= 1
        if planned.calls_left >= 0:
            return None
        machine.planned = None
        return planned.kind

    def _enact(self, machine: Machine, fault: DiskFault | None) -> None:
        if fault is DiskFault.ERROR:
            machine.errors += 1
            raise OSError(errno.EIO, "the simulated disk fails")
        if fault is not None and fault is not DiskFault.MISDIRECTED:
            raise Killed

    def _machine_of(self, path: Path) -> Machine:
        parent = os.path.dirname(path)
        found = self._machines_by_parent.get(parent)
        if found is None or path in self._machines:
            found = next((self._machines[f] for f in (path, *path.parents) if f in self._machines), self._spare)
            if path not in self._machines:
                self._machines_by_parent[parent] = found
        return found


def state_files(folder: Path) -> list[Path]:
    """Return the files of a folder that hold state, in order of name."""
    found = (p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(LOCK_NAMES))
    return sorted(found)


def _rename_back(old: Path, new: Path) -> None:
    """Give a renamed folder its old name again; what was removed from it has been put back already."""
    if new.is_dir():
        new.replace(old)


def _put_back(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    elif path.parent.exists():
        path.write_bytes(content)
