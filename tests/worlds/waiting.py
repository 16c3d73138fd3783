"""Waiting for a state instead of for a time, so that no test depends on how fast the machine is."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

# How long a test waits for anything. A machine with ten times more work than cores must not reach it; a test that does
# has found a state that never comes.
PATIENCE_S = 600.0


def wait_until(
    condition: Callable[[], bool],
    what: str,
    timeout_s: float = PATIENCE_S,
    *,
    act: Callable[[], object] = lambda: None,
    state: Callable[[], object] = lambda: "no state given",
    pause_s: float = 0.05,
) -> None:
    """Act until a condition holds; fail with what was waited for, and the last state, when it does not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain for: {what}\nlast state: {state()}")
        act()
        time.sleep(pause_s)


def free_port() -> int:
    """Return a port of the loopback that nobody listens on, and that nobody else is given before it is used.

    It is none of those that the system gives to whoever asks for any port, as every JVM and every connection does. A
    datagram socket on the same number, kept until this process ends, claims it among the processes of tests.
    """
    while True:
        port = random.SystemRandom().randrange(*TEST_PORTS)
        with suppress(OSError), ExitStack() as closing:
            claim = closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            claim.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
            _claimed_ports.append(claim)
            closing.pop_all()
            return port


def _first_ephemeral_port() -> int:
    """Return the first port that the system gives to whoever asks for any."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768 if sys.platform == "linux" else 49_152


TEST_PORTS = (10_000, max(_first_ephemeral_port(), 11_000))
_claimed_ports: list[socket.socket] = []
