"""From SQL text to statements.

The heads of statements (CREATE STREAM ..., WITH (...)) are read here, token by token; types and SELECTs are passed to
sqlglot with their tokens, so that line numbers are those of the file. What cannot be read is a QueryError that says
where, what was found and what is possible there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sqlglot.tokenizer_core import Token

from catchment.errors import QueryError
from catchment.query.sql.feed_statements import BORN, DEVICE, DeviceStream, FeedStatement, FeedView
from catchment.query.sql.select import read_select
from catchment.query.sql.statements import Column, DeclaredSink, DropView, Explain, Statement, Stream, Table, View
from catchment.query.sql.tokens import Cursor, SqlText, read_statements
from catchment.query.sql.unsupported import refuse_unsupported
from catchment.query.sql.view_options import ViewOptions
from catchment.query.sql.with_options import (
    read_device_options,
    read_sink_options,
    read_stream_options,
    read_table_options,
    read_view_options,
)
from catchment.query.types import POSSIBLE_TYPES, arrow_type, read_type

FORMS = (
    "CREATE STREAM name (columns) WITH (...), CREATE TABLE name (columns) WITH (...), "
    "CREATE MATERIALIZED VIEW name [WITH (...)] AS SELECT ..., CREATE SINK name FROM view WITH (...), "
    "CREATE STREAM name (columns) WITH (device = 'column'), CREATE FEED VIEW name [WITH (...)] AS SELECT ..., "
    "DROP MATERIALIZED VIEW name, EXPLAIN [ANALYZE] name"
)
MAX_TEXTS = 1_000  # whose statements are remembered
WATERMARK_HINT = (
    "say in WITH (...) which column is the event time, and how long records are waited for: event_time = 'ts', slack = "
    "'5 seconds'"
)
SELECT_FORM = (
    "SELECT expressions FROM stream [JOIN stream or table ON ...] [WHERE ...] "
    "[GROUP BY window(event_time, 'size'), keys [HAVING ...]]"
)
FEED_SELECT_FORM = "SELECT expressions FROM stream [JOIN stream, table or view ON ...] [WHERE ...]"

AnyStatement = Statement | FeedStatement


def parse_file(path: Path) -> tuple[AnyStatement, ...]:
    """Return the statements of a file."""
    try:
        return parse_sql(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as cause:
        raise QueryError("this file is not UTF-8 text", where=str(path)) from cause


@lru_cache(maxsize=MAX_TEXTS)  # statements are never changed, and the same texts are read again and again
def parse_sql(text: str, file: str = "<sql>") -> tuple[AnyStatement, ...]:
    """Return the statements of a text; `file` is the name that errors give it."""
    return tuple(_statement(cursor) for cursor in read_statements(SqlText(text, file)))


def _statement(cursor: Cursor) -> AnyStatement:
    head = cursor.word("CREATE", "DROP", "EXPLAIN", possible=FORMS)
    if head == "EXPLAIN":
        return _explain(cursor)
    if head == "DROP":
        return _drop(cursor)
    if cursor.peek() == "OR":
        cursor.words("OR REPLACE MATERIALIZED", possible="CREATE OR REPLACE MATERIALIZED VIEW name")
        return replace(_view(cursor), replaces=True)
    kind = cursor.word("STREAM", "TABLE", "SINK", "MATERIALIZED", "FEED", possible=FORMS)
    if kind == "SINK":
        return _sink(cursor)
    if kind == "FEED":
        return read_feed_view(cursor)
    return _view(cursor) if kind == "MATERIALIZED" else _relation(cursor, kind)


def _explain(cursor: Cursor) -> Explain:
    analyze = cursor.peek() == "ANALYZE" and len(cursor.rest) > 1  # a view may be named so
    if analyze:
        cursor.word("ANALYZE", possible=FORMS)
    if cursor.peek() == "MATERIALIZED":
        cursor.words("MATERIALIZED VIEW", possible="EXPLAIN MATERIALIZED VIEW name")
    name = cursor.name("view")
    cursor.end()
    return Explain(name, cursor.start, analyze)


def _drop(cursor: Cursor) -> DropView:
    cursor.words("MATERIALIZED VIEW", possible="DROP MATERIALIZED VIEW name")
    name = cursor.name("view")
    cursor.end()
    return DropView(name, cursor.start)


def _relation(cursor: Cursor, kind: str) -> Stream | Table | DeviceStream:
    name = cursor.name(kind.lower())
    columns = tuple(_column(part, name, cursor) for part in cursor.group("(name TYPE, ...)"))
    given, places = cursor.options()
    cursor.end()

    def place(option: str | None) -> str:
        return places.get(option, cursor.start)

    try:
        if kind == "TABLE":
            of_table, rows = read_table_options(given, name, place)
            return Table(name, columns, connector=rows, where=cursor.start, **of_table)
        if DEVICE in given or BORN in given:
            return DeviceStream(name, columns, where=cursor.start, **read_device_options(given, name, place))
        own, connector = read_stream_options(given, name, place)
        return Stream(name, columns, connector=connector, where=cursor.start, **own)
    except QueryError as cause:
        raise (cause if cause.where else QueryError(cause.message, where=cursor.start, hint=cause.hint)) from cause


def read_feed_view(cursor: Cursor) -> FeedView:
    """Read a feed view; its options are read by those who compute it."""
    cursor.word("VIEW", possible="CREATE FEED VIEW name")
    name = cursor.name("view")
    given, places = cursor.options() if cursor.peek() == "WITH" else ({}, {})
    cursor.word("AS", possible="WITH (...) or AS SELECT ...")
    select = read_select(cursor, FEED_SELECT_FORM)
    return FeedView(name, select, given, places, cursor.source, cursor.start)


def _sink(cursor: Cursor) -> DeclaredSink:
    name = cursor.name("sink")
    cursor.word("FROM", possible="CREATE SINK name FROM view WITH (connector = 'kafka', ...)")
    view = cursor.name("view")
    given, places = cursor.options()
    cursor.end()
    connector = read_sink_options(given, name, lambda option: places.get(option, cursor.start))
    return DeclaredSink(name, view, connector, cursor.start)


def _column(part: list[Token], owner: str, cursor: Cursor) -> Column:
    name = cursor.checked_name(part[0], f"a column of {owner!r}")
    if name.upper() == "WATERMARK" and len(part) > 1 and part[1].text.upper() == "FOR":
        raise cursor.source.error("a column list has no WATERMARK", part[0].start, hint=WATERMARK_HINT)
    text = cursor.source.text[part[1].start : part[-1].end + 1] if len(part) > 1 else ""
    type_ = arrow_type(read_type(text)) if text else None
    if type_ is None:
        found = f"the unknown type {text!r}" if text else "no type"
        raise cursor.source.error(f"column {name!r} has {found}", part[0].start, hint=f"possible: {POSSIBLE_TYPES}")
    return Column(name, type_)


def _view(cursor: Cursor) -> View:
    cursor.word("VIEW", possible="CREATE MATERIALIZED VIEW name")
    name = cursor.name("view")
    options = ViewOptions()
    if cursor.peek() == "WITH":
        given, places = cursor.options()
        options = read_view_options(given, name, lambda option: places.get(option, cursor.start))
    cursor.word("AS", possible="WITH (...) or AS SELECT ...")
    select = read_select(cursor, SELECT_FORM)
    refuse_unsupported(select, cursor.source)
    return View(name, select, options, cursor.source, cursor.start)
