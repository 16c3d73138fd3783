"""What a feed view is to the rest of a project: a stream of its matches, and a table of them like any other answers.

A feed view that nobody of the feed views reads notifies users. Each notice is also a record of a stream
`NAME__matches`, which is born at the center, and the materialized view NAME publishes these records as they are. So a
materialized view may read NAME as it reads any view of records, a sink may deliver it, and `show` and `sql` know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from sqlglot import exp

from catchment.errors import QueryError
from catchment.query.planning.scope import infer_type
from catchment.query.sql.connectors import FeedConnector
from catchment.query.sql.feed_statements import DeviceStream, FeedView
from catchment.query.sql.statements import Column, DeclaredRelation, Stream, Table, View
from catchment.query.sql.tokens import SqlText
from catchment.query.sql.view_options import ViewOptions
from catchment.query.types import TIMESTAMP, read_type, sql_type
from catchment.units import SECOND_US

AT = "matched_at"  # the column with the time of a match: the event time of the stream
NOTIFIED = "notified"  # the column that names the device that was told
NOTICE = "notice"  # the column that tells two notices apart
PUBLISH_EVERY_US = SECOND_US  # the windows in which notices are published

Relations = Mapping[str, DeviceStream | Table | FeedView]  # by name in lower case


def matches_name(view: str) -> str:
    """Return the name of the stream of a view's matches."""
    return f"{view}__matches"


def has_table(view: FeedView, others: Iterable[FeedView]) -> bool:
    """Return whether the notices of a feed view become a stream and a table.

    Not so where it says `table = false`, where its matches are for another feed view, or where it aggregates them
    itself: the notice of a window is given again when a late match changes it.
    """
    read = {table.name.lower() for other in others for table in other.tables}
    return view.given.get("table", True) is not False and "window" not in view.given and view.name.lower() not in read


def matches_of(view: FeedView, relations: Relations, center: str) -> Stream:
    """Return the stream of a view's matches."""
    own = feed_columns(view, relations)
    for name in (AT, NOTIFIED, NOTICE):
        if any(column.name.lower() == name for column in own):
            raise QueryError(
                f"feed view {view.name!r} has a column {name!r}, which the table of its notices has already",
                where=view.where,
                hint=f"{AT}, {NOTIFIED} and {NOTICE} are taken: name it otherwise, or write WITH (table = false)",
            )
    added = (Column(AT, TIMESTAMP), Column(NOTIFIED, pa.string()), Column(NOTICE, pa.string()))
    return Stream(
        matches_name(view.name),
        (*added, *own),
        event_time=AT,
        connector=FeedConnector(view=view.name),
        sites=(center,),
        where=view.where,
    )


def table_of(view: FeedView, matches: Stream) -> View:
    """Return the materialized view that publishes the notices of a feed view."""
    columns = [exp.column(column.name, quoted=True) for column in matches.columns]
    select = exp.select(*columns).from_(exp.to_table(matches.name))
    options = ViewOptions(publish_every_us=PUBLISH_EVERY_US)
    text = SqlText(view.to_sql(), view.where.split(":")[0] or "<sql>")
    return View(view.name, select, options, text, view.where)


def feed_columns(view: FeedView, relations: Relations) -> tuple[Column, ...]:
    """Return the columns of a feed view, with the types that its expressions certainly have."""
    named = {(table.alias or table.name).lower(): table.name.lower() for table in view.tables}
    sources = {alias: _columns_of(relations[name], relations) for alias, name in named.items() if name in relations}
    return tuple(_column(item, sources, view) for item in view.select.expressions)


def _columns_of(relation: DeviceStream | Table | FeedView, relations: Relations) -> dict[str, pa.DataType]:
    columns = relation.columns if isinstance(relation, DeclaredRelation) else feed_columns(relation, relations)
    return {column.name.lower(): column.type for column in columns}


def _column(item: exp.Expr, sources: Mapping[str, Mapping[str, pa.DataType]], view: FeedView) -> Column:
    name = item.alias_or_name.lower()
    typed = (item.this if isinstance(item, exp.Alias) else item).copy().transform(lambda part: _typed(part, sources))
    type_ = infer_type(typed)
    if not name or type_ is None:
        raise view.text.error(
            f"the type of {item.sql()!r} in feed view {view.name!r} cannot be inferred",
            item,
            hint="its notices have no table then: write columns and expressions with AS, or WITH (table = false)",
        )
    return Column(name, type_)


def _typed(part: exp.Expr, sources: Mapping[str, Mapping[str, pa.DataType]]) -> exp.Expr:
    """Give a column its declared type, and a function of the project the type that such functions have."""
    if isinstance(part, exp.Column):
        owners = [sources.get(part.table.lower(), {})] if part.table else list(sources.values())
        found = next((types[part.name.lower()] for types in owners if part.name.lower() in types), None)
        part.type = None if found is None else read_type(sql_type(found))
    elif isinstance(part, exp.Anonymous):
        return exp.cast(exp.Literal.number(0), exp.DataType.Type.DOUBLE)
    return part
