"""The device in JavaScript for tests: where it is, and whether Node is here to run it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
NODE = shutil.which("node")


def needs_node(test: Test) -> Test:
    """Mark a test as one that runs with Node, and is skipped with a reason where it is not installed."""
    reason = "needs Node 18 or later: apt-get install nodejs"
    marked: Test = pytest.mark.integration(pytest.mark.skipif(NODE is None, reason=reason)(test))
    return marked
