"""The device in JavaScript, under Node: held to the golden vectors."""

from __future__ import annotations

import subprocess

from tests.worlds.feeds_javascript import CLIENT, NODE, needs_node
from tests.worlds.waiting import PATIENCE_S


@needs_node
def test_the_javascript_device_gives_the_golden_vectors() -> None:
    assert NODE is not None
    run = subprocess.run(
        [NODE, "--test", "test/vectors.test.js"], cwd=CLIENT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "# pass 6" in run.stdout
