"""The doctor looks at the state folder of a project without starting anything, and says what is wrong with it.

Every check reads files only. What a check finds is a finding: what was looked at, what is wrong with it if anything is,
and the remedy. Some remedies are safe to carry out, because the next start would do the same or nothing depends on
them; with `fix` these are carried out, one role at a time, while no process uses its folder.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from catchment.center.results.delta_log import (
    LOG_FOLDER,
    find_torn_checkpoints,
    find_torn_commits,
    find_unreadable_commits,
    remove_torn_commits,
)
from catchment.center.results.newest_rows import open_table
from catchment.deploy.reports.role_files import VIEWS_FILE
from catchment.deploy.store import CENTER_FILE, FILE
from catchment.errors import CatchmentError, StorageError
from catchment.progress.consumer import CAUSE
from catchment.project.config import Project
from catchment.storage.files import TEMPORARY, read_record
from catchment.storage.host import HostState
from catchment.storage.journal import Entry, JournalFiles, read_document
from catchment.storage.lock import lock_folder
from catchment.wire.receiving.inbox import STATE_FILE as INBOX_FILE
from catchment.wire.receiving.set_aside import FOLDER as SET_ASIDE_FOLDER
from catchment.wire.receiving.set_aside import SetAside
from catchment.wire.sending.outbox import STATE_FILE as OUTBOX_FILE

FINE, WRONG, FIXED = "fine", "wrong", "fixed"
TABLE_KINDS = ("results", "windows", "late", "sides")
LEAST_FREE_SHARE = 0.05  # of a disk; below it a burst may fill it before anyone looks
RESTORE = "restore the whole state folder from one copy"


@dataclass(frozen=True)
class Finding:
    """What one check found: `problem` is empty if all is fine. `fix` is there if the remedy is safe to carry out."""

    what: str
    path: Path
    problem: str = ""
    remedy: str = ""
    fix: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    state: str = ""

    def __post_init__(self) -> None:
        if not self.state:
            object.__setattr__(self, "state", WRONG if self.problem else FINE)

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        safe = self.fix is not None
        return {
            "what": self.what,
            "path": str(self.path),
            "state": self.state,
            "problem": self.problem,
            "remedy": self.remedy,
            "safe_to_fix": safe,
        }


class _Holder:
    """Own the lock of a folder while something in it is changed."""


def examine(project: Project, fix: bool = False) -> list[Finding]:
    """Return what every check of a project's state folder found; carry out the safe remedies if that is wanted."""
    state = project.state_folder
    if not state.is_dir():
        raise StorageError("nothing has run here yet", where=str(state), hint=f"catchment run -p {project.folder}")
    found = [*_check_folder(state), *_check_records(state), *_check_remnants(state)]
    for role in _roles(state):
        found += [*_check_role(role), *_check_remnants(role, deep=True)]
    first_number = _first_repeatable(state / "center" / "journal")
    for table in _tables(state):
        found += _check_table(table, first_number)
    found += _check_blocked(state / "center" / "inbox")
    return [_carry_out(finding, state) for finding in found] if fix else found


def _carry_out(finding: Finding, state: Path) -> Finding:
    """Carry out a safe remedy, unless a process uses the role that the file belongs to."""
    if finding.fix is None or not finding.problem:
        return finding
    holder = _Holder()
    try:
        for folder in _owners(finding.path, state):
            lock_folder(folder, holder)
        finding.fix()
    except (CatchmentError, OSError) as error:
        return replace(finding, problem=f"{finding.problem}; not mended: {error}")
    return replace(finding, state=FIXED)


def _owners(path: Path, state: Path) -> list[Path]:
    """Return the locked folders of the role that a file belongs to; a result table belongs to the center."""
    inside = [role for role in _roles(state) if role in (path, *path.parents)] or [state / "center"]
    return [lock.parent for role in inside for lock in sorted(role.rglob("in-use"))]


# --- the folder ---------------------------------------------------------------------------------------------------


