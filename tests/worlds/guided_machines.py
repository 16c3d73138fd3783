"""Machines that do what the blocks of a page say: each is a folder, with a home of its own, on one Spark session.

What a page writes is done as it stands, but for a few words: `/srv/catchment`, `/var/backups` and `~` are folders of
the machine, `scp` copies between machines, `systemctl` runs the role of a unit and starts it again when it has ended by
itself, as `Restart=always` does, and `pip` says which release a machine has.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catchment.wire.frames import versions
from tests.worlds.machines import Machine, run_center, start_site
from tests.worlds.shell import Shell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = "/srv/catchment"
BACKUPS = "/var/backups/catchment"
ADDRESS = "center.example.org:9410"
CENTER_UNIT, SITE_UNIT = "catchment-center", "catchment-site"
PLAIN = ("mkdir", "cp", "rm", "du")  # run as they are


@dataclass
class GuidedMachine:
    """One machine: its folders, which release it has, and what runs on it."""

    name: str
    root: Path
    is_upgraded: bool = False
    runs: Machine | None = None
    unit: str | None = None  # what its supervisor keeps running

    @property
    def folder(self) -> Path:
        return self.root / self.name / "catchment"

    @property
    def home(self) -> Path:
        return self.root / self.name / "home"

    def make(self) -> None:
        for folder in (self.folder, self.home):
            folder.mkdir(parents=True, exist_ok=True)

    def translate(self, text: str) -> str:
        """Return a text of the page with the folders of this machine."""
        text = text.replace(BACKUPS, str(self.root / self.name / "backups"))
        return re.sub(r"(?<!\S)~/", f"{self.home}/", text.replace(PROJECT, str(self.folder)))


@dataclass
class GuidedMachines:
    """All machines that a page names, and the commands that it gives them."""

    spark: SparkSession
    root: Path
    address: str
    shell: Shell
    monkeypatch: pytest.MonkeyPatch
    on_stopped: Callable[[], None] = lambda: None
    machines: dict[str, GuidedMachine] = field(default_factory=dict)

    def __getitem__(self, name: str) -> GuidedMachine:
        if name not in self.machines:
            self.machines[name] = GuidedMachine(name, self.root)
            self.machines[name].make()
        return self.machines[name]

    def write(self, name: str, file: str, text: str) -> None:
        """Write a file that the page shows."""
        machine = self[name]
        path = machine.folder / machine.translate(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(ADDRESS, self.address))

    def run(self, name: str, line: str) -> None:
        """Do what a line says on a machine."""
        machine = self[name]
        words = shlex.split(line, comments=True)
        if not words:
            return
        match words[0]:
            case "catchment":
                self._run_catchment(machine, words[1:])
            case "scp":
                self._copy(machine, words[-2], words[-1])
            case "systemctl":
                self._supervise(machine, words[1], words[2])
            case "pip":
                machine.is_upgraded = "--upgrade" in words
            case command if command in PLAIN:
                given = [machine.translate(word) for word in words]
                subprocess.run(given, cwd=machine.folder, check=True, capture_output=True)
            case _:
                raise AssertionError(f"{line!r} cannot be done by a test")

    def supervise(self) -> None:
        """Start again what has ended by itself."""
        for machine in self.machines.values():
            if machine.runs is not None and machine.runs.has_ended:
                machine.runs.close()
                self._start(machine)

    def stop_all(self) -> None:
        for machine in reversed(list(self.machines.values())):
            if machine.runs is not None:
                running = machine.runs
                machine.runs = None
                running.stop()

    def _run_catchment(self, machine: GuidedMachine, words: list[str]) -> None:
        with self.monkeypatch.context() as patch:
            patch.chdir(machine.folder)
            patch.setenv("XDG_CONFIG_HOME", str(machine.home / ".config"))
            self.shell(*(machine.translate(word) for word in words))

    def _copy(self, machine: GuidedMachine, source: str, target: str) -> None:
        host, _, path = source.partition(":")
        origin = self[host.split(".")[0]]
        found = Path(origin.translate(path))
        into = machine.folder / machine.translate(target)
        shutil.copytree(found, into / found.name if target.endswith("/") else into)

    def _supervise(self, machine: GuidedMachine, verb: str, unit: str) -> None:
        if verb == "start":
            assert machine.runs is None, f"{unit} runs on {machine.name} already"
            machine.unit = unit
            self._start(machine)
            return
        assert verb == "stop"
        assert machine.runs is not None, f"{unit} does not run on {machine.name}"
        running = machine.runs
        machine.runs = None
        running.stop()
        self.on_stopped()

    def _start(self, machine: GuidedMachine) -> None:
        spoken = versions.READ_VERSIONS if machine.is_upgraded else (versions.PREVIOUS_VERSION,)
        start: Mapping[str, Callable[[], Machine]] = {
            CENTER_UNIT: lambda: run_center(self.spark, machine.folder),
            SITE_UNIT: lambda: start_site(self.spark, machine.folder),
        }
        with self.monkeypatch.context() as patch:
            patch.setattr(versions, "SPOKEN_VERSIONS", spoken)
            machine.runs = start[machine.unit or ""]()
