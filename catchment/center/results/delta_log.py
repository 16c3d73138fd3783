"""The log of a Delta table after a power cut: which of its newest commits are torn, and making commits durable.

The writer of Delta tables makes no fsync. A power cut may leave a newest commit that is empty, cut short, or names data
files that are missing or empty. As long as the journal has not forgotten the enactment of such a commit, it writes it
again; so the commit is removed at the start. The journal forgets only after `sync_commits` has returned: a commit that
cannot be read is therefore newer than what it forgot, and one that lacks a data file says which enactment it is of.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as parquet
from pyarrow import ArrowException

from catchment.errors import CenterError
from catchment.storage.files import remove_file, sync_files, sync_folder

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"


@dataclass(frozen=True)
class TornFile:
    """A file of a table that is not whole, what is wrong with it, and the number of its enactment if it says that."""

    path: Path
    problem: str
    number: int | None = None

    def is_repeatable(self, first_number: int) -> bool:
        """Return whether a journal that can repeat the enactments from a number on writes it again."""
        return self.number is None or self.number >= first_number


def find_torn_commits(table: Path) -> list[TornFile]:
    """Return the newest commits of a table that are torn, newest first; none behind which a whole one stands."""
    torn = []
    for _, path in sorted(_commits(table), reverse=True):
        problem = _problem_of(table, path)
        if problem is None:
            break
        torn.append(TornFile(path, problem, _number_of(path)))
    return torn


def find_unreadable_commits(table: Path) -> list[TornFile]:
    """Return the commits of a table that are empty or cut short, wherever they stand."""
    found = []
    for _, path in sorted(_commits(table)):
        try:
            _data_files(table, path)
        except ValueError:
            found.append(TornFile(path, _describe_unreadable(path)))
    return found


def find_torn_checkpoints(table: Path) -> list[TornFile]:
    """Return the checkpoints of a table that cannot be read; the commits that they stand for are still there."""
    found = []
    for path in sorted((table / LOG_FOLDER).glob("*.checkpoint*.parquet")):
        try:
            parquet.read_metadata(path)
        except (ArrowException, OSError) as error:
            found.append(TornFile(path, f"a checkpoint that cannot be read: {error}"))
    return found


def remove_torn_commits(table: Path, first_number: int) -> list[TornFile]:
    """Remove the torn newest commits and checkpoints of a table; return them.

    The journal writes them again: it can repeat the enactments from a number on. A commit of an earlier one is refused.
    """
    for torn in find_torn_commits(table):
        if not torn.is_repeatable(first_number):
            raise CenterError(
                f"{torn.problem}, and the journal has forgotten it",
                where=str(torn.path),
                hint="restore the file from a copy of the table",
            )
    checkpoints = find_torn_checkpoints(table)
    if checkpoints and not _has_commits_without(table, {torn.path for torn in checkpoints}):
        raise CenterError(
            f"{checkpoints[-1].problem}, and the commits that it stands for were cleaned up",
            where=str(checkpoints[-1].path),
            hint="restore the file from a copy of the table",
        )
    for torn in checkpoints:
        remove_file(table / LOG_FOLDER / LAST_CHECKPOINT)
        remove_file(torn.path)
    commits = find_torn_commits(table)
    for torn in commits:
        remove_file(torn.path)
    if checkpoints or commits:
        sync_folder(table / LOG_FOLDER)
    return [*commits, *checkpoints]


def sync_commits(table: Path, since_version: int) -> int:
    """Make the commits of a table after a version durable, with their data; return the newest version."""
    newest = since_version
    paths = [p for p in (table / LOG_FOLDER).glob("*") if p.is_file() and not p.name.endswith(".json")]
    for version, path in sorted(_commits(table)):
        if version > since_version:
            paths += [path, *_data_files(table, path)]
            newest = max(newest, version)
    if newest > since_version:
        sync_files(paths)
        sync_folder(table)
    return newest


def _commits(table: Path) -> Iterator[tuple[int, Path]]:
    for path in (table / LOG_FOLDER).glob("*.json"):
        if path.stem.isdigit():
            yield int(path.stem), path


def _problem_of(table: Path, commit: Path) -> str | None:
    """Return what is wrong with a commit; None if it is whole."""
    try:
        missing = [f for f in _data_files(table, commit) if not f.is_file() or f.stat().st_size == 0]
    except ValueError:
        return _describe_unreadable(commit)
    return f"a commit whose data file {missing[0].name} is missing or empty" if missing else None


def _has_commits_without(table: Path, torn: Collection[Path]) -> bool:
    """Return whether a table can be read without some checkpoints: from another one, or from its first commit on."""
    whole = [p for p in (table / LOG_FOLDER).glob("*.checkpoint*.parquet") if p not in torn]
    base = max((int(path.name.split(".")[0]) for path in whole), default=-1)
    versions = {version for version, _ in _commits(table)}
    return all(version in versions for version in range(base + 1, max(versions, default=base) + 1))


def _describe_unreadable(commit: Path) -> str:
    return "a commit that is cut short" if commit.stat().st_size else "an empty commit"


def _number_of(commit: Path) -> int | None:
    """Return the number of the enactment that a commit is of; None if it cannot be read."""
    try:
        actions = _actions(commit)
    except ValueError:
        return None
    return next((action["txn"]["version"] for action in actions if "txn" in action), None)


def _data_files(table: Path, commit: Path) -> list[Path]:
    """Return the data files that a commit adds."""
    return [table / unquote(action["add"]["path"]) for action in _actions(commit) if "add" in action]


def _actions(commit: Path) -> list[dict[str, Any]]:
    text = commit.read_text(encoding="utf-8", errors="replace")
    if not text.strip() or "\0" in text:
        raise ValueError("no actions")
    return [json.loads(line) for line in text.splitlines() if line.strip()]
