"""Streams whose records are sent to their sites, as the sites read them: files in a folder of their own."""

from __future__ import annotations

from dataclasses import replace

from catchment.project.config import Project
from catchment.query.sql.connectors import ReceivedConnector
from catchment.query.sql.statements import Stream


def as_landed(stream: Stream, project: Project) -> Stream:
    """Return a stream as it is read: from the files where its records land, if they are sent to its sites."""
    if not isinstance(stream.connector, ReceivedConnector):
        return stream
    path = project.landing_folder("{site}", stream.name).relative_to(project.folder)
    return replace(stream, connector=stream.connector.as_files(str(path)))
