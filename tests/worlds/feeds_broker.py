"""A real broker for tests of feeds: mosquitto on a free port of the loopback."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import TypeVar

import pytest

from tests.worlds.waiting import free_port, wait_until

Test = TypeVar("Test", bound=Callable[..., None])

MOSQUITTO = shutil.which("mosquitto") or ("/usr/sbin/mosquitto" if Path("/usr/sbin/mosquitto").exists() else None)


def needs_broker(test: Test) -> Test:
    """Mark a test as one that runs with mosquitto, and is skipped with a reason where it is not installed."""
    reason = "needs the mosquitto broker: apt-get install mosquitto"
    marked: Test = pytest.mark.integration(pytest.mark.skipif(MOSQUITTO is None, reason=reason)(test))
    return marked


@contextmanager
def broker(folder: Path, websocket_port: int | None = None) -> Iterator[int]:
    """The port of a broker that keeps sessions and everything that waits in them, for the time of a test."""
    port = free_port()
    settings = f"listener {port} 127.0.0.1\n"
    if websocket_port is not None:
        settings += f"listener {websocket_port} 127.0.0.1\nprotocol websockets\n"
    settings += "allow_anonymous true\npersistence false\nmax_queued_messages 0\n"
    (folder / "mosquitto.conf").write_text(settings)
    assert MOSQUITTO is not None
    running = subprocess.Popen([MOSQUITTO, "-c", str(folder / "mosquitto.conf")], stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        running.terminate()
        running.wait()


class PersistentBroker:
    """A broker that writes sessions and what waits in them to disk when it ends, and finds them when it starts."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.settings = folder / "mosquitto.conf"
        (folder / "broker").mkdir()
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "max_queued_messages 0",
            "persistence true",
            f"persistence_location {folder / 'broker'}/",
            f"user {getuser()}",  # else it changes to a user of its own, who may not write there
        ]
        self.settings.write_text("\n".join([*lines, ""]))
        self.running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        self.running = subprocess.Popen([MOSQUITTO, "-c", str(self.settings)], stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        assert self.running is not None
        self.running.terminate()
        self.running.wait()


def until(condition: Callable[[], bool], act: Callable[[], object] = lambda: None) -> None:
    """Act until a condition of a broker and its clients holds."""
    wait_until(condition, "the broker and its clients", act=act, pause_s=0.01)
