"""The exit codes of the command line: each has one meaning for all commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command ends with; `docs/reference/exit-codes.md` is made of the meanings."""

    DONE = 0, "done; for a run also after SIGTERM, which stops it without loss"
    WRONG = 1, "`catchment check` or `catchment doctor` found something wrong; elsewhere a bug, with a traceback"
    USER_ERROR = 2, "a mistake in the command or the project, or a missing package: what, where, and what to do is said"
    DISK_FULL = 4, "the disk is full: make room and start again; everything that was acknowledged is on disk"
    MACHINE_FAILED = (
        5,
        "a call of the operating system failed (a disk with errors, too many open files): which, and where, is said; "
        "everything that was acknowledged is on disk",
    )
    INTERRUPTED = 130, "Ctrl-C; the first one stops a run without loss, a second one ends it at once"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Make a code that knows its meaning."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made
