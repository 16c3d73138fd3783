"""Answers in Delta and Iceberg tables, on disk and in a real object store, read back by what others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from catchment.center.results.read import read_results
from catchment.center.statuses import FINAL, ON_TIME
from catchment.errors import ConfigError, QueryError
from catchment.query.sql.parse import parse_sql
from catchment.query.sql.statements import DeclaredSink
from catchment.records.object_store import S3Settings
from catchment.sinks.declared import make_target
from catchment.sinks.delivery import FAILING, UP_TO_DATE
from catchment.sinks.delta import DeltaTarget
from catchment.sinks.target import SinkError, Target
from catchment.testing.check_target import VIEW, PublishedView, check_target, deliver_all
from tests.worlds.s3_server import BUCKET, MISSING, REGION, S3Server, has_server
from tests.worlds.waiting import wait_until

polars = pytest.importorskip("polars")
iceberg = pytest.importorskip("pyiceberg")
Rows = Any  # a list of rows, as the libraries give them
NAME = "lake"


class Lake:
    """One place for tables: how a target of it is made, and how its rows are read by three programs."""

    def __init__(self, kind: str, folder: Path, server: S3Server | None) -> None:
        self.kind = kind
        self.server = server
        root = f"s3://{BUCKET}/{folder.name}" if server is not None else str(folder)
        self.settings = None
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": root}
        if server is not None:
            self.settings = S3Settings(server.endpoint, REGION, server.access_key, server.secret_key)
            self.catalog |= {
                "s3.endpoint": server.endpoint,
                "s3.region": REGION,
                "s3.access-key-id": server.access_key,
                "s3.secret-access-key": server.secret_key,
            }
        self.path = f"{root}/answers"

    def target(self, life: str = "checked") -> Target:
        if self.kind == "delta":
            return DeltaTarget(NAME, self.path, life, self.settings)
        from catchment.sinks.iceberg import IcebergTarget

        return IcebergTarget(NAME, "shop.answers", self.catalog)

    def table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.catalog).load_table("shop.answers")

    @property
    def options(self) -> dict[str, str]:
        return {} if self.settings is None else self.settings.delta_options()

    def own(self) -> Rows:
        """Read by the library of the format."""
        if self.kind == "delta":
            return DeltaTable(self.path, storage_options=self.options).to_pyarrow_table().to_pylist()
        return self.table().scan().to_arrow().to_pylist()

    def with_polars(self) -> Rows:
        if self.kind == "delta":
            keys = {name: value for name, value in self.options.items() if name.startswith("AWS_")}
            return polars.read_delta(self.path, storage_options=keys or None).to_dicts()
        return polars.scan_iceberg(self.table(), reader_override="pyiceberg").collect().to_dicts()

    def with_duckdb(self) -> Rows:
        """Read by DuckDB over Arrow; its own extensions for lakes are not on PyPI."""
        if self.kind == "delta":
            stored: Any = DeltaTable(self.path, storage_options=self.options).to_pyarrow_dataset()
        else:
            stored = self.table().scan().to_arrow()
        with duckdb.connect() as database:
            database.register("answers", stored)
            return database.sql("SELECT * FROM answers").to_arrow_table().to_pylist()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    started = S3Server().start()
    started.make_bucket()
    yield started
    started.remove()


NEEDS_STORE = (pytest.mark.integration, pytest.mark.skipif(not has_server(), reason=MISSING))
IN_STORE = [pytest.param(kind, marks=NEEDS_STORE, id=f"{kind}-s3") for kind in ("delta", "iceberg")]


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path, None)


def test_a_table_has_what_the_view_shows_whatever_fails_in_between(lake: Lake) -> None:
    check_target(lake.target, lake.own)


def test_every_program_reads_the_rows_of_the_view(lake: Lake, tmp_path: Path) -> None:
    _read_with_every_program(lake, tmp_path)


@pytest.mark.parametrize("kind", IN_STORE)
def test_every_program_reads_them_in_an_object_store(kind: str, server: S3Server, tmp_path: Path) -> None:
    _read_with_every_program(Lake(kind, tmp_path, server), tmp_path)


def _read_with_every_program(lake: Lake, tmp_path: Path) -> None:
    view = PublishedView(tmp_path / "state")
    view.publish(0, [("nl", 5), ("de", 3), (None, 1)], ON_TIME)
    deliver_all(view.deliver(NAME, lake.target))
    view.publish(0, [("nl", 6), ("de", -3)], FINAL)
    view.publish(1, [(None, 2)])
    deliver_all(view.deliver(NAME, lake.target))
    columns = ("window_start", "country", "n", "bytes", "status", "revision", "coverage")
    shown = sorted(([row[c] for c in columns] for row in read_results(view.state, VIEW).to_pylist()), key=repr)
    assert len(shown) == 3
    for read in (lake.own, lake.with_polars, lake.with_duckdb):
        rows = [[_in_utc(row[c]) for c in columns] for row in read()]
        assert sorted(rows, key=repr) == sorted([list(map(_in_utc, row)) for row in shown], key=repr), read.__name__


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def test_a_changelog_has_every_change_once_through_kills(lake: Lake, tmp_path: Path) -> None:
    """The place is the table's own: what is known here of it is lost with the process."""
    view = PublishedView(tmp_path / "state")
    steps: list[tuple[int, list[tuple[str | None, int]], str]] = [
        (0, [("nl", 5)], ON_TIME),
        (0, [("nl", 7), ("de", 1)], FINAL),
        (1, [("nl", -1)], ON_TIME),
    ]
    for minute, requests, status in steps:
        view.publish(minute, requests, status)
        for _ in range(2):
            deliver_all(view.deliver(NAME, lake.target, changelog=True))
    told = sorted((row["operation"], row["country"], row["bytes"]) for row in lake.own())
    assert told == [("insert", "de", 1), ("insert", "nl", 5), ("retract", "nl", 5), ("update", "nl", 7)]


