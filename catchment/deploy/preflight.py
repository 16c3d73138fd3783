"""Checks that cost nothing and find what would otherwise fail only after Spark has started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from catchment.deploy.deployment import Deployment
from catchment.errors import ConfigError
from catchment.query.sql.connectors import FilesConnector, ReplayConnector
from catchment.query.sql.statements import Stream


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
