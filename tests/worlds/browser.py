"""A real browser for tests that must act in a page: Chromium, driven over a pipe by its own protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest

from tests.worlds.waiting import PATIENCE_S

Test = TypeVar("Test", bound=Callable[..., None])

BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
_END = b"\0"  # behind every message


def needs_browser(test: Test) -> Test:
    """Mark a test as one that runs with Chromium, and is skipped with a reason where it is not installed."""
    reason = "needs a browser: apt-get install chromium"
    marked: Test = pytest.mark.integration(pytest.mark.skipif(BROWSER is None, reason=reason)(test))
    return marked


class BrowserPage:
    """One page of a headless browser, in which expressions can be evaluated."""

    def __init__(self, url: str, folder: Path) -> None:
        assert BROWSER is not None
        to_read, self._commands = os.pipe()
        self._answers, to_write = os.pipe()
        flags = f"--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={folder}"
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {BROWSER} {flags} about:blank 3<&{to_read} 4>&{to_write}"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._read = b""
        self._session: str | None = None
        target = self._call("Target.createTarget", url=url)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, which must be JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + _END)
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while _END not in self._read:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            more = os.read(self._answers, 65536)
            assert more, "the browser has ended"
            self._read += more
        message, _, self._read = self._read.partition(_END)
        read: dict[str, Any] = json.loads(message)
        return read

    def __enter__(self) -> BrowserPage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
