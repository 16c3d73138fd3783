"""A live deployment for the feeds benchmark: a broker, a cloud and fleets of devices, each a process.

Everything is measured at the cloud, from its log; notices and records are what the fleets wrote down.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catchment.errors import FeedError
from catchment.feeds.device.fleet import DeviceRecord
from catchment.feeds.protocol.messages import Notice
from catchment.feeds.runs.processes import read_delays_us, read_fleet_log

STARTS_S = 180.0  # how long Spark may take to start on a busy machine


def find_broker() -> str | None:
    """The mosquitto of this machine."""
    beside = Path("/usr/sbin/mosquitto")
    return shutil.which("mosquitto") or (str(beside) if beside.exists() else None)


@dataclass
class CloudLog:
    """What the cloud wrote, read as it grows."""

    path: Path
    read: int = 0
    traffic: list[list[Any]] = field(default_factory=list)
    hosts: list[list[Any]] = field(default_factory=list)
    usage: list[list[Any]] = field(default_factory=list)
    active: list[list[Any]] = field(default_factory=list)

    def renew(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.read += len(line)
                kind, *fields = json.loads(line)
                getattr(self, kind).append(fields)

    @property
    def moving(self) -> int:
        return int(self.traffic[-1][5]) if self.traffic else -1

    @property
    def redeployed(self) -> int:
        return int(self.traffic[-1][6]) if self.traffic else 0

    def at(self, lines: list[list[Any]], instant_us: int) -> list[Any]:
        """The last line that is not later than an instant."""
        return next(line for line in reversed(lines) if line[0] <= instant_us)


class Deployment:
    """Processes that are ended with the `with` block."""

    def __init__(self, project: Path, world: list[str], folder: Path, stack: ExitStack, *cloud_words: str) -> None:
        self.project, self.world, self.folder, self.stack = project, world, folder, stack
        self.port = self._start_broker()
        self.log = CloudLog(folder / "cloud.jsonl")
        self.fleets: list[tuple[subprocess.Popen[str], Path]] = []
        words = cloud_words or ("--cloud", "spark")
        self.cloud = self._start("cloud", *words, "--state", str(folder / "state"), "--log", str(self.log.path))

    def _start_broker(self) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        settings = self.folder / "mosquitto.conf"
        settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
        found = find_broker()
        assert found is not None
        broker = subprocess.Popen([found, "-c", str(settings)], stderr=subprocess.DEVNULL)
        self._end_with_stack(broker)
        return port

    def _end_with_stack(self, process: subprocess.Popen[Any]) -> None:
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def _start(self, command: str, *words: str) -> subprocess.Popen[str]:
        call = [sys.executable, "-m", "catchment.cli", "feeds", command, str(self.project)]
        call += ["--mqtt", f"127.0.0.1:{self.port}", *self.world, *words, "--json"]
        with (self.folder / f"{command}-{len(self.fleets)}.err").open("w") as errors:
            process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._end_with_stack(process)
        return process

    def start_fleets(self, parts: int, begin_s: float, change_at_s: float | None = None) -> None:
        changes = () if change_at_s is None else ("--change-at", str(change_at_s))
        for part in range(1, parts + 1):
            log = self.folder / f"fleet-{part}.jsonl"
            words = ("--part", f"{part}/{parts}", "--begin-at", str(begin_s), *changes)
            self.fleets.append((self._start("devices", *words, "--log", str(log)), log))

    def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Wait for a condition on the cloud's log; whether it came true in time."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            for process in (self.cloud, *(p for p, _ in self.fleets)):
                if process.poll() is not None:
                    raise FeedError(f"a process of the deployment has ended: {self._errors()}")
            self.log.renew()
            if condition():
                return True
            time.sleep(0.5)
        return False

    def _errors(self) -> str:
        return "; ".join(p.read_text()[-400:] for p in sorted(self.folder.glob("*.err")))

    def end(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Tell all to end, fleets first; what the cloud and the fleets answer."""
        answers = []
        for process in (*(p for p, _ in self.fleets), self.cloud):
            process.send_signal(signal.SIGTERM)
            answers.append(json.loads(process.communicate(timeout=120)[0]))
        self.log.renew()
        return answers[-1], answers[:-1]

    def delays_us(self, since_us: int) -> list[int]:
        """How long notices took from the match, of matches since an instant."""
        return [delay for _, path in self.fleets for at_us, delay in read_delays_us(path) if at_us >= since_us]

    def written(self) -> tuple[list[DeviceRecord], list[Notice]]:
        """What the fleets wrote down."""
        logs = [read_fleet_log(path) for _, path in self.fleets]
        return [r for records, _ in logs for r in records], [n for _, notices in logs for n in notices]
