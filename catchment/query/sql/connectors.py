"""Where the records of streams and the rows of tables come from: the connectors, and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from catchment.errors import QueryError
from catchment.project import option_kinds as kinds
from catchment.project.options import option, required, write_options
from catchment.query.instant_type import TIMESTAMP

CSV_OPTIONS = ("header", "delimiter")
STORE_OPTIONS = ("store_config", "list_every")  # have a meaning for objects of a store only
S3_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?")
STORE_CONFIG_DOC = (
    "how the object store is reached, one setting per line: endpoint, region, access_key_id, secret_access_key, "
    "session_token"
)
POSTGRES_URL = kinds.matching(
    r"postgres(ql)?://([^\s:@/]+@)?[^\s@]+", "an address such as 'postgresql://catchment@db:5432/shop'"
)
POSTGRES_URL_DOC = "the database, without a password: that comes from password_file, PGPASSFILE or PGPASSWORD"
POSTGRES_TABLE = kinds.matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", "a table, such as 'answers' or 'public.answers'")
POSTGRES_PASSWORD_DOC = "a file with host:port:database:user:password lines, which only its owner may read"
SCHEMA_FORMATS = ("avro", "protobuf")  # values that only a schema makes readable
KAFKA_METADATA: Mapping[str, pa.DataType] = MappingProxyType(
    {  # what a record of Kafka has beside its value
        "key": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": TIMESTAMP,
        "headers": pa.map_(pa.string(), pa.string()),
    }
)


@dataclass(frozen=True)
class FilesConnector:
    """Records in files; `{site}` in the path stands for the site that reads."""

    path: str = field(
        metadata=required(
            kinds.path_of_site(),
            doc="where the files are, relative to the project folder, absolute, or in an object store "
            "('s3://lake/hits/{site}'); {site} stands for the site that reads, and a path that several sites read must "
            "have it, unless it is absolute",
        )
    )
    format: str = option(
        kinds.choice("json", "csv", "parquet"), "json", doc="of the files; json has one object per line"
    )
    header: bool = option(kinds.flag(), True, doc="whether CSV files begin with a line of names; for csv only")
    delimiter: str = option(kinds.one_character(), ",", doc="between the values of a CSV file; for csv only")
    growing: bool = option(
        kinds.flag(),
        False,
        doc="whether lines are appended to files after they have appeared; then only complete lines are read, and the "
        "rest when it comes. For streams with connector files, in json or csv",
    )
    store_config: str | None = option(
        kinds.text("the path of a file of name = value lines"),
        None,
        doc=f"{STORE_CONFIG_DOC}; for streams of files in s3://",
        absent="what the environment says (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...)",
    )
    list_every_us: int = option(
        kinds.duration(positive=True),
        10_000_000,
        doc="how often the objects of an s3:// path are listed, which is a request per 1,000 of them",
    )
    removed_when_read: bool = field(
        default=False, kw_only=True
    )  # for files that a site has received itself: names never come again
    filled_columns: tuple[str, ...] = field(default=(), kw_only=True)  # that whoever received the records has added
    kind: ClassVar[str] = "files"

    def __post_init__(self) -> None:
        if "://" not in self.path:
            return
        if not S3_ADDRESS.fullmatch(self.path.replace("{site}", "site")):
            raise QueryError(
                f"the path {self.path!r} is an address that is not read",
                hint="objects are read from stores that speak S3, such as 's3://lake/hits/{site}/*.json'",
            )
        if self.kind != FilesConnector.kind or self.growing:
            what = f"the connector {self.kind!r}" if self.kind != FilesConnector.kind else "growing = true"
            raise QueryError(
                f"the path {self.path!r} is in an object store, and {what} is for files on disk",
                hint="read whole objects with connector 'files', or copy them into a folder, such as with rclone",
            )

    @property
    def is_in_store(self) -> bool:
        """Whether the files are objects of a store."""
        return "://" in self.path

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...); `header` and `delimiter` are for CSV only."""
        options = write_options(self, defaults=True)
        if not self.growing:
            del options["growing"]
        if not self.is_in_store:
            options = {name: value for name, value in options.items() if name not in STORE_OPTIONS}
        if self.format != "csv":
            options = {name: value for name, value in options.items() if name not in CSV_OPTIONS}
        return {"connector": self.kind, **options}


@dataclass(frozen=True)
class ReplayConnector(FilesConnector):
    """A log whose records are replayed in order of arrival, at their own pace times `speed`."""

    arrival: str | None = option(
        kinds.text("the name of a TIMESTAMP column"),
        None,
        doc="the TIMESTAMP column in whose order records are replayed",
        absent="the event time",
    )
    speed: float = option(kinds.number(), 1.0, doc="how many times faster than it happened")
    kind: ClassVar[str] = "replay"


