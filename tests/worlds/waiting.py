"""Waiting for a state instead of for a time, so that no test depends on how fast the machine is."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

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
    """Return a port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
