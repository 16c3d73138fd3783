"""Machines as network namespaces of Linux: each has its own loopback and one address in a network of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

NETWORK = "10.87.19"
MISSING = "network namespaces need Linux, root and the program ip"


def has_namespaces() -> bool:
    """Whether this machine lets a test make network namespaces."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    probe = f"catchment-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", probe)
    return made


class Namespaces:
    """Some machines, joined by a switch that is a namespace too; nothing of it is left in the end."""

    def __init__(self, machines: Sequence[str]) -> None:
        self._machines = tuple(machines)
        self._closing = ExitStack()

    def address(self, machine: str) -> str:
        """The address of a machine in the common network."""
        return f"{NETWORK}.{self._machines.index(machine) + 1}"

    def command(self, machine: str) -> tuple[str, ...]:
        """What a command begins with that runs on a machine."""
        return ("ip", "netns", "exec", self._name(machine))

    def __enter__(self) -> Self:
        try:
            switch = self._add("switch")
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for number, machine in enumerate(self._machines):
                self._connect(machine, number, switch)
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _connect(self, machine: str, number: int, switch: str) -> None:
        name, plug = self._add(machine), f"plug{number}"
        _ip("-n", switch, "link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", switch, "link", "set", plug, "master", "bridge")
        _ip("-n", switch, "link", "set", plug, "up")
        _ip("-n", name, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")

    def _add(self, machine: str) -> str:
        name = self._name(machine)
        _ip("netns", "add", name)
        self._closing.callback(_ip, "netns", "del", name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    @staticmethod
    def _name(machine: str) -> str:
        return f"catchment-{os.getpid()}-{machine}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
