"""Answers in a table of PostgreSQL: each batch is one transaction, and the place that it reaches is stored with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from catchment.center.results.plain_json import to_plain_json
from catchment.records.postgres_rows import postgres_type
from catchment.sinks.target import DELETED, OPERATION, UPSERTED, ChangeBatch, Place, SinkError

PLACES = "catchment_sinks"
STAGED = "catchment_staged"
NUMBER = "change"  # the column of a changelog that numbers its rows
CONNECT_S = 15


class PostgresTarget:
    """A table: one row per window and key, or every change where the sink is a changelog."""

    def __init__(self, name: str, table: str, url: str, password_file: str | None = None) -> None:
        self._name = name
        self._table = sql.Identifier(*table.split("."))
        self._shown = table
        self._url = url
        self._settings: dict[str, Any] = {"connect_timeout": CONNECT_S, "application_name": f"catchment sink {name}"}
        if password_file is not None:
            self._settings["passfile"] = password_file
        self._connection: psycopg.Connection | None = None
        self._is_checked = False

    def place(self) -> Place | None:
        with self._told() as connection, connection.transaction():
            if not connection.execute("SELECT to_regclass(%s)", [PLACES]).fetchone()[0]:  # type: ignore[index]
                return None
            query = sql.SQL("SELECT life, entry, step FROM {} WHERE sink = %s").format(sql.Identifier(PLACES))
            found = connection.execute(query, [self._name]).fetchone()
        return Place(*found) if found else None

    def write(self, batch: ChangeBatch) -> None:
        with self._told() as connection, connection.transaction():
            self._make_places(connection)
            if self._has_rows(connection, batch):
                self._check_table(connection, batch)
                self._store(connection, batch)
            connection.execute(
                sql.SQL(
                    "INSERT INTO {} VALUES (%s, %s, %s, %s) ON CONFLICT (sink) "
                    "DO UPDATE SET life = excluded.life, entry = excluded.entry, step = excluded.step"
                ).format(sql.Identifier(PLACES)),
                [self._name, batch.end.life, batch.end.entry, batch.end.step],
            )

    def close(self) -> None:
        """Forget the connection; what is not committed is not stored."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._is_checked = False

    # --- the table --------------------------------------------------------------------------------------------

    def _make_places(self, connection: psycopg.Connection) -> None:
        """Lock the sink, so that two centers never deliver at once, and make the table of places."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"catchment {self._name}"])
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (sink text PRIMARY KEY, life text NOT NULL, entry bigint NOT NULL, "
                "step bigint NOT NULL)"
            ).format(sql.Identifier(PLACES))
        )

    def _has_rows(self, connection: psycopg.Connection, batch: ChangeBatch) -> bool:
        """Return whether there is something to store; nothing is deleted from a table that is not there yet."""
        if not batch.rows.num_rows:
            return False
        if self._is_checked or pc.any(pc.not_equal(batch.rows[OPERATION], DELETED)).as_py():
            return True
        found = connection.execute("SELECT to_regclass(%s)", [self._shown]).fetchone()
        return found is not None and found[0] is not None

    def _check_table(self, connection: psycopg.Connection, batch: ChangeBatch) -> None:
        """Make the table and its index, or see that the table that is there has every column."""
        if self._is_checked:
            return
        wanted = _column_types(batch)
        columns = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(t)) for n, t in wanted.items()]
        if batch.is_changelog:
            columns.insert(0, sql.SQL("{} bigserial").format(sql.Identifier(NUMBER)))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(self._table, sql.SQL(", ").join(columns))
        )
        found = {
            column.name
            for column in connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(self._table)).description or ()
        }
        missing = [f"{name} {type_}" for name, type_ in wanted.items() if name not in found]
        if missing:
            raise SinkError(
                f"table {self._shown!r} of PostgreSQL lacks the columns {', '.join(missing)}",
                where=f"sink {self._name!r}",
                hint=f"ALTER TABLE {self._shown} ADD COLUMN ..., or name another table; it is tried again",
            )
        index = sql.Identifier(f"{self._shown.replace('.', '_')}_by_window")
        connection.execute(
            sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})").format(index, self._table, _names(batch.keys))
        )
        self._is_checked = True

    def _store(self, connection: psycopg.Connection, batch: ChangeBatch) -> None:
        if batch.is_changelog:
            self._copy(connection, self._table, batch.rows)
            return
        keys = batch.rows.select(list(batch.keys))
        types = _column_types(batch)
        columns = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(types[n])) for n in batch.keys]
        staged = sql.Identifier(STAGED)
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(staged, sql.SQL(", ").join(columns))
        )
        self._copy(connection, staged, keys)
        same = sql.SQL(" AND ").join(
            sql.SQL("t.{0} IS NOT DISTINCT FROM s.{0}").format(sql.Identifier(name)) for name in batch.keys[1:]
        )
        first = sql.SQL("t.{0} = s.{0}").format(sql.Identifier(batch.keys[0]))
        where = sql.SQL(" AND ").join([first, same]) if len(batch.keys) > 1 else first
        connection.execute(sql.SQL("DELETE FROM {} AS t USING {} AS s WHERE {}").format(self._table, staged, where))
        kept = batch.rows.filter(pc.equal(batch.rows[OPERATION], UPSERTED)).drop_columns([OPERATION])
        self._copy(connection, self._table, kept)

    @staticmethod
    def _copy(connection: psycopg.Connection, table: sql.Composable, rows: pa.Table) -> None:
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, _names(rows.column_names))
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows.to_pylist():
                copy.write_row([_stored(value) for value in row.values()])

    @contextmanager
    def _told(self) -> Iterator[psycopg.Connection]:
        """Give the connection, and turn its errors into errors of the sink; the next attempt makes a new one."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, **self._settings)
            yield self._connection
        except psycopg.Error as failure:
            self.close()
            told = str(failure).strip().splitlines()[0]
            raise SinkError(
                f"PostgreSQL: {told}", where=f"sink {self._name!r}", hint="mend it there; it is tried again"
            ) from failure
        except BaseException:
            self.close()
            raise


def _column_types(batch: ChangeBatch) -> dict[str, str]:
    """Return the type of each column as PostgreSQL has it."""
    fields = (f for f in batch.rows.schema if batch.is_changelog or f.name != OPERATION)
    return {f.name: postgres_type(f.type) for f in fields}


def _stored(value: Any) -> Any:
    """Return a value as COPY takes it: lists and structs as JSON."""
    return json.dumps(to_plain_json(value)) if isinstance(value, list | tuple | dict) else value


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