def _check_folder(state: Path) -> Iterator[Finding]:
    mode = stat.S_IMODE(state.stat().st_mode)
    problem = f"other users can look into it (mode {mode:04o})" if mode & (stat.S_IRWXG | stat.S_IRWXO) else ""
    yield Finding("folder mode", state, problem, f"chmod 700 {state}" if problem else "", lambda: state.chmod(0o700))
    disk = shutil.disk_usage(state)
    share = disk.free / disk.total
    full = f"only {disk.free / 1e9:.1f} GB are free ({share:.0%})" if share < LEAST_FREE_SHARE else ""
    yield Finding("free disk", state, full, "make room, or move the state folder to a larger disk" if full else "")


def _check_records(state: Path) -> Iterator[Finding]:
    for path in (state / FILE, state / CENTER_FILE, *sorted(state.rglob(VIEWS_FILE))):
        if path.exists():
            yield _try("record", path, partial(read_record, path))


def _check_remnants(folder: Path, deep: bool = False) -> Iterator[Finding]:
    for path in sorted([*folder.glob(f"*{TEMPORARY}"), *(folder.glob(f"*/*{TEMPORARY}") if deep else ())]):
        if path.is_file():
            yield Finding("temporary file", path, "left by a writer that was killed", "remove it", path.unlink)


# --- roles --------------------------------------------------------------------------------------------------------


def _roles(state: Path) -> list[Path]:
    found = [*state.glob("sites/*"), *state.glob("relays/*"), state / "center"]
    return sorted(path for path in found if path.is_dir())


def _check_role(role: Path) -> Iterator[Finding]:
    try:
        known = read_journal(role / "journal")
    except (CatchmentError, OSError) as error:
        yield Finding("journal", role / "journal", _text(error), RESTORE)
        return
    for path in known.damaged:
        yield Finding("snapshot", path, "damaged", "none needed: the next start uses the one before it, which is whole")
    yield Finding("journal", role / "journal")
    yield from _check_outbox(role, known)
    yield from _check_inbox(role, known)
    yield from _check_checkpoints(role, known)


@dataclass(frozen=True)
class JournalSummary:
    """What a journal says: how much was enacted at its snapshot, and the newest batch of each cause."""

    enacted: int
    batches: dict[str, int]
    entries: int
    damaged: tuple[Path, ...]


def read_journal(folder: Path) -> JournalSummary:
    """Return what a journal says, without changing it; its process may be running."""
    files = JournalFiles.find(folder)
    state = files.snapshot()
    batches: dict[str, int] = dict(state.batches) if isinstance(state, HostState) else {}
    entries = 0
    for body, path in files.bodies():
        entry = read_document(body, path)
        assert isinstance(entry, Entry)
        entries += 1
        if entry.batch is not None:
            batches[entry.cause] = entry.batch
    enacted = state.enacted if isinstance(state, HostState) else 0
    return JournalSummary(enacted, batches, entries, files.damaged)


def _check_outbox(role: Path, known: JournalSummary) -> Iterator[Finding]:
    path = role / "outbox" / OUTBOX_FILE
    if not path.exists():
        return
    try:
        record = read_record(path) or {}
        acked = int(record["acked"]["lowest_missing"])
    except (CatchmentError, KeyError) as error:
        yield Finding("outbox", path, _text(error), RESTORE)
        return
    waiting = [int(p.stem) for p in path.parent.glob("*") if p.stem.isdigit()]
    next_number = int(record.get("first", 0)) + max([acked, *(number + 1 for number in waiting)])
    problem = ""
    if next_number < known.enacted:
        problem = (
            f"its next segment is {next_number}, but the journal has made {known.enacted}: it was lost or is older"
        )
    elif next_number > known.enacted and not known.entries:
        problem = f"its next segment is {next_number}, but the journal has made {known.enacted}: the journal is older"
    yield Finding("outbox", path, problem, RESTORE if problem else "")


