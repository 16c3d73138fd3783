"""Scan processes: answers in order, failures told, a lost process noticed, nothing left behind; real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catchment.vectorised.scan_pool import CannotBePickledError, ScanPool, ScanProcessLostError

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[ScanPool]:
    pool = ScanPool(2)
    yield pool
    pool.close()


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_running(process):
        assert time.monotonic() < deadline, f"process {process} is still there"
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Return whether a process is there and has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_answers_come_in_the_order_of_the_arguments_from_processes_that_stay(pool: ScanPool) -> None:
    assert pool.map(abs, [-3, 2, -1, 0, -9]) == [3, 2, 1, 0, 9]
    first = {*pool.map(os.getpgid, [0] * 20)}
    assert first == {*pool.map(os.getpgid, [0] * 20)}, "the same session of processes"
    assert os.getpgid(0) not in first


def test_it_is_told_when_all_arguments_wait_for_their_turn(pool: ScanPool, tmp_path: Path) -> None:
    may_end = tmp_path / "may_end"
    os.mkfifo(may_end)
    queued = threading.Event()
    threading.Thread(target=lambda: queued.wait(PATIENCE_S) and may_end.write_text("go")).start()
    assert pool.map(Path.read_text, [may_end], queued.set) == ["go"]


def test_a_failure_in_a_process_is_told_and_the_process_goes_on(pool: ScanPool) -> None:
    processes = {*pool.map(os.getpgid, [0] * 4)}
    with pytest.raises(RuntimeError, match="invalid literal for int"):
        pool.map(int, ["1", "one"])
    assert pool.map(int, ["1", "2"]) == [1, 2]
    assert {*pool.map(os.getpgid, [0] * 4)} == processes


def test_what_cannot_be_pickled_is_refused_and_the_processes_go_on(pool: ScanPool) -> None:
    (process,) = {*pool.map(os.getpgid, [0])}
    with pytest.raises(CannotBePickledError, match="cannot be handed"):
        pool.map(lambda number: number, [1])
    assert {*pool.map(os.getpgid, [0])} == {process}


def test_a_lost_process_is_told_and_the_next_pass_has_new_ones() -> None:
    pool = ScanPool(2)
    (before,) = {*pool.map(os.getpgid, [0, 0])}
    with pytest.raises(ScanProcessLostError, match="has ended"):
        pool.map(os._exit, [9, 9])
    wait_until_gone(before)
    (after,) = {*pool.map(os.getpgid, [0, 0])}
    assert after != before
    pool.close()
    wait_until_gone(after)


def test_processes_without_work_end_and_come_back() -> None:
    pool = ScanPool(1, idle_s=0.01)
    (first,) = pool.map(os.getpgid, [0])
    wait_until_gone(first)
    assert pool.map(abs, [-1]) == [1]
    pool.close()


def test_processes_end_with_the_one_that_has_asked_for_them_however_it_ends() -> None:
    code = (
        "import os, time\n"
        "from catchment.vectorised.scan_pool import ScanPool\n"
        "print(*ScanPool(1).map(os.getpgid, [0]), flush=True)\n"
        "time.sleep(600)\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    process = int(asking.stdout.readline())
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    wait_until_gone(process)
    asking.stdout.close()


def test_passes_that_wait_for_their_turn_when_the_processes_end_are_told_so(tmp_path: Path) -> None:
    pool = ScanPool(1)
    may_end = tmp_path / "may_end"
    os.mkfifo(may_end)
    first_is_queued = threading.Event()
    second_is_queued = threading.Event()
    told: list[type[BaseException]] = []

    def ask(call: Callable[[Any], object], argument: object, on_queued: Callable[[], None]) -> None:
        try:
            pool.map(call, [argument], on_queued)
        except BaseException as failure:  # noqa: BLE001 - it is looked at
            told.append(type(failure))

    first = threading.Thread(target=ask, args=(Path.read_text, may_end, first_is_queued.set))
    first.start()
    assert first_is_queued.wait(PATIENCE_S)
    second = threading.Thread(target=ask, args=(abs, -1, second_is_queued.set))
    second.start()
    assert second_is_queued.wait(PATIENCE_S)
    pool.close()
    first.join()
    second.join()
    assert told == [ScanProcessLostError] * 2
    assert pool.map(abs, [-1]) == [1]
    pool.close()


def test_a_process_that_is_stopped_holds_nobody_up_who_does_not_want_its_answer() -> None:
    pool = ScanPool(1, patience_s=0.0)
    (group,) = pool.map(os.getpgid, [0])
    with pytest.raises(ScanProcessLostError, match="does not end"):
        pool.map(signal.raise_signal, [signal.SIGSTOP], is_wanted=lambda: False)
    wait_until_gone(group)
    assert pool.map(abs, [-1]) == [1]
    pool.close()


def test_processes_leave_nothing_behind_where_nobody_else_waits_for_them() -> None:
    code = (
        "import ctypes, os\n"
        "from catchment.vectorised.scan_pool import ScanPool\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become its children, as in a container\n"
        "pool = ScanPool(3)\n"
        "pool.map(abs, [1, 2, 3])\n"
        "pool.close()\n"
        "try:\n"
        "    print('left:', os.waitpid(-1, os.WNOHANG))\n"
        "except ChildProcessError:\n"
        "    print('nothing is left')\n"
    )
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told == "nothing is left\n"
