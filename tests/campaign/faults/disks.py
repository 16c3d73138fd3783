"""Disks that are full, or whose calls fail; and processes that may open no more files."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.campaign.faults.base import Fault, NotPossibleError
from tests.campaign.living import ROLES, SMALL_DISKS

FILLER = "filler"
LEFT_BYTES = 4 * 2**20  # of a disk that is nearly full: less than `free_disk` of the project
STRIKE_PATIENCE_S = 25.0  # how long a call that fails is waited for; other faults may leave a role without work
ENDING_S = 3.0  # within which a process ends that could not go on
DISK_FULL = 4  # the exit code of a process whose disk is full


class SmallDiskFault(Fault):
    """A fault of a role that has a disk of its own; `left_bytes` are left free on it."""

    targets = SMALL_DISKS
    left_bytes = 0

    def inject(self) -> None:
        if not self.living.has_small_disks:
            raise NotPossibleError("small disks cannot be mounted here (needs root)")
        fill(self.machine.state / FILLER, self.left_bytes)
        self.feed_windows(1)

    def observe(self) -> None:
        self.wait_told("a full disk", self._find_told)

    def _find_told(self) -> str:
        code = self.machine.exit_code
        if code is not None:
            assert code == DISK_FULL, f"{self.target} ended with {code} on a full disk:\n{self.machine.last_words}"
            return f"exit code {code}"
        disk = self.machine.status.get("disk") or {}
        return f"{disk['free_bytes']} bytes free" if disk.get("low_since_us") is not None else ""

    def heal(self) -> None:
        (self.machine.state / FILLER).unlink()
        if not self.machine.is_alive:
            self.machine.start()


class DiskLow(SmallDiskFault):
    """Less is free than `free_disk`: the role waits for room, and needs no restart."""

    kind = "disk nearly full"
    left_bytes = LEFT_BYTES

    def observe(self) -> None:
        super().observe()
        assert self.machine.is_alive, f"{self.target} ended though its disk had room:\n{self.machine.last_words}"


class DiskFull(SmallDiskFault):
    """ENOSPC: nothing is free at all."""

    kind = "ENOSPC"

    def observe(self) -> None:
        self.pause(1.0, 4.0)
        super().observe()


class FailingCall(Fault):
    """A call of the disk fails once, in a process that works: strace makes it fail."""

    targets = ROLES
    calls = "fsync,fdatasync"
    error = "EIO"

    def inject(self) -> None:
        if shutil.which("strace") is None:
            raise NotPossibleError("strace is not installed")
        self._log = self.machine.project / "strace.log"
        self._log.unlink(missing_ok=True)
        when = self.chance.choice([1, 1, 2, 3, 5])
        rule = f"inject={self.calls}:error={self.error}:when={when}"
        program = ["strace", "-f", "-q", "-e", f"trace={self.calls}", "-e", rule, "-o", str(self._log)]
        self._strace = subprocess.Popen(
            [*program, "-p", str(self.machine.pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.feed_windows(1)

    def observe(self) -> None:
        until_s = time.monotonic() + STRIKE_PATIENCE_S
        while time.monotonic() < until_s and self.machine.is_alive and not self._has_struck:
            assert self._strace.poll() is None, f"strace ended: {self._strace_words()}"
            self.feed_windows(1)
            time.sleep(1.0)
        if self._has_struck:
            self.wait_told("a process that ended with an error", self._find_end)
        else:
            self.has_struck = False
            self.told = "no such call was made meanwhile"

    def _find_end(self) -> str:
        return "" if self.machine.is_alive else f"exit code {self.machine.exit_code}"

    @property
    def _has_struck(self) -> bool:
        return self._log.exists() and "(INJECTED)" in self._log.read_text(errors="replace")

    def _strace_words(self) -> str:
        assert self._strace.stderr is not None
        return self._strace.stderr.read(2000).decode(errors="replace")

    def heal(self) -> None:
        if self._strace.poll() is None:
            self._strace.send_signal(signal.SIGTERM)
            self._strace.wait(30)
        self.machine.terminate()
        self.machine.start()


class FailingSync(FailingCall):
    kind = "EIO of fsync"


class FailingRename(FailingCall):
    kind = "EIO of rename"
    calls = "rename,renameat,renameat2"


class FullOnSync(FailingCall):
    kind = "ENOSPC of fsync"
    error = "ENOSPC"


class NoMoreFiles(Fault):
    """EMFILE: a process may open no more files for some seconds."""

    kind = "EMFILE"
    targets = ROLES

    def inject(self) -> None:
        pid = self.machine.pid
        self._before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        opened = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(opened - 1, 4), self._before[1]))
        self._until_s = time.monotonic() + self.chance.uniform(3.0, 8.0)
        self.feed_windows(1)

    def heal(self) -> None:
        while self.machine.is_alive and time.monotonic() < self._until_s:
            time.sleep(0.1)
        if self.machine.is_alive:
            resource.prlimit(self.machine.pid, resource.RLIMIT_NOFILE, self._before)
        if not self.machine.wait_until_ended(ENDING_S):
            self.told = "it lived on"
            return
        self.told = f"exit code {self.machine.exit_code}"
        self.machine.start()


def fill(filler: Path, left_bytes: int) -> None:
    """Write a file until so many bytes are left on its disk."""
    free = os.statvfs(filler.parent)
    size_bytes = free.f_bavail * free.f_frsize - left_bytes
    with filler.open("wb", buffering=0) as file:
        for chunk in (2**20, 4096):
            try:
                while size_bytes >= chunk or not left_bytes:
                    size_bytes -= file.write(b"\0" * chunk)
            except OSError:
                continue


KINDS = (DiskLow, DiskFull, FailingSync, FailingRename, FullOnSync, NoMoreFiles)
