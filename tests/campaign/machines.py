"""One role of the deployment as a process, and the processes that a role should not have left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from catchment.deploy.reports.role_files import read_status
from tests.worlds.waiting import wait_until

MARK = "CATCHMENT_CAMPAIGN"  # the variable by which processes of a campaign are known


@dataclass
class Machine:
    """A role with its folder, as on a machine of its own."""

    name: str
    command: tuple[str, ...]
    project: Path
    state: Path
    mark: str
    prefix: tuple[str, ...] = ()  # what the command is started with, such as a network namespace
    java_options: str = ""
    clock_skew_s: float = 0.0
    is_wanted: bool = True  # whether it should be running at rest
    process: subprocess.Popen[bytes] | None = None
    _started_at_us: int = field(default=0, init=False)

    @property
    def log(self) -> Path:
        return self.project / "output.log"

    def start(self) -> None:
        """Start it; a machine that runs is left alone."""
        if self.is_alive:
            return
        self._started_at_us = _reported_at_us(self.status)
        program = ["-m", "catchment.cli"]
        if self.clock_skew_s:
            program = ["-m", "tests.campaign.skewed_clock", str(self.clock_skew_s)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, *program, *self.command, "--project", str(self.project), "--json"],
                cwd=self.project,
                env={"JDK_JAVA_OPTIONS": self.java_options, **os.environ, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def status(self) -> Mapping[str, Any]:
        return read_status(self.state) or {}

    @property
    def has_reported(self) -> bool:
        """Whether it has written a status since its start."""
        return _reported_at_us(self.status) != self._started_at_us

    @property
    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""

    def wait_until_up(self) -> None:
        """Wait until it has started, or has ended again."""
        wait_until(
            lambda: self.has_reported or not self.is_alive,
            f"{self.name} to start",
            state=lambda: self.last_words,
            pause_s=0.1,
        )

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came."""
        assert self.process is not None
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process with SIGKILL; its JVM sees that it is alone, and ends."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGKILL)
            assert self.process is not None
            self.process.wait()

    def end(self) -> None:
        """Kill the process and all that it has started, also what stands still."""
        if self.is_alive:
            self.signal_all(signal.SIGKILL)
        self.kill()

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it has started."""
        os.killpg(self.pid, number)

    def terminate(self, timeout_s: float = 60.0) -> None:
        """Ask it to stop, wait, and kill what is left."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGTERM)
            self.wait_until_ended(timeout_s)
        self.kill()

    def java_pid(self) -> int | None:
        """Return the JVM of a role that has one."""
        children = psutil.Process(self.pid).children(recursive=True) if self.is_alive else []
        return next((child.pid for child in children if child.name() == "java"), None)


def left_over(mark: str, machines: Iterable[Machine]) -> list[str]:
    """Return the processes of a campaign that belong to no machine that runs."""
    sessions = {machine.pid for machine in machines if machine.is_alive}
    found = []
    for process in psutil.process_iter(["pid", "name"]):
        try:
            if process.environ().get(MARK) == mark and os.getsid(process.pid) not in sessions:
                found.append(f"{process.pid} {process.name()}")
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def _reported_at_us(status: Mapping[str, Any]) -> int:
    return int(status.get("reported_at_us", 0))
