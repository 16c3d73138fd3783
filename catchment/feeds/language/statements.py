"""Statements of a feed program, read from its text: device streams, reference tables, feed views.

    CREATE STREAM name (column TYPE, ...) WITH (device = 'column' [, rate = 0.2]);
    CREATE STREAM name (column TYPE, ...) WITH (born = 'cloud' [, key = 'column', rate = 0.2]);
    CREATE TABLE name (column TYPE, ...);
    CREATE FEED VIEW name [WITH (lifetime = '30 seconds', notify_every = '1 minute')] AS SELECT ...;
    CREATE FEED VIEW name WITH (window = '1 hour', ...) AS SELECT a.user, count(*) AS n ...;

`lifetimes.py` says what a lifetime may be.
The text is read by the same reader and in the same dialect as queries are. Every error says file, line and column, what
was found there and what is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from catchment.errors import FeedError, QueryError
from catchment.feeds.language.lifetimes import Lifetimes, lifetimes
from catchment.project import option_kinds as kinds
from catchment.project.options import Option, read_options
from catchment.query.sql.feed_statements import EXACT_ROWS, FeedView
from catchment.query.sql.parse import read_feed_view
from catchment.query.sql.tokens import Cursor, SqlText
from catchment.query.sql.tokens import read_statements as read_cursors

COLUMN_TYPES = ("BIGINT", "INT", "DOUBLE", "STRING", "BOOLEAN")
MAX_TEXT_CHARS = 1_000_000  # length of a program
FORMS = (
    "CREATE STREAM name (columns) WITH (device = 'column'), CREATE TABLE name (columns), "
    "CREATE FEED VIEW name [WITH (...)] AS SELECT ..."
)
BORN_ON_DEVICES = "devices"
BORN_AT_CLOUD = "cloud"
_STREAM_OPTIONS = (
    Option("device", kinds.text("the column that says whose event it is")),
    Option("born", kinds.choice(BORN_ON_DEVICES, BORN_AT_CLOUD), BORN_ON_DEVICES),
    Option("key", kinds.text("the column that says which part of a stream of the cloud an event is of")),
    Option("rate", kinds.number(high=1e6)),
)
_VIEW_OPTIONS = (
    Option("lifetime", lifetimes(), Lifetimes()),
    Option("notify_every", kinds.duration(positive=True)),
    Option("window", kinds.duration(positive=True)),
    Option("table", kinds.flag(), True),
)


@dataclass(frozen=True)
class Declared:
    """A declared stream or table: its columns in order, with their types."""

    name: str
    columns: tuple[tuple[str, str], ...]
    where: str = ""
    device: str | None = None  # the column that names the device of a stream, or the part of one of the cloud
    rate: float | None = None  # events per second of one device of a stream, until they are measured
    file: str | None = None  # where the rows of a table are, in the folder of the project
    has_file: bool = True  # else its rows come with a submitted view
    born_at_cloud: bool = False  # a stream whose events are published at the cloud
    view: str | None = None  # the materialized view whose answers are the records of a stream of the cloud
    rows: str = EXACT_ROWS  # which of these answers

    def __post_init__(self) -> None:
        names = self.column_names
        if not names or len(set(names)) != len(names):
            raise FeedError(f"{self.name!r} has no columns or two of one name: {list(names)}", where=self.where)
        if self.device is not None and self.device not in names:
            raise FeedError(
                f"found device = {self.device!r}; possible: {', '.join(names)}",
                where=self.where,
                hint="device names the column that says whose event it is",
            )

    @property
    def is_stream(self) -> bool:
        return self.device is not None or self.born_at_cloud

    def part_of(self, row: tuple[Any, ...]) -> str:
        """Return the device that a record of a stream is from, or the part that it is of; the cloud, if neither."""
        return BORN_AT_CLOUD if self.device is None else str(row[self.column_names.index(self.device)])

    @property
    def file_name(self) -> str:
        """The file with its rows, or with its recorded records."""
        return self.file or f"{self.name}.csv"

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    def type_of(self, column: str) -> str:
        return dict(self.columns)[column]


@dataclass(frozen=True, eq=False)
class ViewStatement:
    """A feed view as written: its name, its options and its parsed SELECT."""

    name: str
    lifetimes: Lifetimes
    notify_every_us: int | None
    select: exp.Select
    text: SqlText
    where: str
    window_us: int | None = None


Statement = Declared | ViewStatement


def read_statements(text: str, file: str) -> Iterator[Statement]:
    """Yield the statements of a program, in order; `file` is the name that errors give it."""
    if len(text) > MAX_TEXT_CHARS:
        raise FeedError(f"the program has {len(text)} characters; at most {MAX_TEXT_CHARS} are read", where=file)
    try:
        for cursor in read_cursors(SqlText(text, file)):
            yield _read_statement(cursor)
    except QueryError as error:
        raise FeedError(error.message, where=error.where, hint=error.hint) from error


def _read_statement(cursor: Cursor) -> Statement:
    cursor.word("CREATE", possible=FORMS)
    kind = cursor.word("STREAM", "TABLE", "FEED", possible=FORMS)
    if kind == "FEED":
        return view_statement(read_feed_view(cursor))
    return _read_stream(cursor) if kind == "STREAM" else _read_table(cursor)


def _read_stream(cursor: Cursor) -> Declared:
    name = cursor.name("stream").lower()
    columns = _read_columns(cursor)
    options = _read_options(cursor, _STREAM_OPTIONS, f"stream {name!r}")
    cursor.end()
    at_cloud = options["born"] == BORN_AT_CLOUD
    if options["device"] is None and not at_cloud:
        hint = "it must be the column that says whose event it is; a stream of the cloud has born = 'cloud' instead"
        raise FeedError(f"stream {name!r} lacks the option 'device'", where=cursor.start, hint=hint)
    if at_cloud == (options["device"] is not None) or (options["key"] is not None and not at_cloud):
        raise FeedError(
            f"stream {name!r} needs either a device or born = 'cloud', with which it may have a key",
            where=cursor.start,
            hint="WITH (device = 'user'), or WITH (born = 'cloud', key = 'station')",
        )
    column = options["key"] if at_cloud else options["device"]
    named = None if column is None else column.lower()
    return Declared(name, columns, cursor.start, named, options["rate"], born_at_cloud=at_cloud)


def _read_table(cursor: Cursor) -> Declared:
    name = cursor.name("table").lower()
    columns = _read_columns(cursor)
    cursor.end()
    return Declared(name, columns, cursor.start)


def view_statement(view: FeedView) -> ViewStatement:
    """Return a feed view with its options read."""
    name = view.name.lower()
    options = read_options(
        view.given,
        _VIEW_OPTIONS,
        what=f"view {name!r}",
        where=lambda option: view.places.get(option, view.where),
        error=FeedError,
    )
    lifetime, every_us, window_us = (options[key] for key in ("lifetime", "notify_every", "window"))
    return ViewStatement(name, lifetime, every_us, view.select, view.text, view.where, window_us)


def _read_columns(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    return tuple(_read_column(cursor, part) for part in cursor.group("(name TYPE, ...)"))


def _read_column(cursor: Cursor, part: list[Token]) -> tuple[str, str]:
    name = cursor.checked_name(part[0], "a column").lower()
    found = cursor.source.text[part[1].start : part[-1].end + 1].upper() if len(part) > 1 else "no type"
    if found not in COLUMN_TYPES:
        possible = ", ".join(COLUMN_TYPES)
        raise cursor.source.error(f"column {name!r} has {found}; possible: {possible}", part[0].start)
    return name, found


def _read_options(cursor: Cursor, options: tuple[Option, ...], what: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    places: dict[str | None, str] = {}
    if cursor.peek() == "WITH":
        given, places = cursor.options()
    return read_options(given, options, what=what, where=lambda name: places.get(name, cursor.start), error=FeedError)
