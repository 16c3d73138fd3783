"""The device in JavaScript for tests: where it is, and whether Node is here to run it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.worlds.feeds_live import DeviceProgram

Test = TypeVar("Test", bound=Callable[..., None])

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
NODE = shutil.which("node")


def needs_node(test: Test) -> Test:
    """Mark a test as one that runs with Node, and is skipped with a reason where it is not installed."""
    reason = "needs Node 18 or later: apt-get install nodejs"
    marked: Test = pytest.mark.integration(pytest.mark.skipif(NODE is None, reason=reason)(test))
    return marked


def node_device(name: str, port: int, websocket_port: int, folder: Path) -> DeviceProgram:
    """The device in JavaScript in a process of its own: over WebSocket where this Node has it, else over TCP."""
    assert NODE is not None
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(version.lstrip("v").split(".")[0])
    flags = ["--experimental-websocket", "--no-warnings"] if major in (20, 21) else []
    address = f"ws://127.0.0.1:{websocket_port}" if major >= 20 else f"mqtt://127.0.0.1:{port}"
    command = [NODE, *flags, str(CLIENT / "bin" / "device.js"), "--broker", address, "--name", name, "--app", "test"]
    return DeviceProgram(name, command, folder)
