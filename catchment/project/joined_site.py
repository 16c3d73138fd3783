"""The folder of a site that has joined a deployment: `site.toml` instead of `catchment.toml`.

The machine of such a site knows its own name, where the center is, its keys, and where its own sources are. Everything
else (sites, links, streams, views, what is deployed) comes from the center and is kept in the record of what is
deployed, one file that is replaced whole. So the folder is a project like any other as soon as the center was heard
once, and the site starts and runs without the center.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from catchment.errors import ConfigError
from catchment.project import option_kinds as kinds
from catchment.project.option_kinds import join_address
from catchment.project.options import did_you_mean, option, options_of, read_options, required
from catchment.project.toml_file import TomlFile
from catchment.storage.files import read_record

SITE_FILE = "site.toml"
DEPLOYMENT_FILE = "deployment.json"  # in a state folder: the record of what is deployed
DECLARED = "declared"  # in the record of a site that has joined: what the center has told beside what is deployed
OWN_TABLES = ("spark", "limits", "traces")  # tables in which a site may differ from the center
TABLES = ("site", "sources", "security", *OWN_TABLES)


@dataclass(frozen=True)
class JoinedSite:
    """What the machine of a site knows by itself, as read from its `site.toml`."""

    name: str = field(metadata=required(kinds.site_name(), doc="the name of this site", example="eu"))
    center: tuple[str, int] = field(
        metadata=required(kinds.address(), doc="where the center is", example=("center.example.org", 9410))
    )
    state: str = option(
        kinds.text("a folder, relative to that of site.toml or absolute"),
        "state",
        doc="folder for everything durable: what the center has told, journals, outboxes, history",
    )
    listen: tuple[str, int] | None = option(
        kinds.address(),
        None,
        doc="where its inbox listens, if other sites send through this one",
        absent="as the center has declared",
        example=("0.0.0.0", 9410),
    )
    http: tuple[str, int] | None = option(
        kinds.address(),
        None,
        doc="where it receives the records of streams with connector 'http'",
        absent="as the center has declared",
        example=("0.0.0.0", 8420),
    )
    folder: Path = Path()
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    file: TomlFile = field(default_factory=lambda: TomlFile(Path(SITE_FILE), "", {}), repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path) -> JoinedSite:
        """Read the `site.toml` of a folder."""
        file = TomlFile.load(folder / SITE_FILE)
        for name in file.tables:
            if name not in TABLES:
                raise ConfigError(
                    f"there is no table [{name}]", where=file.at(None, name), hint=did_you_mean(name, TABLES)
                )
        given = file.tables.get("site", {})
        read = read_options(given, options_of(cls), what="[site]", where=lambda key: file.at("site", key))
        sources = file.tables.get("sources", {})
        for name, values in sources.items():
            if not isinstance(values, dict):
                hint = f"write it as a table: [sources.{name}]"
                raise ConfigError(f"sources.{name} is {values!r}", where=file.at("sources", name), hint=hint)
        return cls(**read, folder=folder, sources=MappingProxyType(sources), file=file)

    @property
    def state_folder(self) -> Path:
        """Where everything durable is kept."""
        return self.folder / self.state

    @property
    def center_address(self) -> str:
        """host:port of the center."""
        return join_address(*self.center)

    def read_declared(self) -> Mapping[str, Any]:
        """Return what the center has told: `tables` of its catchment.toml and `statements` in SQL."""
        record = read_record(self.state_folder / DEPLOYMENT_FILE)
        if record is None or DECLARED not in record:
            raise ConfigError(
                f"site {self.name!r} has not heard from its center at {self.center_address} yet",
                where=str(self.state_folder),
                hint=f"start it once while the center can be reached: catchment site -p {self.folder}",
            )
        declared: Mapping[str, Any] = record[DECLARED]
        return declared

    def merge_tables(self, declared: Mapping[str, Any]) -> TomlFile:
        """Return the tables of the center's project with those of this machine in their place."""
        sites = {name: dict(values) for name, values in declared["sites"].items()}
        center = declared["project"]["center"]
        sites[center] = {**sites[center], "address": self.center_address}
        for setting, own_address in (("listen", self.listen), ("http", self.http)):
            if self.name in sites and own_address is not None:
                sites[self.name][setting] = join_address(*own_address)
        own = {name: self.file.tables[name] for name in OWN_TABLES if name in self.file.tables}
        tables = {
            **declared,
            **own,
            "project": {**declared["project"], "state": self.state},
            "sites": sites,
            "security": self.file.tables.get("security", {}),
        }
        return TomlFile(self.file.path, self.file.text, tables)
