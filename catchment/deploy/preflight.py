"""Checks that cost nothing and find what would otherwise fail only after Spark has started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.errors import ConfigError
from catchment.query.sql.connectors import (
    FilesConnector,
    GeneratorConnector,
    KafkaConnector,
    PostgresConnector,
    ReplayConnector,
)
from catchment.query.sql.sink_connectors import DeltaSink, IcebergSink, KafkaSink, PostgresSink
from catchment.query.sql.statements import DeclaredSink, Stream
from catchment.records.client_config import check_password_file, read_client_config
from catchment.records.object_store import S3_PREFIX, S3Settings


def check_sources(deployment: Deployment, sites: Sequence[str]) -> None:
    """Check that what the streams of these sites read is there, and so are the tables that they look up."""
    base = deployment.project.folder
    for site in sites:
        for stream in deployment.declared_at(site):
            _check_stream(stream, site, base)
    for table in deployment.catalog.tables.values() if sites else ():
        if isinstance(table.connector, FilesConnector) and not (path := base / table.connector.path).exists():
            raise ConfigError(
                f"the table {table.name!r} has no data at {path}",
                where=table.where,
                hint="the path is relative to the project folder",
            )
        if isinstance(table.connector, PostgresConnector) and table.connector.password_file:
            check_password_file(str(base / table.connector.password_file))


def name_what_is_not_asked(deployment: Deployment, sites: Sequence[str]) -> list[str]:
    """Name the streams and tables of these sites that are elsewhere, which `check_sources` does not look at."""
    read = [stream for site in sites for stream in deployment.declared_at(site)]
    tables = deployment.catalog.tables.values() if sites else ()
    kinds = {declared.name: declared.connector for declared in (*read, *tables)}
    return [f"{name} ({c.kind})" for name, c in kinds.items() if not _is_here(c)]


def _is_here(connector: object) -> bool:
    """Return whether records come from the disk of a site, or from the site itself."""
    return isinstance(connector, GeneratorConnector) or (
        isinstance(connector, FilesConnector) and not connector.is_in_store
    )


def check_sinks(deployment: Deployment) -> Sequence[str]:
    """Check that the files that sinks name for their settings and passwords can be used; return the sinks' names."""
    for sink in deployment.catalog.sinks.values():
        try:
            _check_sink(sink, deployment.project.folder)
        except ConfigError as wrong:
            where = wrong.where or f"sink {sink.name!r}"
            raise ConfigError(wrong.message, where=where, hint=wrong.hint) from wrong
    return list(deployment.catalog.sinks)


def _check_sink(sink: DeclaredSink, base: Path) -> None:
    match sink.connector:
        case KafkaSink(client_config=str(path)):
            read_client_config(str(base / path))
        case PostgresSink(password_file=str(path)):
            check_password_file(str(base / path))
        case DeltaSink(path=table, store_config=str(path)) if table.startswith(S3_PREFIX):
            S3Settings.read(str(base / path))
        case IcebergSink(catalog_config=path):
            read_client_config(str(base / path))


def _check_stream(stream: Stream, site: str, base: Path) -> None:
    connector = stream.connector
    if isinstance(connector, ReplayConnector):
        path = base / connector.path.replace("{site}", site)
        if not path.exists() and "*" not in path.name:
            raise ConfigError(
                f"stream {stream.name!r} replays {path} at site {site!r}, which does not exist",
                where=stream.where,
                hint="the path is relative to the project folder",
            )
    elif isinstance(connector, KafkaConnector):
        read_client_config(str(base / connector.client_config) if connector.client_config else "")
    elif isinstance(connector, FilesConnector) and connector.is_in_store:
        S3Settings.read(str(base / connector.store_config) if connector.store_config else "")
    elif isinstance(connector, FilesConnector):
        folder = watched_folder(base / connector.path.replace("{site}", site))
        if not folder.is_dir():
            raise ConfigError(
                f"stream {stream.name!r} reads files from {folder} at site {site!r}, and there is no such folder",
                where=stream.where,
                hint="make it; files may come later",
            )


def watched_folder(path: Path) -> Path:
    """Return the folder that a path of files means: the path itself, or that of the file or pattern that it names."""
    names_files = not path.is_dir() and (bool(path.suffix) or "*" in path.name)
    return path.parent if names_files else path
