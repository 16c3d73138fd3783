"""Where else the answers of a view go: the connectors of sinks, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from catchment.project import option_kinds as kinds
from catchment.project.options import option, required, write_options
from catchment.query.sql.connectors import (
    POSTGRES_PASSWORD_DOC,
    POSTGRES_TABLE,
    POSTGRES_URL,
    POSTGRES_URL_DOC,
    STORE_CONFIG_DOC,
)

UPSERT, CHANGELOG = "upsert", "changelog"


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """What every sink has."""

    changes: str = option(
        kinds.choice(UPSERT, CHANGELOG),
        UPSERT,
        doc="upsert: the newest row per window and key replaces the one before; changelog: every revision of every "
        "row, with what it retracts",
    )
    kind: ClassVar[str]

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...)."""
        return {"connector": self.kind, **write_options(self)}


@dataclass(frozen=True)
class KafkaSink(SinkOptions):
    """A topic of Kafka: one JSON message per row, keyed by window and group."""

    brokers: str = field(
        metadata=required(kinds.text("addresses such as 'kafka-1:9092,kafka-2:9092'"), doc="the brokers to ask first")
    )
    topic: str = field(
        metadata=required(kinds.text("the name of a topic, such as 'answers'"), doc="the topic, which must exist")
    )
    client_config: str | None = option(
        kinds.text("the path of a file of name = value lines"),
        None,
        doc="settings of the Kafka client, such as security.protocol, sasl.username and sasl.password, one per line",
        absent="no encryption, no user",
    )
    kind: ClassVar[str] = "kafka"


@dataclass(frozen=True)
class PostgresSink(SinkOptions):
    """A table of PostgreSQL."""

    url: str = field(metadata=required(POSTGRES_URL, doc=POSTGRES_URL_DOC))
    table: str = field(metadata=required(POSTGRES_TABLE, doc="the table; it is made if it is not there"))
    password_file: str | None = option(
        kinds.text("the path of a file"), None, doc=POSTGRES_PASSWORD_DOC, absent="what the client library finds"
    )
    kind: ClassVar[str] = "postgres"


@dataclass(frozen=True)
class DeltaSink(SinkOptions):
    """A Delta table in a folder or in an object store."""

    path: str = field(
        metadata=required(
            kinds.text("a folder, or an address such as 's3://lake/answers/traffic'"),
            doc="where the table is, relative to the project folder, absolute, or in an object store that speaks S3",
        )
    )
    store_config: str | None = option(
        kinds.text("the path of a file of name = value lines"),
        None,
        doc=STORE_CONFIG_DOC,
        absent="what the environment says (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...)",
    )
    kind: ClassVar[str] = "delta"


@dataclass(frozen=True)
class IcebergSink(SinkOptions):
    """An Iceberg table of a catalog."""

    table: str = field(
        metadata=required(
            kinds.matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", "a namespace and a table, such as 'shop.traffic'"),
            doc="the table; it and its namespace are made if they are not there",
        )
    )
    catalog_config: str = field(
        metadata=required(
            kinds.text("the path of a file of name = value lines"),
            doc="the catalog, in the names of pyiceberg, one setting per line: type, uri, warehouse, s3.endpoint, "
            "s3.access-key-id, s3.secret-access-key, ...",
        )
    )
    kind: ClassVar[str] = "iceberg"


@dataclass(frozen=True)
class PythonSink(SinkOptions):
    """A class of the project's own."""

    target: str = field(
        metadata=required(
            kinds.matching(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "a module and a class, such as 'webhook:Webhook'"),
            doc="a class in a module of the project folder, made with the argument",
        )
    )
    argument: str = option(kinds.text("a text"), "", doc="given to the class when it is made, such as an address")
    kind: ClassVar[str] = "python"


SinkConnector = KafkaSink | PostgresSink | DeltaSink | IcebergSink | PythonSink

_SINKS: tuple[type[SinkConnector], ...] = (KafkaSink, PostgresSink, DeltaSink, IcebergSink, PythonSink)
SINK_CONNECTORS: Mapping[str, type[SinkConnector]] = MappingProxyType({c.kind: c for c in _SINKS})
