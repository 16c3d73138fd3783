"""The process of a light site: `catchment site NAME` prepares it, and then becomes it.

To read a project takes several times the memory that a light site needs. So whoever starts the site reads it, writes
down which streams there are (`catchment.light.streams`), and replaces itself by this small process, under the same
number. When another deployment is written, another process prepares again, and ends.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from catchment.cli.run_log import LogChoice, LogFormat, LogLevel, write_log
from catchment.deploy.processes.connections import Connections, inbox_address
from catchment.deploy.reports.role_files import write_status
from catchment.errors import CatchmentError
from catchment.light.source import LightSource
from catchment.light.streams import light_streams, read_streams, write_streams
from catchment.project.config import Project
from catchment.project.joined_site import DEPLOYMENT_FILE
from catchment.project.routes import outgoing_link
from catchment.timeline import SystemClock
from catchment.version import VERSION
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender

if TYPE_CHECKING:
    from catchment.deploy.deployment import Deployment

MODULE = "catchment.cli.light_process"
STATUS_EVERY_S = 1.0
ARENAS = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}
_log = logging.getLogger(__name__)


def prepare(deployment: Deployment, site: str) -> None:
    """Write down what a light site reads; refuse what it cannot."""
    from catchment.deploy.preflight import check_sources

    check_sources(deployment, [site])
    streams = light_streams(site, deployment.declared_at(site))
    write_streams(deployment.project.source_folder(site), streams)


def become(project: Path, site: str, seconds: float | None, log: LogChoice) -> NoReturn:
    """Replace this process by that of a light site, which was prepared."""
    limits = [] if seconds is None else ["--seconds", str(seconds)]
    words = ["run", str(project), site, *limits, "--log-format", log.format, "--log-level", log.level]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *words], {**ARENAS, **os.environ})


class LightProcess:
    """Runs one light site until a signal comes or the time is over, and follows what is deployed."""

    def __init__(self, folder: Path, site: str) -> None:
        self._folder = folder
        self.site = site
        self.project = Project.load(folder)
        self._stopping = threading.Event()
        self._told_s = 0.0
        self._stamp = self._read_stamp()
        self._clock = SystemClock()
        streams = read_streams(self.project.source_folder(site))
        self._connections = Connections(self.project, self._clock)
        self.source = LightSource(self.project, site, streams, self._make_sender, self._clock)

    def run(self, seconds: float | None = None) -> None:
        """Read and send until the end."""
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        signal.signal(signal.SIGINT, lambda *_: self._stopping.set())
        _log.info("catchment %s starts the light site %s of project %s", VERSION, self.site, self.project.name)
        try:
            self.source.start()
            self.source.run(self._wait, seconds)
        finally:
            self.source.stop()
            write_status(self.source.folder, self.source.status(), stopped=True)
            _log.info("stopped; what was read and not sent yet is kept in %s", self.source.folder)

    def _wait(self, seconds: float) -> bool:
        """Wait for the next look; return whether it is time to stop."""
        now_s = self._clock.now_us() / 1e6
        if now_s - self._told_s >= STATUS_EVERY_S:
            self._told_s = now_s
            write_status(self.source.folder, self.source.status())
            self._follow()
        return self._stopping.wait(seconds)

    def _follow(self) -> None:
        """Read what another deployment reads, if it can be planned; else what is read goes on as it is."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        words = [sys.executable, "-m", MODULE, "prepare", str(self._folder), self.site]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            _log.error("what is deployed now is not followed: %s", ended.stderr.strip()[-500:])
            return
        self.source.follow(read_streams(self.source.folder))

    def _read_stamp(self) -> tuple[int, int]:
        try:
            found = (self.project.state_folder / DEPLOYMENT_FILE).stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino

    def _make_sender(self, outbox: Outbox) -> Sender:
        link = outgoing_link(self.project, self.site)
        address = inbox_address(self.project, link.destination)
        return self._connections.make_sender(link, self.site, address, outbox, carries_records=True)


def main() -> None:
    """Prepare a light site, or run it; for `catchment site`, and not for people."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("step", choices=("prepare", "run"))
    parser.add_argument("project", type=Path)
    parser.add_argument("site")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--log-format", type=LogFormat, default=LogFormat.TEXT)
    parser.add_argument("--log-level", type=LogLevel, default=LogLevel.INFO)
    given = parser.parse_args()
    try:
        if given.step == "prepare":
            from catchment.deploy.deployment import Deployment

            prepare(Deployment.load(given.project), given.site)
            return
        process = LightProcess(given.project, given.site)
        log = process.project.state_folder / "logs" / f"site-{given.site}.log"
        with write_log(log, LogChoice(given.log_format, given.log_level), "site", given.site):
            process.run(given.seconds)
    except CatchmentError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