@dataclass(frozen=True)
class GeneratorConnector:
    """Made-up records, the same ones for the same seed."""

    rows_per_s: float = option(kinds.number(), 1000.0, doc="records per second at each site")
    keys: int = option(kinds.integer(1), 100, doc="how many distinct keys there are")
    seed: int = option(kinds.integer(0), 0, doc="equal seeds give equal records")
    duration_us: int | None = option(
        kinds.duration(positive=True), None, doc="for how long records are made", absent="forever"
    )
    kind: ClassVar[str] = "generator"

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...)."""
        return {"connector": self.kind, **write_options(self, defaults=True)}


@dataclass(frozen=True)
class KafkaConnector:
    """The records of a Kafka topic; `{site}` in its name stands for the site that reads."""

    brokers: str = field(
        metadata=required(
            kinds.text("addresses such as 'kafka-1:9092,kafka-2:9092'"),
            doc="the brokers to ask first; {site} stands for the site that reads",
        )
    )
    topic: str = field(
        metadata=required(
            kinds.text("the name of a topic, such as 'requests'"),
            doc="the topic; {site} stands for the site that reads. Each site reads a topic or a cluster of its own",
        )
    )
    format: str = option(
        kinds.choice("json", "csv", *SCHEMA_FORMATS),
        "json",
        doc="of the values: one JSON object, CSV line, Avro record or Protobuf message each",
    )
    delimiter: str = option(kinds.one_character(), ",", doc="between the fields of a CSV value; for csv only")
    schema: str | None = option(
        kinds.text("the path of a schema, such as 'schemas/request.avsc'"),
        None,
        doc="the file with the schema of the values: of avro, or a set of descriptors for protobuf",
        absent="the registry has the schemas",
    )
    registry: str | None = option(
        kinds.matching(r"https?://\S+", "the address of a schema registry, such as 'http://registry:8081'"),
        None,
        doc="where schemas are, for values that begin with the number of theirs; for avro and protobuf",
    )
    message: str | None = option(
        kinds.text("the full name of a message, such as 'shop.Request'"),
        None,
        doc="the Protobuf message that values are; for protobuf only",
        absent="the only one of the schema file, or whatever values of a registry say they are",
    )
    start: str = option(
        kinds.matching(
            r"(?i:earliest|latest)|\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?",
            "'earliest', 'latest' or an instant such as '2026-01-31 14:00:00'",
        ),
        "earliest",
        doc="where the first run begins in the topic; later runs continue where the last one stopped",
    )
    client_config: str | None = option(
        kinds.text("the path of a file of name = value lines"),
        None,
        doc="settings of the Kafka client, such as security.protocol, sasl.username and sasl.password, one per line",
        absent="no encryption, no user",
    )
    key_column: str | None = option(
        kinds.text("the name of a column"), None, doc="the declared STRING column that takes the key of a record"
    )
    partition_column: str | None = option(
        kinds.text("the name of a column"),
        None,
        doc="the declared INT column that takes its partition; with source set to it, contracts follow each partition",
    )
    offset_column: str | None = option(
        kinds.text("the name of a column"), None, doc="the declared BIGINT column that takes its offset"
    )
    timestamp_column: str | None = option(
        kinds.text("the name of a column"),
        None,
        doc="the declared TIMESTAMP column that takes the time that Kafka has for it; it may be the event time",
    )
    headers_column: str | None = option(
        kinds.text("the name of a column"), None, doc="the declared MAP<STRING, STRING> column that takes its headers"
    )
    progress_header: str | None = option(
        kinds.text("the name of a header, such as 'progress'"),
        None,
        doc="the header with which a producer states its progress, an instant or milliseconds since 1970; it fills "
        "progress_column, and a record without a value is then a marker",
    )
    kind: ClassVar[str] = "kafka"

    @property
    def metadata_columns(self) -> Mapping[str, str]:
        """What is taken from a record beside its value -> the declared column that takes it."""
        chosen = {
            "key": self.key_column,
            "partition": self.partition_column,
            "offset": self.offset_column,
            "timestamp": self.timestamp_column,
            "headers": self.headers_column,
        }
        return {what: column for what, column in chosen.items() if column is not None}

    @property
    def filled_columns(self) -> tuple[str, ...]:
        """The declared columns that do not come from the value of a record."""
        return tuple(self.metadata_columns.values())

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...)."""
        options = write_options(self, defaults=True)
        if self.format != "csv":
            del options["delimiter"]
        return {"connector": self.kind, **options}


