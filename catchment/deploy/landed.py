"""Streams whose records are sent to where they are read: files in a folder of the project's own."""

from __future__ import annotations

from dataclasses import replace

from catchment.project.config import Project
from catchment.query.sql.connectors import FilesConnector, ReceivedConnector
from catchment.query.sql.statements import Stream


def as_landed(stream: Stream, project: Project) -> Stream:
    """Return a stream as it is read: from the files where its records land, if they are sent to its sites."""
    if not isinstance(stream.connector, ReceivedConnector):
        return stream
    path = project.landing_folder("{site}", stream.name).relative_to(project.folder)
    return replace(stream, connector=stream.connector.as_files(str(path)))


def as_arrived(stream: Stream, project: Project) -> Stream:
    """Return a stream of a light site as the site that evaluates it reads it: from the files where records arrive.

    What a light site cannot send is left as it is: it is refused before anything runs, and plans need not run.
    """
    connector = stream.connector
    if not isinstance(connector, FilesConnector | ReceivedConnector) or connector.format == "parquet":
        return stream
    path = project.arrived_folder("{site}", stream.name).relative_to(project.folder)
    files = FilesConnector(
        str(path),
        connector.format,
        False,
        connector.delimiter,
        removed_when_read=True,
        filled_columns=connector.filled_columns,
    )
    return replace(stream, connector=files)
