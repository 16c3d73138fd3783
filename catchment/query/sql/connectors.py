"""Where the records of streams and the rows of tables come from: the connectors, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from catchment.project import option_kinds as kinds
from catchment.project.options import option, required, write_options

CSV_OPTIONS = ("header", "delimiter")


@dataclass(frozen=True)
class FilesConnector:
    """Records in files; `{site}` in the path stands for the site that reads."""

    path: str = field(
        metadata=required(
            kinds.path_of_site(),
            doc="where the files are, relative to the project folder or absolute; {site} stands for the site that "
            "reads, and a relative path that several sites read must have it",
        )
    )
    format: str = option(
        kinds.choice("json", "csv", "parquet"), "json", doc="of the files; json has one object per line"
    )
    header: bool = option(kinds.flag(), True, doc="whether CSV files begin with a line of names; for csv only")
    delimiter: str = option(kinds.one_character(), ",", doc="between the values of a CSV file; for csv only")
    kind: ClassVar[str] = "files"

    def to_options(self) -> dict[str, Any]:
        """Return the connector as it is written in WITH (...); `header` and `delimiter` are for CSV only."""
        options = write_options(self, defaults=True)
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


Connector = FilesConnector | ReplayConnector | GeneratorConnector

CONNECTORS: Mapping[str, type[FilesConnector | GeneratorConnector]] = MappingProxyType(
    {c.kind: c for c in (FilesConnector, ReplayConnector, GeneratorConnector)}
)
