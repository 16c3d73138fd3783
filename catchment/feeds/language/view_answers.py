"""Streams whose records are the answers of a materialized view: which columns they may have, and of which types.

Beside the columns of the view such a stream may have those that the engine adds: `window_start` and `window_end`,
`revision`, `status`, `coverage` and `retracted`. Instants are microseconds since 1970, because feeds have no type of
their own for them; days are texts.

Invariant: no feed view depends on answers that depend on its own notices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

import pyarrow as pa

from catchment.errors import FeedError
from catchment.project.options import did_you_mean
from catchment.query.catalog import Catalog
from catchment.query.feed_matches import matches_name
from catchment.query.planning.build import plan_view
from catchment.query.sql.feed_statements import ALL_REVISIONS, DeviceStream
from catchment.query.sql.statements import View
from catchment.query.types import TIMESTAMP, sql_type

RETRACTED = "retracted"  # the column that says that a row holds no more
ADDED_COLUMNS = {
    "window_start": TIMESTAMP,
    "window_end": TIMESTAMP,
    "revision": pa.int64(),
    "status": pa.string(),
    "coverage": pa.float64(),
    RETRACTED: pa.bool_(),
}


def with_answers(catalog: Catalog) -> list[DeviceStream]:
    """Return the streams of a project for feed views, those of answers with the names of their views as declared.

    Streams of answers that no view has are refused, and so are circles of feeds and windows.
    """
    streams = [_with_view(stream, catalog) for stream in catalog.device_streams.values()]
    of_answers = [stream for stream in streams if stream.view is not None]
    if of_answers:
        _refuse_circles(catalog, of_answers)
    return streams


def _with_view(stream: DeviceStream, catalog: Catalog) -> DeviceStream:
    if stream.view is None:
        return stream
    view = _view_of(stream, catalog)
    _check_columns(stream, view, catalog)
    return replace(stream, view=view.name)


def shown_keys_of(catalog: Catalog) -> dict[str, dict[str, str]]:
    """Return for each view with a stream of its answers which column shows each of its keys."""
    views = [_view_of(stream, catalog) for stream in catalog.device_streams.values() if stream.view is not None]
    columns = {view.name: plan_view(view, catalog).columns for view in views}
    return {name: {c.source: c.name for c in shown if c.source is not None} for name, shown in columns.items()}


def possible_types(kind: pa.DataType) -> tuple[str, ...]:
    """Return the types that a column of answers may have in a feed, the plainest first."""
    if pa.types.is_boolean(kind):
        return ("BOOLEAN",)
    if pa.types.is_signed_integer(kind):
        return ("BIGINT", "DOUBLE") if kind.bit_width > 32 else ("BIGINT", "INT", "DOUBLE")
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return ("DOUBLE",)
    if pa.types.is_timestamp(kind):
        return ("BIGINT",)
    return ("STRING",) if pa.types.is_date(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) else ()


def _view_of(stream: DeviceStream, catalog: Catalog) -> View:
    found = catalog.find(stream.view or "")
    if not isinstance(found, View):
        raise FeedError(
            f"stream {stream.name!r} has the answers of {stream.view!r}, which is no materialized view",
            where=stream.where,
            hint=did_you_mean(stream.view or "", catalog.views),
        )
    if catalog.project.center not in catalog.sinks_of(found):
        raise FeedError(
            f"stream {stream.name!r} has the answers of {found.name!r}, which are not at the center",
            where=stream.where,
            hint=f"add {catalog.project.center!r} to the sink of the view: the cloud of feeds runs there",
        )
    return found


def _check_columns(stream: DeviceStream, view: View, catalog: Catalog) -> None:
    shown = {column.name.lower(): column.type for column in plan_view(view, catalog).columns}
    known = ADDED_COLUMNS | shown
    for column in stream.columns:
        name, kind = column.name.lower(), sql_type(column.type)
        if name not in known:
            raise FeedError(
                f"stream {stream.name!r} has a column {name!r}, and the answers of {view.name!r} have none",
                where=stream.where,
                hint=f"possible: {', '.join(known)}",
            )
        if kind not in possible_types(known[name]):
            possible = " or ".join(possible_types(known[name])) or "none; leave it out, or cast it in the view"
            raise FeedError(
                f"column {name!r} of stream {stream.name!r} is {kind}, and {sql_type(known[name])} in the answers",
                where=stream.where,
                hint=f"possible in a feed: {possible}",
            )
    if RETRACTED in [column.name.lower() for column in stream.columns] and stream.rows != ALL_REVISIONS:
        raise FeedError(
            f"stream {stream.name!r} has a column {RETRACTED!r}, and exact rows are not retracted",
            where=stream.where,
            hint="leave it out, or write rows = 'revisions'",
        )


def _refuse_circles(catalog: Catalog, streams: Iterable[DeviceStream]) -> None:
    reads: dict[str, set[str]] = {stream.name.lower(): {(stream.view or "").lower()} for stream in streams}
    for view in catalog.views.values():
        reads[view.name.lower()] = {name.lower() for name in view.reads}
    for feed in catalog.feed_views.values():
        reads[matches_name(feed.name).lower()] = {table.name.lower() for table in feed.tables}
        reads.setdefault(feed.name.lower(), set()).add(matches_name(feed.name).lower())
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:
        named = [name for name in reversed(error.args[1]) if name not in map(_of_feed, catalog.feed_views)]
        first = next(stream for stream in streams if stream.name.lower() in named)
        raise FeedError(
            f"found a circle of feeds and windows: {' -> '.join(named)}",
            where=first.where,
            hint="a feed view must not read answers that are made of its own notices",
        ) from error


def _of_feed(view: str) -> str:
    return matches_name(view).lower()
