"""Keeping what Java, gRPC and other libraries print off the terminal: it goes to a log file.

Such libraries write to the file descriptors of the process, past Python. While a run lasts, those descriptors lead to
the log, and Python's own `sys.stdout` and `sys.stderr` keep the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

LOG_MAX_BYTES = 10_000_000  # a longer log of earlier runs is kept once, under the name NAME.old
STDOUT = 1
STDERR = 2


@contextmanager
def divert_library_output(log: Path) -> Iterator[None]:
    """Send what libraries print to a log file, for as long as the context lasts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    _set_aside_long_log(log)
    with ExitStack() as stack:
        kept = log.open("ab", buffering=0)
        stack.callback(kept.close)
        for descriptor, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            _divert(stack, descriptor, name, kept.fileno())
        yield


def _set_aside_long_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
        log.replace(log.with_name(log.name + ".old"))


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