def _check_inbox(role: Path, known: JournalSummary) -> Iterator[Finding]:
    path = role / "inbox" / INBOX_FILE
    if not path.exists():
        return
    try:
        discarded = int((read_record(path) or {})["discarded"])
    except (CatchmentError, KeyError) as error:
        yield Finding("inbox", path, _text(error), RESTORE)
        return
    consumed = known.batches.get(CAUSE, 0)
    older = discarded > consumed
    problem = f"{discarded} segments were discarded, but the journal has {consumed}: it is older" if older else ""
    yield Finding("inbox", path, problem, RESTORE if problem else "")


def _check_checkpoints(role: Path, known: JournalSummary) -> Iterator[Finding]:
    """Compare the batches that Spark knows with those that were committed."""
    for checkpoint in sorted(role.glob("checkpoints/*")):
        committed = known.batches.get(checkpoint.name)
        planned = [path for path in checkpoint.glob("offsets/*") if path.name.isdigit()]
        newest = max((int(path.name) for path in planned), default=-1)
        ended = max((int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()), default=-1)
        problem = ""
        if committed is not None and newest < committed:
            problem = f"Spark knows of batch {newest}, but batch {committed} was committed: it was lost or is older"
        elif ended > (-1 if committed is None else committed):
            problem = f"Spark has ended batch {ended}, which is not in the journal: the journal was lost or is older"
        elif empty := [path.name for path in planned if path.stat().st_size == 0]:
            problem = f"the offsets of batch {empty[0]} are empty"
        yield Finding("Spark checkpoint", checkpoint, problem, RESTORE if problem else "")


# --- tables -------------------------------------------------------------------------------------------------------


def _tables(state: Path) -> list[Path]:
    return sorted(path.parent for kind in TABLE_KINDS for path in state.glob(f"{kind}/*/{LOG_FOLDER}"))


def _first_repeatable(journal: Path) -> int | None:
    """Return from which enactment on the journal of the center can repeat them; None if it cannot be read."""
    try:
        return read_journal(journal).enacted
    except (CatchmentError, OSError):
        return None


def _check_table(table: Path, first_number: int | None) -> Iterator[Finding]:
    torn = [*find_torn_commits(table), *find_torn_checkpoints(table)]
    for found in torn:
        if first_number is not None and found.is_repeatable(first_number):
            remedy = "remove it: the center writes it again from its journal"
            fix = partial(_remove_torn, table, first_number)
            yield Finding("result table", found.path, found.problem, remedy, fix)
        else:
            yield Finding("result table", found.path, found.problem, "restore the file from a copy of the table")
    newest = {found.path for found in torn}
    damaged = [found for found in find_unreadable_commits(table) if found.path not in newest]
    for found in damaged:
        yield Finding("result table", found.path, found.problem, "restore the file from a copy of the table")
    if not torn and not damaged:
        yield _try("result table", table, lambda: _check_data_files(table), "restore the file from a copy of the table")


def _remove_torn(table: Path, first_number: int) -> None:
    remove_torn_commits(table, first_number)


def _check_data_files(table: Path) -> None:
    opened = open_table(table)
    for uri in opened.file_uris() if opened is not None else ():
        path = Path(uri.removeprefix("file://"))
        if not path.is_file() or path.stat().st_size == 0:
            raise StorageError(f"the data file {path.name} is missing or empty")


def _check_blocked(inbox: Path) -> Iterator[Finding]:
    aside = SetAside(inbox) if (inbox / SET_ASIDE_FOLDER).is_dir() else None
    for site in aside.origins() if aside is not None else ():
        assert aside is not None
        told = aside.describe(site)
        yield Finding(
            "blocked site",
            Path(told["folder"]),
            f"segments of {site} could not be merged, {told['segments']} are set aside",
            str(told.get("way_out", "see catchment show status")),
        )


def _try(what: str, path: Path, check: Callable[[], object], remedy: str = RESTORE) -> Finding:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - whatever a damaged file leads to is the finding
        return Finding(what, path, _text(error), remedy)
    return Finding(what, path)


def _text(error: BaseException) -> str:
    return error.message if isinstance(error, CatchmentError) else f"{type(error).__name__}: {error}"
