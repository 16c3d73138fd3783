"""The rows of a table of PostgreSQL, for records to be looked up in.

They come from one statement, so they are those of one instant, and in an order of their own: equal rows give an equal
version, whatever the server has done with its pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from catchment.errors import ConfigError, EngineError
from catchment.query.sql.connectors import PostgresConnector
from catchment.query.sql.statements import Table
from catchment.records.client_config import check_password_file

CONNECT_S = 5  # a batch of records waits for it
ANSWER_S = 300  # the longest that the server may take for all rows
MAX_ROWS = 5_000_000  # they are held in memory
ROWS_PER_FETCH = 20_000


def read_postgres_rows(table: Table, base: Path) -> pa.Table:
    """Return all rows of a table, with the declared columns; a relative password file is in the project folder."""
    connector = table.connector
    assert isinstance(connector, PostgresConnector)
    settings: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "application_name": f"catchment table {table.name}",
        "options": f"-c statement_timeout={ANSWER_S * 1000} -c default_transaction_read_only=on -c timezone=UTC",
    }
    try:
        if connector.password_file is not None:
            settings["passfile"] = check_password_file(str(base / connector.password_file))
        with psycopg.connect(connector.url, **settings) as connection, connection.cursor(name="catchment") as cursor:
            cursor.itersize = ROWS_PER_FETCH
            cursor.execute(_select(table, connector.table))
            return _fetch_all(table, cursor)
    except ConfigError as failure:
        raise EngineError(
            f"table {table.name!r} cannot be read: {failure.message}", where=table.where, hint=failure.hint
        ) from failure
    except psycopg.Error as failure:
        told = str(failure).strip().splitlines() or [type(failure).__name__]
        raise EngineError(
            f"table {table.name!r} cannot be read from PostgreSQL: {told[0]}",
            where=table.where,
            hint="check url, table and password_file in its WITH (...), and that the table has the declared columns",
        ) from failure


def version_of_rows(rows: pa.Table) -> str:
    """Return a digest that equal rows have in common."""
    sha = hashlib.sha256()
    for batch in rows.combine_chunks().to_batches():
        sha.update(batch.serialize())
    return sha.hexdigest()


def postgres_type(type_: pa.DataType) -> str:
    """Return the type of PostgreSQL that has the values of an Arrow type."""
    types = pa.types
    if types.is_boolean(type_):
        return "boolean"
    if types.is_integer(type_):
        return "bigint" if type_.bit_width > 32 else "integer"
    if types.is_floating(type_):
        return "double precision"
    if types.is_decimal(type_):
        return f"numeric({type_.precision}, {type_.scale})"
    if types.is_timestamp(type_):
        return "timestamptz" if type_.tz else "timestamp"
    if types.is_date(type_):
        return "date"
    if types.is_binary(type_) or types.is_large_binary(type_):
        return "bytea"
    return "jsonb" if types.is_nested(type_) else "text"


def _select(table: Table, name: str) -> sql.Composed:
    """Return the statement that reads a table: values as the declared types, rows in the order of all of them."""
    columns = [
        sql.SQL("CAST({} AS {})").format(sql.Identifier(field.name), sql.SQL(postgres_type(field.type)))
        for field in table.schema
    ]
    order = [sql.SQL(str(place)) for place in range(1, len(columns) + 1)]
    return sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
        sql.SQL(", ").join(columns), sql.Identifier(*name.split(".")), sql.SQL(", ").join(order)
    )


def _fetch_all(table: Table, cursor: psycopg.ServerCursor[tuple[Any, ...]]) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    read = 0
    while rows := cursor.fetchmany(ROWS_PER_FETCH):
        read += len(rows)
        if read > MAX_ROWS:
            raise EngineError(
                f"table {table.name!r} has more than {MAX_ROWS:,} rows, which a site does not hold in memory",
                where=table.where,
                hint="make a view there with the rows that are needed, and name that",
            )
        batches.append(_to_arrow(table, rows))
    return pa.Table.from_batches(batches, table.schema)


def _to_arrow(table: Table, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = []
    for field, values in zip(table.schema, zip(*rows, strict=True), strict=True):
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise EngineError(
                f"a value of column {field.name!r} of table {table.name!r} is not a {field.type}: {error}",
                where=table.where,
                hint="declare the column with the type that it has in PostgreSQL",
            ) from error
    return pa.record_batch(columns, schema=table.schema)
