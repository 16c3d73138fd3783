"""Results over JDBC, read by the driver of Apache Arrow in a JVM of its own, while nothing else of Java runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import catchment
from catchment.center.results.sql import query_results
from catchment.control.flight_sql import FlightSqlService
from catchment.keys.key_folder import KeyFolder
from catchment.keys.tls import TlsFiles
from catchment.keys.tokens import READER, SITE, CallerTokens, TokenTable, hash_token
from catchment.project.sections import key_files
from catchment.wire.receiving.grpc_server import InboxServer
from catchment.wire.receiving.inbox import Inbox
from tests.worlds.published import publish_project

ROOT = Path(catchment.__file__).parents[1]
DRIVERS = sorted((ROOT / ".jdbc").glob("flight-sql-jdbc-driver-*.jar"))
PROGRAM = Path(__file__).with_name("ReadResults.java")
# Arrow's memory needs the internals of Java's buffers.
JAVA = ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED"]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not DRIVERS or shutil.which("java") is None,
        reason="needs Java and a driver: sh tools/jdbc.sh .jdbc (with Maven)",
    ),
]


def read(port: int, options: str, *statements: str) -> subprocess.CompletedProcess[str]:
    address = f"jdbc:arrow-flight-sql://127.0.0.1:{port}/?{options}"
    return subprocess.run(
        [*JAVA, "-cp", str(DRIVERS[-1]), str(PROGRAM), address, *statements],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_jdbc_driver_of_arrow_reads_what_sql_reads(tmp_path: Path) -> None:
    publish_project(tmp_path / "p")
    state = tmp_path / "p" / "state"
    people = {"rita": READER, "us": SITE}
    tokens = TokenTable({name: CallerTokens(hash_token(f"{name}-token"), role=role) for name, role in people.items()})
    server = InboxServer(Inbox(tmp_path / "inbox"), "127.0.0.1", 0, tokens=tokens, services=(FlightSqlService(state),))
    server.start()
    every = "SELECT * FROM traffic__revisions"
    counted = "SELECT country, sum(requests) AS n FROM traffic GROUP BY ALL ORDER BY 1"
    try:
        done = read(server.port, "useEncryption=false&token=rita-token", counted, every)
        refused = read(server.port, "useEncryption=false&token=us-token", counted)
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {"table traffic", "table traffic__revisions"} <= set(lines)
    rows = [line for line in lines if line.startswith("row ")]
    expected = query_results(state, counted).to_pylist()
    assert rows[: len(expected)] == [f"row {found['country']} {found['n']}" for found in expected]
    assert len(rows) == len(expected) + query_results(state, every).num_rows
    assert refused.returncode != 0
    assert "only operators and readers read results" in refused.stderr


def test_the_driver_shows_a_certificate_where_that_is_asked_for(tmp_path: Path) -> None:
    publish_project(tmp_path / "p")
    keys = KeyFolder(tmp_path / "keys")
    keys.create("test")
    keys.issue("center", ["127.0.0.1"])
    keys.issue("rita", role=READER)
    mine, theirs = keys.folder / "rita", key_files(keys.folder, "center")
    token = (mine / "token").read_text().strip()
    server = InboxServer(
        Inbox(tmp_path / "inbox"),
        "127.0.0.1",
        0,
        TlsFiles(theirs.tls_cert, theirs.tls_key, theirs.tls_ca),
        TokenTable({"rita": CallerTokens(hash_token(token), role=READER)}),
        client_certificates=True,
        services=(FlightSqlService(tmp_path / "p" / "state"),),
    )
    server.start()
    files = {"tlsRootCerts": "ca.pem", "clientCertificate": "cert.pem", "clientKey": "key.pem"}
    options = "&".join(f"{option}={mine / file}" for option, file in files.items())
    try:
        done = read(server.port, f"token={token}&{options}", "SELECT count(*) > 0 AS found FROM traffic")
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert "row true" in done.stdout
