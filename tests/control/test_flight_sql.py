"""Results over Arrow Flight SQL, read by an ADBC client that others wrote; without Spark.

Catches: answers that differ from `catchment sql`, roles that are not asked, a server that remembers without bounds.
Cannot catch: what JDBC drivers do beyond prepared statements and the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions

from catchment.center.results.sql import query_results
from catchment.control import flight_sql as server_side
from catchment.control.flight_sql import FlightSqlService, HeldAnswers
from catchment.keys.key_folder import KeyFolder
from catchment.keys.tls import TlsFiles
from catchment.keys.tokens import OPERATOR, READER, CallerTokens, TokenTable, hash_token
from catchment.project.sections import key_files
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.published import publish_project

Open = Callable[..., flight_sql.Connection]
TOKENS = {"rita": READER, "alice": OPERATOR, "us": "site"}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "p"
    publish_project(folder)
    return folder / "state"


@pytest.fixture(scope="module")
def port(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    table = TokenTable({name: CallerTokens(hash_token(f"{name}-token"), role=role) for name, role in TOKENS.items()})
    services = (FlightSqlService(state),)
    server = InboxServer(Inbox(tmp_path_factory.mktemp("inbox")), "127.0.0.1", 0, tokens=table, services=services)
    server.start()
    yield server.port
    server.close()


@pytest.fixture
def connect(port: int) -> Iterator[Open]:
    opened: list[flight_sql.Connection] = []

    def open_as(name: str = "rita") -> flight_sql.Connection:
        header = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {name}-token"}
        opened.append(flight_sql.connect(f"grpc://127.0.0.1:{port}", db_kwargs=header, autocommit=True))
        return opened[-1]

    yield open_as
    for connection in opened:
        connection.close()


def ask(connection: flight_sql.Connection, statement: str) -> pa.Table:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetch_arrow_table()


STATEMENTS = [
    "SELECT * FROM traffic ORDER BY window_start, country, code",
    "SELECT country, sum(requests) AS requests, max(coverage) AS c FROM traffic GROUP BY country ORDER BY country",
    "SELECT revision, count(*) AS n FROM traffic__revisions GROUP BY revision ORDER BY revision",
    "SELECT * FROM audience ORDER BY window_start",
    "SELECT 1 AS one WHERE false",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_client_reads_what_catchment_sql_answers(connect: Open, state: Path, statement: str) -> None:
    assert ask(connect(), statement).equals(query_results(state, statement))


def test_an_answer_of_many_messages_arrives_whole(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side, "ROWS_PER_MESSAGE", 1000)
    found = ask(connect(), "SELECT range AS n FROM range(25000)")
    assert found["n"].to_pylist() == list(range(25000))


def test_a_client_finds_the_views_and_that_nothing_can_be_changed(connect: Open) -> None:
    connection = connect()
    found = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    schemas = [schema for catalog in found for schema in catalog["catalog_db_schemas"]]
    names = {table["table_name"] for schema in schemas for table in schema["db_schema_tables"]}
    assert names >= {"traffic", "traffic__revisions", "audience"}
    assert ask(connection, 'SELECT * FROM "temp"."main"."traffic"').num_rows > 0, "as tools write it"
    assert connection.adbc_get_info()["vendor_name"] == "catchment"
    assert connection.adbc_get_table_types() == ["VIEW"]


def test_a_statement_can_be_prepared(connect: Open, state: Path) -> None:
    statement = STATEMENTS[1]
    with connect().cursor() as cursor:
        cursor.adbc_prepare(statement)
        cursor.execute(statement)
        assert cursor.fetch_arrow_table().equals(query_results(state, statement))


@pytest.mark.parametrize(
    "statement", ["DROP VIEW traffic", "CREATE TABLE t (a INT)", "SELECT * FROM read_csv('/etc/passwd')", "SELEC 1"]
)
def test_what_is_no_query_of_results_is_refused_with_its_reason(connect: Open, statement: str) -> None:
    with pytest.raises(adbc_driver_manager.Error, match=r"expected|disabled|external|syntax"):
        ask(connect(), statement)


def test_operators_and_readers_read_and_nobody_else_does(connect: Open) -> None:
    assert ask(connect("alice"), "SELECT 1 AS one").num_rows == 1
    with pytest.raises(adbc_driver_manager.Error, match="only operators and readers read results"):
        ask(connect("us"), "SELECT 1 AS one")
    with pytest.raises(adbc_driver_manager.Error, match="not known here"):
        ask(connect("stranger"), "SELECT 1 AS one")


def test_a_client_shows_its_certificate_where_that_is_asked_for(state: Path, tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    keys.create("test")
    keys.issue("center")
    keys.issue("rita", role=READER)
    mine, theirs = key_files(keys.folder, "rita"), key_files(keys.folder, "center")
    token = (keys.folder / "rita" / "token").read_text().strip()
    table = TokenTable({"rita": CallerTokens(hash_token(token), role=READER)})
    server = InboxServer(
        Inbox(tmp_path / "inbox"),
        "127.0.0.1",
        0,
        TlsFiles(theirs.tls_cert, theirs.tls_key, theirs.tls_ca),
        table,
        client_certificates=True,
        services=(FlightSqlService(state),),
    )
    server.start()
    options = {
        DatabaseOptions.TLS_ROOT_CERTS.value: (mine.tls_ca or Path()).read_text(),
        DatabaseOptions.MTLS_CERT_CHAIN.value: (mine.tls_cert or Path()).read_text(),
        DatabaseOptions.MTLS_PRIVATE_KEY.value: (mine.tls_key or Path()).read_text(),
        DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}",
    }
    try:
        address = f"grpc+tls://127.0.0.1:{server.port}"
        with flight_sql.connect(address, db_kwargs=options, autocommit=True) as connection:
            assert ask(connection, "SELECT count(*) AS n FROM traffic")["n"].to_pylist() > [0]
    finally:
        server.close()


def test_answers_that_nobody_fetches_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side, "HELD_ANSWERS", 3)
    monkeypatch.setattr(server_side, "HELD_BYTES", 2000)
    held = HeldAnswers()
    small, large = pa.table({"a": [1]}), pa.table({"a": list(range(1000))})
    for name in "abcd":
        held.put(name, small)
    assert [held.take(name) is None for name in "abcd"] == [True, False, False, False]
    assert held.take("b") is None, "an answer is taken once"
    held.put("e", large)
    assert held.take("e") is None, "one that is too large is computed again"
