"""Small files in the folder of a role: its status, and the views and streams that its state belongs to."""

from __future__ import annotations

import hashlib
import json
import logging
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.errors import ConfigError
from catchment.storage.files import make_folder, read_record, write_record
from catchment.storage.free_space import write_last_words
from catchment.timeline import SystemClock

if TYPE_CHECKING:  # a light site, which has no SQL, writes its status too
    from catchment.query.plan import QueryPlan
    from catchment.query.sql.statements import Stream

STATUS_FILE = "status.json"  # for the live table, for `show`, and for people who look into the folder
REPORTED_AT = "reported_at_us"  # when a status was written
STOPPED = "stopped"  # whether the role ended as it should after it
VIEWS_FILE = "views.json"  # fingerprints of the views that the state in the folder belongs to
STREAMS_FILE = "streams.json"  # the columns of the streams that were read, by name

_log = logging.getLogger(__name__)


def open_state_folder(folder: Path) -> None:
    """Make the state folder, which only its owner may enter; warn if it is there and others may."""
    make_folder(folder)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("other users can look into %s, which has mode %04o: chmod 700 %s", folder, mode, folder)


def write_status(folder: Path, status: Mapping[str, Any], stopped: bool = False) -> None:
    """Replace the status of a role, with the time and whether it ends now.

    It need not survive a power cut, and a full disk is no error: others must be closed.
    """
    told = {**status, REPORTED_AT: SystemClock().now_us(), STOPPED: stopped}
    write_last_words(folder / STATUS_FILE, json.dumps(told))


def read_status(folder: Path) -> Mapping[str, Any] | None:
    """Return what a role last wrote as its status; None if it has written none."""
    try:
        text = (folder / STATUS_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    status: Mapping[str, Any] = json.loads(text)
    return status


def refuse_redefined_views(folder: Path, plans: Iterable[QueryPlan]) -> None:
    """Refuse a view that was redefined since the state in the folder was made; remember new views.

    The old partials of a redefined view would mean something else. Its sites may change: the center has a roster.
    """
    known = read_record(folder / VIEWS_FILE) or {}
    plans = tuple(plans)
    now = {plan.name: _fingerprint(plan.without_sites()) for plan in plans}
    with_sites = {plan.name: _fingerprint(plan) for plan in plans}  # what was written before sites could change
    changed = sorted(n for n in now if known.get(n, now[n]) not in (now[n], with_sites[n]))
    if changed:
        raise ConfigError(
            f"the definition of {', '.join(changed)} has changed since the state in {folder} was made",
            hint="replace it while the project keeps its state: catchment submit FILE, with CREATE OR REPLACE "
            "MATERIALIZED VIEW; or give the changed view another name",
        )
    if any(known.get(name) != definition for name, definition in now.items()):
        make_folder(folder)
        write_record(folder / VIEWS_FILE, {**known, **now})


def _fingerprint(plan: QueryPlan) -> str:
    return hashlib.sha256(plan.to_text().encode()).hexdigest()


def refuse_changed_streams(folder: Path, streams: Iterable[Stream]) -> None:
    """Refuse a stream whose history has a column that is gone now, or of another type; remember what is new.

    Columns may be added: records from before have null there.
    """
    from catchment.query.types import sql_type

    known: dict[str, dict[str, str]] = read_record(folder / STREAMS_FILE) or {}
    now = {stream.name: {c.name: sql_type(c.type) for c in stream.columns} for stream in streams}
    for name, columns in now.items():
        for column, before in known.get(name, {}).items():
            if columns.get(column) != before:
                found = f"is {columns[column]} now" if column in columns else "is gone"
                raise ConfigError(
                    f"column {column!r} of stream {name!r} was {before} and {found}; its history in {folder} has it",
                    hint="columns may be added; give a stream whose columns change otherwise another name",
                )
    if any(known.get(name) != columns for name, columns in now.items()):
        make_folder(folder)
        write_record(folder / STREAMS_FILE, {**known, **now})
