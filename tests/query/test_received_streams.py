"""What a stream that is sent to its sites may declare, and what is refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.deploy.landed import as_landed
from catchment.errors import QueryError
from catchment.project.config import Project
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.sql.connectors import FilesConnector, HttpConnector, MqttConnector
from catchment.query.sql.parse import parse_sql

TOML = """
[project]
name = "received"
center = "center"
[sites.center]
[sites.eu]
http = "127.0.0.1:8420"
[sites.us]
{us}
[[links]]
from = "eu"
to = "center"
[[links]]
from = "us"
to = "center"
"""


def _load(folder: Path, options: str, us: str = "") -> Catalog:
    (folder / "queries").mkdir()
    (folder / "catchment.toml").write_text(TOML.format(us=us))
    declared = (
        f"CREATE STREAM hits (ts TIMESTAMP, topic STRING, n INT, at TIMESTAMP) WITH (event_time = 'ts', {options});"
    )
    (folder / "queries" / "q.sql").write_text(declared)
    return load_catalog(Project.load(folder))


def test_posted_streams_are_read_from_files_of_the_site(tmp_path: Path) -> None:
    catalog = _load(tmp_path, "connector = 'http', format = 'csv', delimiter = ';'", 'http = "127.0.0.1:8421"')
    stream = catalog.streams["hits"]
    assert stream.connector == HttpConnector("csv", ";")
    assert as_landed(stream, catalog.project).connector == FilesConnector(
        "state/sites/{site}/landing/hits", "csv", False, ";", removed_when_read=True
    )


def test_the_broker_of_a_site_may_have_its_name_and_a_port(tmp_path: Path) -> None:
    options = "connector = 'mqtt', broker = '{site}.example:1884', topic = 'a/#'"
    connector = _load(tmp_path, options).streams["hits"].connector
    assert isinstance(connector, MqttConnector)
    assert connector.address_at("eu") == ("eu.example", 1884)
    assert MqttConnector(broker="broker", topic="a").address_at("eu") == ("broker", 1883)


def test_a_marker_has_nothing_but_its_progress_its_source_and_what_the_connector_fills_in(tmp_path: Path) -> None:
    options = "connector = 'mqtt', broker = '{site}', topic = 'a', received_column = 'ts', topic_column = 'topic', "
    stream = _load(tmp_path, options + "source = 'topic', progress_column = 'at'").streams["hits"]
    assert stream.payload_columns == ("n",)
    landed = as_landed(stream, Project.load(tmp_path))
    assert landed.payload_columns == ("n",)
    assert landed.marker is not None
    assert landed.marker.progress == "at"
    assert parse_sql(stream.to_sql(), "q.sql") == (stream,)


@pytest.mark.parametrize("topic", ["'sensors/{site}/#'", "'$share/catchment/sensors/#'"])
def test_several_sites_read_topics_of_their_own_or_share_one(tmp_path: Path, topic: str) -> None:
    assert _load(tmp_path, f"connector = 'mqtt', broker = 'b', topic = {topic}").streams["hits"].sites == ("eu", "us")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("connector = 'http'", "posted to site 'us', which listens nowhere", "[sites.us]: http ="),
        ("connector = 'mqtt', broker = 'b', topic = 'a/#'", "would all read topic 'a/#'", "$share/catchment"),
        ("connector = 'mqtt', broker = 'b'", "topic", ""),
        (
            "connector = 'mqtt', broker = '{site}', topic = 'a', topic_column = 'n'",
            "the column 'n' that stream 'hits' adds to messages is of type INT",
            "n STRING",
        ),
        (
            "connector = 'mqtt', broker = '{site}', topic = 'a', format = 'csv', received_column = 'ts'",
            "in format 'csv'",
            "format = 'json'",
        ),
        ("connector = 'http', progress_column = 'n'", "the progress_column 'n' of stream 'hits' is of type INT", "ts"),
        ("connector = 'http', progress_column = 'ts'", "is its event time or its source", "column of its own"),
        ("connector = 'generator', progress_column = 'at'", "generator, which states no progress", "remove"),
        (
            "connector = 'kafka', brokers = 'b', topic = 't-{site}', progress_header = 'p'",
            "a progress_header and no progress_column",
            "progress_column =",
        ),
        ("connector = 'files', path = 'gs://lake/{site}/*.json'", "an address that is not read", "s3://lake"),
        (
            "connector = 'files', path = 's3://lake/{site}', growing = true",
            "is in an object store, and growing = true is for files on disk",
            "rclone",
        ),
        (
            "connector = 'replay', path = 's3://lake/{site}/a.json'",
            "is in an object store, and the connector 'replay' is for files on disk",
            "connector 'files'",
        ),
        ("connector = 'files', path = 'data/{site}', list_every = '1 s'", "no meaning for files on disk", "s3://lake"),
        ("connector = 'http', path = 'data'", "connector 'http', which has no option 'path'", "files"),
    ],
)
def test_what_cannot_be_received_is_refused(tmp_path: Path, options: str, message: str, hint: str) -> None:
    with pytest.raises(QueryError) as raised:
        _load(tmp_path, options)
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")
