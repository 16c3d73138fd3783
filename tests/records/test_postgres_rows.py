"""Look-up rows from a real PostgreSQL: every declared type as it was stored, and mistakes that are named."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from catchment.errors import EngineError
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import Table
from tests.worlds.postgres_server import MISSING, PostgresServer, has_server
from tests.worlds.waiting import free_port

pytest.importorskip("psycopg")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(not has_server(), reason=MISSING)]

COLUMNS = (
    "id BIGINT, small INT, price DOUBLE, exact DECIMAL(10, 2), name STRING, open BOOLEAN, day DATE, "
    "seen TIMESTAMP, raw BINARY"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    started = PostgresServer().start()
    started.query(
        "CREATE TABLE shops (id int, small smallint, price numeric, exact numeric, name varchar(9), open boolean, "
        "day date, seen timestamptz, raw bytea)"
    )
    started.query("INSERT INTO shops VALUES (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)")
    started.query(
        "INSERT INTO shops VALUES (1, 7, 1.5, 12.345, 'sü', true, '2026-01-31', '2026-01-31T01:00:00+01', '\\xff')"
    )
    yield started
    started.remove()


def declare(url: str, columns: str = COLUMNS, table: str = "shops", more: str = "") -> Table:
    (made,) = parse_sql(
        f"CREATE TABLE shops ({columns}) WITH (connector = 'postgres', url = '{url}', table = '{table}'{more})", "q.sql"
    )
    assert isinstance(made, Table)
    return made


def test_every_type_is_read_as_declared_in_an_order_of_its_own(server: PostgresServer, tmp_path: Path) -> None:
    from catchment.records.postgres_rows import read_postgres_rows, version_of_rows

    table = declare(server.url, table="public.shops")
    rows = read_postgres_rows(table, tmp_path)
    assert rows.schema == table.schema
    first, second = (tuple(row.values()) for row in rows.to_pylist())
    seen = datetime(2026, 1, 31, tzinfo=UTC)
    assert first == (1, 7, 1.5, Decimal("12.35"), "sü", True, date(2026, 1, 31), seen, b"\xff")
    assert second == (2, *[None] * 8)
    before = version_of_rows(rows)
    server.query("UPDATE shops SET small = small WHERE id = 1")  # now it comes last in the pages of the table
    assert version_of_rows(read_postgres_rows(table, tmp_path)) == before
    server.query("UPDATE shops SET small = 8 WHERE id = 1")
    assert version_of_rows(read_postgres_rows(table, tmp_path)) != before


@pytest.mark.parametrize(
    ("columns", "table", "told"),
    [
        ("id BIGINT, gone STRING", "shops", 'column "gone" does not exist'),
        ("id BIGINT", "nothing", 'relation "nothing" does not exist'),
        ("name BIGINT", "shops", "invalid input syntax for type bigint"),
        ("id TINYINT", "large", "a value of column 'id' of table 'shops' is not a int8"),
    ],
)
def test_what_does_not_fit_is_named(
    server: PostgresServer, tmp_path: Path, columns: str, table: str, told: str
) -> None:
    from catchment.records.postgres_rows import read_postgres_rows

    server.query("CREATE TABLE IF NOT EXISTS large AS SELECT 300 AS id")
    with pytest.raises(EngineError, match=told):
        read_postgres_rows(declare(server.url, columns, table), tmp_path)


def test_more_rows_than_a_site_holds_are_refused(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from catchment.records import postgres_rows

    monkeypatch.setattr(postgres_rows, "MAX_ROWS", 1)
    with pytest.raises(EngineError, match="more than 1 rows"):
        postgres_rows.read_postgres_rows(declare(server.url), tmp_path)


def test_nothing_is_written_whatever_the_table_is(server: PostgresServer, tmp_path: Path) -> None:
    from catchment.records.postgres_rows import read_postgres_rows

    server.query("CREATE TABLE log (n int)")
    server.query(
        "CREATE FUNCTION noted() RETURNS int LANGUAGE sql VOLATILE AS 'INSERT INTO log VALUES (1) RETURNING n'"
    )
    server.query("CREATE VIEW writing AS SELECT noted()::bigint AS id")
    with pytest.raises(EngineError, match="read-only transaction"):
        read_postgres_rows(declare(server.url, "id BIGINT", "writing"), tmp_path)
    assert server.query("SELECT count(*) FROM log") == [(0,)]


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    from catchment.records.postgres_rows import read_postgres_rows

    with pytest.raises(EngineError, match="cannot be read from PostgreSQL: connection"):
        read_postgres_rows(declare(f"postgresql://nobody@127.0.0.1:{free_port()}/none"), tmp_path)
