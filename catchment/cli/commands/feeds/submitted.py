"""`catchment feeds submit`, `drop`, `submitted` and `publish`: what is given to a cloud while it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchment.cli.asking import CenterOption, ask
from catchment.cli.commands.feeds.options import FeedProject, StateFolder, state_folder
from catchment.cli.output import JsonFlag, emit
from catchment.errors import FeedError

if TYPE_CHECKING:
    from catchment.feeds.runs.submissions import Submissions

_SUBMIT_EPILOG = """Examples:

catchment feeds submit slow.sql -p my-feeds

catchment feeds submit slow.sql -p my-feeds --user 7 --user 9

catchment feeds submit slow.sql --center prod

The cloud begins the views within seconds, or when it starts. Views that are there go on as they are."""

_DROP_EPILOG = """Examples:

catchment feeds drop slow -p my-feeds

catchment feeds drop slow -p my-feeds --user 7

Views that read each other are dropped in one command."""

_PUBLISH_EPILOG = """Examples:

cat coupons.jsonl | catchment feeds publish coupon -p my-feeds

A line is a record as a JSON object. All are checked first; then they are safe, and the cloud takes them within a
second, or when it starts."""

ForUsers = Annotated[
    list[str] | None,
    typer.Option("--user", help="Only for this user; may be given several times. By default for everyone."),
]


def register(feeds: typer.Typer) -> None:
    """Add the commands."""
    feeds.command("submit", epilog=_SUBMIT_EPILOG)(submit)
    feeds.command("drop", epilog=_DROP_EPILOG)(drop)
    feeds.command("submitted", epilog="Example: catchment feeds submitted -p my-feeds")(submitted)
    feeds.command("publish", epilog=_PUBLISH_EPILOG)(publish)


def submit(
    file: Annotated[Path, typer.Argument(help="A file of CREATE FEED VIEW statements.", show_default=False)],
    project: FeedProject = None,
    user: ForUsers = None,
    center: CenterOption = None,
    state: StateFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """Add feed views to a cloud, running or not; devices keep what they have."""
    text = _read(file)
    own = _own_cloud(project, center, state)
    if own is not None:
        answer = own.submit(text, str(file), user or ())
    else:
        answer = ask("feeds submit", project or Path(), center, text=text, file=str(file), users=user)
    emit(answer, as_json, lambda a: f"submitted: {', '.join(a['submitted'])}{_for_users(a)}")


def drop(
    views: Annotated[list[str], typer.Argument(help="Views that were submitted.", show_default=False)],
    project: FeedProject = None,
    user: ForUsers = None,
    center: CenterOption = None,
    state: StateFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """End feed views that were submitted, for everyone or for some users."""
    own = _own_cloud(project, center, state)
    if own is not None:
        answer = own.drop(views, user or ())
    else:
        answer = ask("feeds drop", project or Path(), center, views=views, users=user)
    emit(answer, as_json, lambda a: f"dropped: {', '.join(a['dropped'])}{_for_users(a)}")


def submitted(
    project: FeedProject = None, center: CenterOption = None, state: StateFolder = None, as_json: JsonFlag = False
) -> None:
    """List the feed views that were submitted, and whom each is for."""
    own = _own_cloud(project, center, state)
    answer = ask("feeds submitted", project or Path(), center) if own is None else own.describe()
    emit(answer, as_json, _render)


def publish(
    stream: Annotated[str, typer.Argument(help="A stream that is born at the cloud.", show_default=False)],
    project: FeedProject = None,
    state: StateFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish records of a stream that is born at the cloud, from JSON lines on the standard input."""
    from catchment.feeds.project import PROGRAM_FILE, open_project
    from catchment.feeds.runs.cloud_role import cloud_state
    from catchment.feeds.runs.published import publish_records

    folder = project or Path()
    own = state is not None or (folder / PROGRAM_FILE).is_file()
    where = state_folder(folder, state) if own else cloud_state(folder)
    rows = [_read_line(line, place) for place, line in enumerate(sys.stdin, start=1) if line.strip()]
    count = publish_records(where, open_project(folder).program, stream, rows)
    emit({"published": count, "stream": stream}, as_json, lambda a: f"published: {a['published']} records of {stream}")


def _read_line(line: str, place: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise FeedError(f"this is no JSON: {error}", where=f"line {place}") from error
    if not isinstance(row, dict):
        raise FeedError(f"found {line.strip()[:80]!r}; expected a JSON object", where=f"line {place}")
    return row


def _own_cloud(project: Path | None, center: str | None, state: Path | None) -> Submissions | None:
    """Return what was submitted to a cloud of feeds alone; None where the center of a project runs the cloud."""
    from catchment.feeds.project import PROGRAM_FILE, open_project
    from catchment.feeds.runs.submissions import Submissions

    folder = project or Path()
    if center is not None or (state is None and not (folder / PROGRAM_FILE).is_file()):
        return None
    return Submissions(state_folder(folder, state), open_project(folder))


def _read(path: Path) -> str:
    if not path.is_file():
        raise FeedError(f"there is no file {path}", hint="give a file with CREATE FEED VIEW statements")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FeedError("this file is not UTF-8 text", where=str(path)) from error


def _for_users(answer: Mapping[str, Any]) -> str:
    return f", for {', '.join(answer['users'])}" if answer["users"] else ""


def _render(answer: Mapping[str, Any]) -> str:
    if not answer["views"]:
        return "no feed view was submitted"
    lines = []
    for view in answer["views"]:
        users = view["users"]
        lines.append(f"{view['name']}: {'everyone' if users is None else ', '.join(users)}")
        lines.append(f"  {view['sql']}")
    return "\n".join(lines)
