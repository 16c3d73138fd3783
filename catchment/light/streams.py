"""The streams of a light site: what it can read without Spark, and the record by which its process knows them.

The process of a light site does not read SQL: that would take more memory than all of its work. Whoever starts it reads
the project, and writes down what there is to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.errors import ConfigError
from catchment.project.options import options_of, read_options
from catchment.query.marker_form import MarkerForm
from catchment.query.sql.connectors import CONNECTORS, FilesConnector, ReceivedConnector, ReplayConnector
from catchment.storage.files import make_folder, read_record, write_record

if TYPE_CHECKING:
    from catchment.query.sql.statements import Stream

STREAMS_FILE = "streams.json"  # in the folder of a light site: what its process reads

LightConnector = FilesConnector | ReceivedConnector


@dataclass(frozen=True)
class LightStream:
    """A stream as a light site knows it: where its records come from, and nothing of what they mean."""

    name: str
    connector: LightConnector
    marker: MarkerForm | None = None  # how its sources state their progress, if they may


def light_streams(site: str, declared: Iterable[Stream]) -> tuple[LightStream, ...]:
    """Return the declared streams of a light site; one that it cannot read is refused."""
    return tuple(_light_stream(site, stream) for stream in declared)


def _light_stream(site: str, stream: Stream) -> LightStream:
    connector = stream.connector
    if isinstance(connector, ReplayConnector) or not isinstance(connector, LightConnector):
        raise _refusal(site, stream, f"has the connector {connector.kind!r}", "files, http and mqtt")
    if isinstance(connector, FilesConnector) and connector.is_in_store:
        raise _refusal(site, stream, "reads objects of a store", "files on its disk")
    if connector.format == "parquet":
        raise _refusal(site, stream, "reads Parquet files", "lines of JSON or CSV")
    if isinstance(connector, FilesConnector) and connector.format == "csv" and connector.header:
        raise _refusal(site, stream, "reads CSV files with a line of names", "CSV with header = false, or JSON lines")
    return LightStream(stream.name, connector, stream.marker)


def _refusal(site: str, stream: Stream, found: str, possible: str) -> ConfigError:
    return ConfigError(
        f"stream {stream.name!r} {found}, and is born at the light site {site!r}, which can read {possible}",
        where=stream.where,
        hint=f"let the site compute: leave out compute = false in [sites.{site}]; or bring the records in another way",
    )


def write_streams(folder: Path, streams: Sequence[LightStream]) -> None:
    """Write down, for the process of a light site, what it reads."""
    make_folder(folder)
    markers = {s.name: s.marker.to_record() for s in streams if s.marker is not None}
    record = {"streams": {s.name: s.connector.to_options() for s in streams}, "markers": markers}
    write_record(folder / STREAMS_FILE, record)


def read_streams(folder: Path) -> tuple[LightStream, ...]:
    """Return what the process of a light site reads."""
    record = read_record(folder / STREAMS_FILE)
    if record is None:
        raise ConfigError(
            f"there is no {STREAMS_FILE} in {folder}",
            hint="a light site is started with: catchment site NAME -p PROJECT",
        )
    markers = {name: MarkerForm.from_record(form) for name, form in record.get("markers", {}).items()}
    declared = record["streams"].items()
    return tuple(LightStream(name, _read_connector(name, given), markers.get(name)) for name, given in declared)


def _read_connector(stream: str, options: dict[str, Any]) -> LightConnector:
    given = dict(options)
    kind = CONNECTORS[given.pop("connector")]
    read = read_options(given, options_of(kind), what=f"stream {stream}", where=lambda key: STREAMS_FILE)
    connector = kind(**read)
    assert isinstance(connector, LightConnector), "only streams that a light site can read are written down"
    return connector
