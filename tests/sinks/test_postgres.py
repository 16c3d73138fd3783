"""Answers in a real PostgreSQL: the table equals the view, through kills, restarts and servers that are away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from catchment.center.statuses import FINAL, ON_TIME
from catchment.sinks.delivery import FAILING, UP_TO_DATE
from catchment.sinks.target import PlacedTarget, SinkError
from catchment.testing.check_target import PublishedView, check_target, deliver_all
from tests.worlds.postgres_server import MISSING, PostgresServer, has_server
from tests.worlds.waiting import free_port, wait_until

psycopg = pytest.importorskip("psycopg")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(not has_server(), reason=MISSING)]

SHOWN = "SELECT extract(epoch FROM window_start)::int / 60, country, n, bytes, status, revision FROM {} ORDER BY 1, 2"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    started = PostgresServer().start()
    yield started
    started.remove()


def target(server: PostgresServer, name: str, url: str | None = None) -> PlacedTarget:
    from catchment.sinks.postgres import PostgresTarget

    return PostgresTarget(name, name, url or server.url)


def test_the_table_has_the_newest_row_of_every_window_and_key(server: PostgresServer, tmp_path: Path) -> None:
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5), ("de", 3), (None, 1)], ON_TIME)
    delivery = view.deliver("newest", lambda life: target(server, "newest"))
    deliver_all(delivery)
    view.publish(0, [("nl", 6), ("de", -3)], FINAL)
    view.publish(1, [(None, 2)])
    deliver_all(delivery)
    assert server.query(SHOWN.format("newest")) == [
        (0, "nl", 1, 6, FINAL, 2),
        (0, None, 1, 1, FINAL, 1),
        (1, None, 1, 2, "exact", 1),
    ]
    assert server.query("SELECT top -> 0 ->> 'item' FROM newest WHERE country = 'nl'") == [("6",)]


def test_a_batch_whose_transaction_was_stored_is_not_stored_again_after_a_kill(
    server: PostgresServer, tmp_path: Path
) -> None:
    """The place is the target's own: what is known here of it is lost with the process."""
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    for _ in range(2):
        delivery = view.deliver("log", lambda life: target(server, "log"), changelog=True)
        deliver_all(delivery)
    view.publish(0, [("nl", 8)])
    deliver_all(view.deliver("log", lambda life: target(server, "log"), changelog=True))
    assert server.query("SELECT operation, bytes FROM log ORDER BY change") == [
        ("insert", 5),
        ("retract", 5),
        ("update", 8),
    ]


def test_a_killed_server_is_told_and_gets_what_it_missed(server: PostgresServer, tmp_path: Path) -> None:
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    delivery = view.deliver("killed", lambda life: target(server, "killed"))
    delivery.start()
    try:
        wait_until(lambda: delivery.status()["state"] == UP_TO_DATE, "the first window is delivered")
        server.kill()
        view.publish(1, [("de", 7)])
        wait_until(lambda: delivery.status()["state"] == FAILING, "the outage is told")
        assert "PostgreSQL" in delivery.status()["error"]
        server.start()
        wait_until(lambda: delivery.status()["rows"] == 2, "the second window is delivered")
    finally:
        delivery.stop()
    assert [row[1] for row in server.query(SHOWN.format("killed"))] == ["nl", "de"]


def test_a_table_of_another_shape_and_a_wrong_address_are_named(server: PostgresServer, tmp_path: Path) -> None:
    server.query("CREATE TABLE narrow (window_start timestamptz, country text)")
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", 5)])
    delivery = view.deliver("narrow", lambda life: target(server, "narrow"))
    with pytest.raises(SinkError, match=r"table 'narrow' of PostgreSQL lacks the columns window_end timestamptz"):
        delivery.step()
    nowhere = f"postgresql://catchment@127.0.0.1:{free_port()}/postgres"
    with pytest.raises(SinkError, match="PostgreSQL: connection failed"):
        view.deliver("away", lambda life: target(server, "away", nowhere)).step()


def test_a_wrong_password_is_told_and_never_shown_and_the_right_one_is_found_in_its_file(
    server: PostgresServer, tmp_path: Path
) -> None:
    from catchment.sinks.postgres import PostgresTarget

    url = server.url_with_password("careful", "right-one")
    passwords = tmp_path / "pgpass"
    view = PublishedView(tmp_path / "view")
    view.publish(0, [("nl", 5)])

    def write(password: str) -> None:
        passwords.write_text(f"127.0.0.1:{server.port}:postgres:careful:{password}\n")
        passwords.chmod(0o600)

    def make(life: str) -> PlacedTarget:
        return PostgresTarget("careful", "careful", url, str(passwords))

    write("wrong-one")
    with pytest.raises(SinkError, match="password authentication failed") as told:
        view.deliver("careful", make).step()
    assert "wrong-one" not in str(told.value)
    write("right-one")
    deliver_all(view.deliver("careful", make))
    assert server.query("SELECT count(*) FROM careful") == [(1,)]


def test_a_batch_of_deletions_alone_makes_no_table(server: PostgresServer, tmp_path: Path) -> None:
    view = PublishedView(tmp_path)
    view.publish(0, [("nl", -5)])
    deliver_all(view.deliver("empty", lambda life: target(server, "empty")))
    assert server.query("SELECT to_regclass('empty')") == [(None,)]
    view.publish(0, [("nl", 5)])
    deliver_all(view.deliver("empty", lambda life: target(server, "empty")))
    assert [row[3] for row in server.query(SHOWN.format("empty"))] == [5]


def test_the_table_passes_the_check_of_targets(server: PostgresServer) -> None:
    columns = ("window_start", "country", "n", "bytes", "status", "revision")

    def read() -> list[dict[str, object]]:
        if server.query("SELECT to_regclass('checked')") == [(None,)]:
            return []
        return [
            dict(zip(columns, row, strict=True)) for row in server.query(f"SELECT {', '.join(columns)} FROM checked")
        ]

    check_target(lambda: target(server, "checked"), read)
