"""Keeping what Java, gRPC and other libraries print off the terminal: it goes to a log file.

Such libraries write to the file descriptors of the process, past Python. While a run lasts, those descriptors lead to
the log, and Python's own `sys.stdout` and `sys.stderr` keep the terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from catchment.storage.files import make_folder

LOG_MAX_BYTES = 10_000_000  # a longer log is kept once, under the name NAME.old
CHECK_EVERY_S = 60.0
STDOUT = 1
STDERR = 2


@contextmanager
def divert_library_output(log: Path) -> Iterator[None]:
    """Send what libraries print to a log file, for as long as the context lasts."""
    make_folder(log.parent)
    _set_aside_long_log(log)
    with ExitStack() as stack:
        kept = log.open("ab", buffering=0)
        stack.callback(kept.close)
        for descriptor, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            _divert(stack, descriptor, name, kept.fileno())
        stack.enter_context(_watch_length(log))
        yield


def _set_aside_long_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
        log.replace(log.with_name(log.name + ".old"))


def shorten_log(log: Path) -> None:
    """Empty a log that has become too long, and keep what it held; others may be writing to it.

    It is emptied in place: whoever writes appends. What is written while it is copied may be lost.
    """
    if log.stat().st_size > LOG_MAX_BYTES:
        shutil.copyfile(log, log.with_name(log.name + ".old"))
        os.truncate(log, 0)


@contextmanager
def _watch_length(log: Path) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(CHECK_EVERY_S):
            with suppress(OSError):  # a full disk, or a log that somebody removed
                shorten_log(log)

    threading.Thread(target=watch, name="log-length", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _divert(stack: ExitStack, descriptor: int, name: str, target: int) -> None:
    """Lead a file descriptor to a target, and Python's stream of that name to where the descriptor led before."""
    stream: TextIO = getattr(sys, name)
    stream.flush()
    before = os.dup(descriptor)
    stack.callback(os.close, before)
    stack.callback(os.dup2, before, descriptor)
    os.dup2(target, descriptor)
    if _leads_to(stream, descriptor):  # not so under a test, or in a notebook, whose streams are their own
        python = os.fdopen(os.dup(before), "w", buffering=1, encoding=stream.encoding, errors=stream.errors)
        stack.callback(python.close)
        stack.callback(setattr, sys, name, stream)
        setattr(sys, name, python)


def _leads_to(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False
