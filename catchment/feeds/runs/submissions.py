"""The feed views that were submitted to a cloud: a document in its state folder, which a running cloud follows.

The document says what is wanted; whoever submits or drops views checks the whole program first and then replaces the
document in one step. So it does not matter whether the cloud runs meanwhile, or is killed: it finds what is wanted, and
brings its program there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from catchment.errors import FeedError
from catchment.feeds.cloud.batch_cloud import check_for_batches
from catchment.feeds.cloud.event_files import EVENTS_FOLDER
from catchment.feeds.language.program_form import form_of
from catchment.feeds.language.reference import ReferenceData, Row
from catchment.feeds.language.submitted import SubmittedView, check_submission, read_submission
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_graph import generate_views
from catchment.feeds.project import FeedProject, typed_device
from catchment.project.options import did_you_mean
from catchment.storage.files import make_folder, write_durably

SUBMITTED_FILE = "submitted.json"
LOCK_FILE = "submitted.lock"
LOCK_TIMEOUT_S = 30.0
MAX_VIEWS = 500  # submitted views of one cloud
MAX_USERS = 100_000  # users of one submitted view
MAX_PROGRAM_BYTES = 500_000  # of the program as devices are told it, which is one message


@dataclass(frozen=True)
class WantedProgram:
    """The program of a project with what was submitted to it, and the rows of the tables of users."""

    program: FeedProgram
    users: Mapping[str, Sequence[Row]]


class Submissions:
    """What was submitted to the cloud whose state is in a folder."""

    def __init__(self, folder: Path, project: FeedProject, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder = folder
        self.project = project
        self.say = say
        self.written: float | None = None
        self.was_read = False

    @property
    def path(self) -> Path:
        return self.folder / SUBMITTED_FILE

    def _written(self) -> float | None:
        return self.path.stat().st_mtime_ns if self.path.exists() else None

    # ---- for the cloud

    @property
    def has_changed(self) -> bool:
        """Whether there is something to read that was not read yet."""
        return not self.was_read or self._written() != self.written

    def read(self) -> WantedProgram:
        """Return what is wanted; a submitted view that the project no longer allows is left out, and said."""
        self.written = self._written()
        self.was_read = True
        views = self.views()
        try:
            return self._plan(views)
        except FeedError:
            return self._plan(self._possible(views))

    def _possible(self, views: Sequence[SubmittedView]) -> list[SubmittedView]:
        kept: list[SubmittedView] = []
        for view in views:
            try:
                self._plan([*kept, view])
            except FeedError as error:
                self.say(f"submitted view {view.name} is left out: {error}")
            else:
                kept.append(view)
        return kept

    def _plan(self, views: Sequence[SubmittedView]) -> WantedProgram:
        program = self.project.plan(views)
        users = {
            view.users_table: [(typed_device(program, user),) for user in view.users]
            for view in views
            if view.users is not None
        }
        return WantedProgram(program, users)

    # ---- for those who submit

    def views(self) -> list[SubmittedView]:
        """Return the submitted views, in the order in which they came."""
        if not self.path.exists():
            return []
        try:
            found = json.loads(self.path.read_bytes())
            return [_read_view(item) for item in found["views"]]
        except (ValueError, KeyError, TypeError) as error:
            hint = "it is written by catchment feeds submit: remove it, and submit again"
            raise FeedError(f"this cannot be read: {error}", where=str(self.path), hint=hint) from error

    def submit(self, text: str, file: str, users: Sequence[str] = ()) -> Mapping[str, Any]:
        """Add the feed views of a text, for everyone or for these users; return what is submitted now."""
        added = read_submission(text, file, users)
        with self._changing():
            before = self.views()
            after = list(before)
            for view in added:
                _add(after, view)
            self._check(before, after)
            self._write(after)
        return {"submitted": [view.name for view in added], "users": list(users), "views": _described(after)}

    def drop(self, names: Sequence[str], users: Sequence[str] = ()) -> Mapping[str, Any]:
        """End submitted views, or end them for these users alone."""
        with self._changing():
            before = self.views()
            after = list(before)
            for name in names:
                _remove(after, name.lower(), users)
            self._check(before, after)
            self._write(after)
        return {"dropped": list(names), "users": list(users), "views": _described(after)}

    def describe(self) -> Mapping[str, Any]:
        """Return what is submitted, as plain JSON."""
        return {"views": _described(self.views())}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one change be made at a time."""
        make_folder(self.folder)
        try:
            with FileLock(self.folder / LOCK_FILE, timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout as error:
            raise FeedError(f"another change has been under way for {LOCK_TIMEOUT_S:.0f} s") from error

    def _check(self, before: Sequence[SubmittedView], after: Sequence[SubmittedView]) -> None:
        """Refuse a change that could not be computed, kept or told, or that would change another view."""
        if len(after) > MAX_VIEWS:
            raise FeedError(f"{len(after)} views would be submitted; at most {MAX_VIEWS} are")
        wanted = self._plan(after)
        check_submission(self.project.plan(before), wanted.program)
        if (self.folder / EVENTS_FOLDER).exists():
            check_for_batches(wanted.program)
        size = len(form_of(wanted.program).text)
        if size > MAX_PROGRAM_BYTES:
            raise FeedError(f"devices would be told a program of {size:,} bytes; at most {MAX_PROGRAM_BYTES:,} are")
        graph = generate_views(wanted.program, self._reference(wanted), reject=lambda error, rows: None)
        self.project.retention.check(graph, {})

    def _reference(self, wanted: WantedProgram) -> ReferenceData:
        tables = self.project.read_reference().tables if self.project.has_tables else {}
        empty: dict[str, Sequence[Row]] = dict.fromkeys(wanted.program.tables, ())
        return ReferenceData({**empty, **tables, **wanted.users}, ())

    def _write(self, views: Sequence[SubmittedView]) -> None:
        write_durably(self.path, json.dumps({"views": _described(views)}, indent=1).encode())


def _described(views: Sequence[SubmittedView]) -> list[dict[str, Any]]:
    return [
        {"name": view.name, "sql": view.sql, "users": None if view.users is None else list(view.users)}
        for view in views
    ]


def _read_view(item: Any) -> SubmittedView:
    name, sql, users = item["name"], item["sql"], item["users"]
    if not isinstance(name, str) or not isinstance(sql, str):
        raise TypeError("a view has no name or no text")
    return SubmittedView(name, sql, None if users is None else tuple(str(user) for user in users))


def _add(views: list[SubmittedView], added: SubmittedView) -> None:
    """Add a view; one that is there already gets more users."""
    at = next((at for at, view in enumerate(views) if view.name == added.name), None)
    if at is None:
        views.append(added)
        return
    known = views[at]
    if known.sql != added.sql:
        raise FeedError(f"a view {added.name!r} was submitted, and is another one", hint=f"drop {added.name!r} first")
    if known.users is None or added.users is None:
        raise FeedError(f"view {added.name!r} is there already", hint="--user adds users to a view for some users")
    users = tuple(dict.fromkeys((*known.users, *added.users)))
    if len(users) > MAX_USERS:
        raise FeedError(f"view {added.name!r} would have {len(users)} users; at most {MAX_USERS}")
    views[at] = SubmittedView(known.name, known.sql, users)


def _remove(views: list[SubmittedView], name: str, users: Sequence[str]) -> None:
    at = next((at for at, view in enumerate(views) if view.name == name), None)
    if at is None:
        hint = did_you_mean(name, [view.name for view in views]) or "views of the project are in its files"
        raise FeedError(f"no view {name!r} was submitted", hint=hint)
    known = views[at]
    if not users:
        del views[at]
        return
    missing = [user for user in users if user not in (known.users or ())]
    if missing:
        raise FeedError(f"view {name!r} was not submitted for user {missing[0]!r}")
    left = tuple(user for user in known.users or () if user not in users)
    views[at : at + 1] = [SubmittedView(name, known.sql, left)] if left else []
