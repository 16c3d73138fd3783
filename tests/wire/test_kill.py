"""kill -9 of a real site and a real center, again and again: every segment lands once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from tests.worlds.waiting import PATIENCE_S, free_port, wait_until
from tests.worlds.wire_support import frames_on_disk, landed_segments

SEGMENTS = 150
KILLS = 4
SCRIPT = Path(__file__).parents[1] / "worlds" / "wire_process.py"


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SCRIPT), *map(str, arguments)])


def wait_for_landed(folder: Path, count: int) -> None:
    wait_until(lambda: len(frames_on_disk(folder)) >= count, f"{count} segments to land", pause_s=0.01)


@pytest.mark.e2e
def test_kill_9_of_either_side_at_any_time_loses_and_doubles_nothing(tmp_path: Path) -> None:
    port, chance = free_port(), random.Random(7)
    site_arguments = ("site", tmp_path / "outbox", port, SEGMENTS)
    center_arguments = ("center", tmp_path / "inbox", port)
    processes = {"site": start(*site_arguments), "center": start(*center_arguments)}
    try:
        for reached in sorted(chance.sample(range(SEGMENTS * 3 // 4), KILLS)):
            wait_for_landed(tmp_path / "inbox", reached)
            for role in chance.choice([["site"], ["center"], ["site", "center"]]):
                processes[role].kill()
                processes[role].wait()
                processes[role] = start(*(site_arguments if role == "site" else center_arguments))
        assert processes["site"].wait(timeout=PATIENCE_S) == 0
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    inbox = Inbox(tmp_path / "inbox")
    found = sorted((s.sequence, next(s.updates()).table["n"][0].as_py()) for s in landed_segments(inbox))
    assert found == [(number, number) for number in range(SEGMENTS)]
    assert not Outbox(tmp_path / "outbox", "eu", "center", 1).pending()