def test_a_table_of_others_is_refused_and_told_and_nothing_of_it_is_changed(lake: Lake, tmp_path: Path) -> None:
    view = PublishedView(tmp_path / "state")
    view.publish(0, [("nl", 5)])
    theirs = pa.table({"window_start": ["monday"], "country": [7]})
    if lake.kind == "delta":
        write_deltalake(lake.path, theirs, storage_options=lake.options or None)
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("default", **lake.catalog)
        catalog.create_namespace("shop")
        catalog.create_table("shop.answers", schema=theirs.schema).append(theirs)
    with pytest.raises(SinkError) as raised:
        deliver_all(view.deliver(NAME, lake.target))
    assert "cannot be written" in raised.value.message
    assert "columns of the table" in (raised.value.hint or "")
    assert lake.own() == theirs.to_pylist()


@pytest.mark.parametrize("kind", IN_STORE)
def test_a_store_that_is_away_is_waited_for_and_wrong_keys_are_told_without_them(
    server: S3Server, kind: str, tmp_path: Path
) -> None:
    lake = Lake(kind, tmp_path, server)
    view = PublishedView(tmp_path / "state")
    view.publish(0, [("nl", 5)])
    delivery = view.deliver(NAME, lake.target)
    server.stop()
    delivery.start()
    try:
        wait_until(lambda: delivery.status()["state"] == FAILING, "the store is missed")
        assert "cannot be written" in delivery.status()["error"]
        view.publish(1, [("de", 2)])
        server.start()
        wait_until(lambda: delivery.status()["state"] == UP_TO_DATE and len(lake.own()) == 2, "all is delivered")
    finally:
        delivery.stop()
    server.check_keys()
    try:
        wrong = Lake(kind, tmp_path, server)
        secret = "wrong-" + "secret"
        if wrong.settings is not None:
            wrong.settings = S3Settings(server.endpoint, REGION, server.access_key, secret)
        wrong.catalog["s3.secret-access-key"] = secret
        view.publish(2, [("de", 2)])
        with pytest.raises(SinkError) as raised:
            deliver_all(view.deliver(NAME, wrong.target))
        told = str(raised.value)
        assert "403" in told or "ACCESS" in told.upper() or "privileges" in told
        assert secret not in told
        assert server.access_key not in told
        deliver_all(view.deliver(NAME, lake.target))
        assert len(lake.own()) == 3
    finally:
        server.check_keys(False)


def sink_of(options: str) -> DeclaredSink:
    (declared,) = parse_sql(f"CREATE SINK lake FROM traffic WITH ({options})", "q.sql")
    assert isinstance(declared, DeclaredSink)
    assert parse_sql(declared.to_sql(), "q.sql") == (declared,)
    return declared


def test_sinks_are_declared_with_paths_of_the_project_and_keys_in_files(tmp_path: Path) -> None:
    view = PublishedView(tmp_path / "state")
    view.publish(0, [("nl", 5)])
    here = sink_of("connector = 'delta', path = 'tables/traffic'")
    deliver_all(view.deliver("lake", lambda life: make_target(here, tmp_path, life)))
    assert DeltaTable(tmp_path / "tables" / "traffic").to_pyarrow_table()["bytes"].to_pylist() == [5]
    (tmp_path / "catalog.properties").write_text(
        f"type = sql\nuri = sqlite:///{tmp_path}/catalog.db\nwarehouse = {tmp_path}/warehouse\n"
    )
    there = sink_of("connector = 'iceberg', table = 'shop.traffic', catalog_config = 'catalog.properties'")
    deliver_all(view.deliver("lake", lambda life: make_target(there, tmp_path, life)))
    (tmp_path / "s3.properties").write_text("endpoint = http://s3:9000\nsecret = x\n")
    away = sink_of("connector = 'delta', path = 's3://lake/traffic', store_config = 's3.properties'")
    with pytest.raises(ConfigError, match="no setting 'secret'"):
        make_target(away, tmp_path, "life")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("connector = 'delta'", "path"),
        ("connector = 'iceberg', table = 'traffic', catalog_config = 'c'", "a namespace and a table"),
        ("connector = 'iceberg', table = 'shop.traffic'", "catalog_config"),
    ],
)
def test_what_is_missing_or_cannot_be_is_named(options: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        sink_of(options)
