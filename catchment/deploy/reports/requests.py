"""Requests of people to a running role, in files of its folder; the role follows them at a tick, or when it starts.

Commands add names to such a file, and the role removes those that it has followed. Each change of a file is made under
a lock, and only the named requests are removed: whatever is asked meanwhile, by whomever, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

from catchment.storage.files import read_record, remove_file, write_record

RESUMPTIONS_FILE = "resume.json"  # what was asked to be resumed: fragments at a site, views at the center
RETRIES_FILE = "retries.json"  # fragments at a site whose set aside records were asked to be tried again
REPAIRS_FILE = "repairs.json"  # queries whose repair was requested at a site
LOCK_FILE = "requests.lock"  # held while one of these files is changed

_FIELDS = {REPAIRS_FILE: "queries"}  # the field of a record that has the names, where it is not "names"


def request_repairs(site_folder: Path, queries: Iterable[str]) -> None:
    """Ask a running site to repair now what it has shed of these queries."""
    _change(site_folder / REPAIRS_FILE, lambda known: known.union(queries))


def requested_repairs(site_folder: Path) -> frozenset[str]:
    """Return the queries whose repair was requested."""
    return _read(site_folder / REPAIRS_FILE)


def forget_repairs(site_folder: Path, queries: Iterable[str]) -> None:
    """Remove these requests: the site owes these queries nothing any more."""
    _change(site_folder / REPAIRS_FILE, lambda known: known.difference(queries))


def request_resumption(folder: Path, names: Iterable[str]) -> None:
    """Ask a role to resume these fragments or views at its next tick."""
    _change(folder / RESUMPTIONS_FILE, lambda known: known.union(names))


def requested_resumptions(folder: Path) -> frozenset[str]:
    """Return what a role was asked to resume."""
    return _read(folder / RESUMPTIONS_FILE)


def forget_resumptions(folder: Path, names: Iterable[str]) -> None:
    """Remove these requests: they were followed, or there was nothing to resume."""
    _change(folder / RESUMPTIONS_FILE, lambda known: known.difference(names))


def request_retries(site_folder: Path, fragments: Iterable[str]) -> None:
    """Ask a site to try again, at its next tick, the records that these fragments have set aside."""
    _change(site_folder / RETRIES_FILE, lambda known: known.union(fragments))


def requested_retries(site_folder: Path) -> frozenset[str]:
    """Return the fragments whose records were asked to be tried again."""
    return _read(site_folder / RETRIES_FILE)


def forget_retries(site_folder: Path, fragments: Iterable[str]) -> None:
    """Remove these requests: they were followed, or nothing of these fragments is here."""
    _change(site_folder / RETRIES_FILE, lambda known: known.difference(fragments))


def _read(path: Path) -> frozenset[str]:
    known = read_record(path) or {}
    return frozenset(known.get(_field(path), ()))


def _change(path: Path, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
    with FileLock(path.with_name(LOCK_FILE)):
        wanted = change(_read(path))
        if wanted:
            write_record(path, {_field(path): sorted(wanted)})
        else:
            remove_file(path)


def _field(path: Path) -> str:
    return _FIELDS.get(path.name, "names")
