"""A real broker for tests of feeds: mosquitto on a free port of the loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MOSQUITTO = shutil.which("mosquitto") or ("/usr/sbin/mosquitto" if Path("/usr/sbin/mosquitto").exists() else None)
needs_broker = pytest.mark.skipif(MOSQUITTO is None, reason="needs the mosquitto broker: apt-get install mosquitto")


@contextmanager
def broker(folder: Path) -> Iterator[int]:
    """The port of a broker that keeps sessions and everything that waits in them, for the time of a test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
    (folder / "mosquitto.conf").write_text(settings)
    assert MOSQUITTO is not None
    running = subprocess.Popen([MOSQUITTO, "-c", str(folder / "mosquitto.conf")], stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        running.terminate()
        running.wait()


def until(condition: Callable[[], bool], act: Callable[[], object] = lambda: None, patience_s: float = 20.0) -> None:
    """Act until a condition holds; fail when it does not come true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        act()
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
