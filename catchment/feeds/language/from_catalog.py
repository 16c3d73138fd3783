"""The feed program of a project: the streams of devices, tables and feed views of its catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from catchment.errors import FeedError, QueryError
from catchment.feeds.language.functions import BUILT_IN, Functions
from catchment.feeds.language.operator_calls import operator_in
from catchment.feeds.language.read_program import plan_program, with_submitted
from catchment.feeds.language.statements import (
    COLUMN_TYPES,
    Declared,
    Statement,
    ViewStatement,
    read_statements,
    view_statement,
)
from catchment.feeds.language.submitted import SubmittedView, submitted_statements
from catchment.feeds.language.template import FeedProgram
from catchment.feeds.language.view_answers import with_answers
from catchment.query.catalog import Catalog
from catchment.query.sql.connectors import FilesConnector
from catchment.query.sql.feed_statements import DeviceStream, FeedView
from catchment.query.sql.statements import DeclaredRelation, Table
from catchment.query.types import sql_type


def program_of(
    catalog: Catalog, functions: Functions = BUILT_IN, submitted: Sequence[SubmittedView] = ()
) -> FeedProgram:
    """Return the feed program of a catalog; the notices of feed views that have a table are kept at the cloud.

    Submitted views are computed beside them, and have no table.
    """
    _refuse_other_types(catalog, functions)
    of_devices = with_answers(catalog)
    read = {table.name.lower() for view in catalog.feed_views.values() for table in view.tables}
    read |= _tables_in(submitted)
    tables = [table for table in catalog.tables.values() if table.name.lower() in read]
    declared: list[DeviceStream | Table | FeedView] = [
        *of_devices,
        *tables,
        *catalog.feed_views.values(),
    ]
    statements: list[Statement] = [_statement(item) for item in declared]
    statements += submitted_statements(submitted, [s for s in statements if isinstance(s, Declared)])
    collected = frozenset(name.lower() for name in catalog.feed_views if name in catalog.views)
    text = with_submitted(";\n".join(item.to_sql() for item in declared), submitted)
    try:
        return plan_program(statements, text, functions, collected)
    except QueryError as error:
        raise FeedError(error.message, where=error.where, hint=error.hint) from error


def _tables_in(submitted: Sequence[SubmittedView]) -> set[str]:
    selects = [s.select for v in submitted for s in read_statements(v.sql, v.name) if isinstance(s, ViewStatement)]
    return {table.name.lower() for select in selects for table in select.find_all(exp.Table)}


def _statement(item: DeviceStream | Table | FeedView) -> Statement:
    if isinstance(item, FeedView):
        return view_statement(item)
    columns = tuple((column.name.lower(), _type_of(item, column.name)) for column in item.columns)
    if isinstance(item, Table):
        return Declared(item.name.lower(), columns, item.where, file=_csv_file(item))
    device = None if item.device is None else item.device.lower()
    made = Declared(item.name.lower(), columns, item.where, device, item.rate, born_at_cloud=item.born_at_cloud)
    return made if item.view is None else replace(made, view=item.view, rows=item.rows)


def _type_of(relation: DeclaredRelation, name: str) -> str:
    column = relation.column(name)
    assert column is not None
    kind = sql_type(column.type)
    if kind not in COLUMN_TYPES:
        raise FeedError(
            f"{relation.name!r} is read by feed views, and its column {name!r} is {kind}",
            hint=f"possible there: {', '.join(COLUMN_TYPES)}",
        )
    return kind


def _csv_file(table: Table) -> str:
    """Return the file of a reference table: devices are told its rows, so it is CSV with a line of names."""
    rows = table.connector
    if not isinstance(rows, FilesConnector) or (rows.format, rows.header, rows.delimiter) != ("csv", True, ","):
        raise FeedError(
            f"table {table.name!r} is read by feed views, and is no CSV file with a line of names",
            where=table.where,
            hint="WITH (path = 'friends.csv')",
        )
    return rows.path


def _refuse_other_types(catalog: Catalog, functions: Functions) -> None:
    """Refuse a table of notices with a column that a function of the project makes which gives no DOUBLE."""
    others: Mapping[str, str] = {f.name: f.returns for f in functions.values() if f.returns != "double"}
    for view in catalog.feed_views.values():
        if view.name in catalog.views and any(operator_in(item, functions) for item in view.select.expressions):
            raise FeedError(
                f"feed view {view.name!r} has a table, and an operator, whose rows stay between devices and the cloud",
                where=view.where,
                hint="write WITH (table = false)",
            )
        called = {call.name.lower() for item in view.select.expressions for call in item.find_all(exp.Anonymous)}
        for name in sorted(called & set(others)) if view.name in catalog.views else ():
            raise FeedError(
                f"feed view {view.name!r} has a table, and {name} gives {others[name]}, not double",
                where=view.where,
                hint="call it in WHERE only, or write WITH (table = false)",
            )