@dataclass(frozen=True)
class ReceivedConnector:
    """Records that are sent to a site, which keeps them in files until they are read."""

    format: str = option(kinds.choice("json", "csv"), "json", doc="of the records: one JSON object or CSV line each")
    delimiter: str = option(kinds.one_character(), ",", doc="between the fields of a CSV record; for csv only")
    max_waiting_bytes: int = option(
        kinds.size(),
        10**9,
        name="max_waiting",
        doc="of records that have arrived and are not read yet; beyond it no more are taken, and senders wait",
    )
    kind: ClassVar[str] = "received"

    def as_files(self, path: str) -> FilesConnector:
        """Return the files in which the records have landed, as a site reads them."""
        filled = self.filled_columns
        return FilesConnector(path, self.format, False, self.delimiter, removed_when_read=True, filled_columns=filled)

    @property
    def filled_columns(self) -> tuple[str, ...]:
        """The declared columns that do not come from the records themselves."""
        return ()

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...)."""
        options = write_options(self, defaults=True)
        if self.format != "csv":
            del options["delimiter"]
        return {"connector": self.kind, **options}


@dataclass(frozen=True)
class HttpConnector(ReceivedConnector):
    """Records that are posted to a site, one per line."""

    kind: ClassVar[str] = "http"


@dataclass(frozen=True)
class FeedConnector(ReceivedConnector):
    """The matches of a feed view, which the center's own cloud of feeds hands over."""

    view: str = field(
        kw_only=True,
        metadata=required(
            kinds.text("the name of a feed view"),
            doc="the feed view whose notices are the records; CREATE FEED VIEW declares such a stream by itself",
        ),
    )
    kind: ClassVar[str] = "feed"


MQTT_PORT = 1883


@dataclass(frozen=True)
class MqttConnector(ReceivedConnector):
    """The messages of MQTT topics, one record each; `{site}` stands for the site that subscribes."""

    broker: str = field(
        kw_only=True,
        metadata=required(
            kinds.matching(r"[^\s/]+", "the address of a broker, such as 'broker:1883'"),
            doc="where the broker is; {site} stands for the site that subscribes",
        ),
    )
    topic: str = field(
        kw_only=True,
        metadata=required(
            kinds.text("a topic or a pattern of topics, such as 'sensors/+/temperature'"),
            doc="what is subscribed to, with + and #; {site} stands for the site. Several sites share one topic by "
            "'$share/GROUP/TOPIC'",
        ),
    )
    client_config: str | None = option(
        kinds.text("the path of a file of name = value lines"),
        None,
        doc="settings of the client, one per line: username, password, tls, ca_file, cert_file, key_file",
        absent="no encryption, no user",
    )
    topic_column: str | None = option(
        kinds.text("the name of a column"),
        None,
        doc="the declared STRING column that takes the topic of a message; for json only",
    )
    received_column: str | None = option(
        kinds.text("the name of a column"),
        None,
        doc="the declared TIMESTAMP column that takes when the site received it; it may be the event time; for json "
        "only",
    )
    kind: ClassVar[str] = "mqtt"

    @property
    def added_columns(self) -> Mapping[str, pa.DataType]:
        """The declared columns that do not come from the message itself, and their types."""
        chosen = {self.topic_column: pa.string(), self.received_column: TIMESTAMP}
        return {name: type_ for name, type_ in chosen.items() if name is not None}

    @property
    def filled_columns(self) -> tuple[str, ...]:
        return tuple(self.added_columns)

    def address_at(self, site: str) -> tuple[str, int]:
        """Return the host and the port of the broker of a site."""
        host, colon, port = self.broker.replace("{site}", site).rpartition(":")
        return (host, int(port)) if colon and port.isdigit() else (self.broker.replace("{site}", site), MQTT_PORT)


@dataclass(frozen=True)
class PythonConnector:
    """Records that a class of the project's own reads."""

    reader: str = field(
        metadata=required(
            kinds.matching(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "a module and a class, such as 'weather:Stations'"),
            doc="a class in a module of the project folder, made with the argument",
        )
    )
    argument: str = option(
        kinds.text("a text"),
        "",
        doc="given to the class when it is made, such as an address; {site} stands for the site that reads",
    )
    kind: ClassVar[str] = "python"

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...)."""
        return {"connector": self.kind, **write_options(self)}  # an argument that is not given is not written


@dataclass(frozen=True)
class PostgresConnector:
    """The rows of a table, or of a view, of PostgreSQL."""

    url: str = field(metadata=required(POSTGRES_URL, doc=POSTGRES_URL_DOC))
    table: str = field(metadata=required(POSTGRES_TABLE, doc="the table, or view, that has the declared columns"))
    password_file: str | None = option(
        kinds.text("the path of a file"), None, doc=POSTGRES_PASSWORD_DOC, absent="what the client library finds"
    )
    kind: ClassVar[str] = "postgres"

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...)."""
        return {"connector": self.kind, **write_options(self)}


Connector = FilesConnector | GeneratorConnector | KafkaConnector | ReceivedConnector | PythonConnector

_CONNECTORS: tuple[type[Connector], ...] = (
    FilesConnector,
    ReplayConnector,
    GeneratorConnector,
    KafkaConnector,
    HttpConnector,
    MqttConnector,
    FeedConnector,
    PythonConnector,
)
CONNECTORS: Mapping[str, type[Connector]] = MappingProxyType({c.kind: c for c in _CONNECTORS})

TableConnector = FilesConnector | PostgresConnector
TABLE_CONNECTORS: Mapping[str, type[TableConnector]] = MappingProxyType(
    {c.kind: c for c in (FilesConnector, PostgresConnector)}
)
