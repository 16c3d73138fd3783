"""The project folder: `catchment.toml` as frozen, checked dataclasses.

A project that exists is valid: names are safe as folder names, links join declared sites, the center is one
of them. Every mistake is a ConfigError that names the file, the line, what was found and what is possible.
The settings, with their defaults, are described in `template.toml`, which is the manual of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from catchment.errors import ConfigError
from catchment.project import options as opt
from catchment.project.options import Option, did_you_mean, read_options
from catchment.project.toml_file import TomlFile
from catchment.timeline import SECOND_US

__all__ = [
    "Defaults",
    "Link",
    "Project",
    "Security",
    "Site",
    "SparkConfig",
    "template",
]

PROJECT_FILE = "catchment.toml"
QUERIES_FOLDER = "queries"

PROJECT = (
    Option("name", opt.site_name(), required=True),
    Option("center", opt.site_name(), required=True),
    Option("state", opt.text("a folder, relative to the project's or absolute"), "state"),
)
SITE = (
    Option("spark_master", opt.text("a Spark master such as 'local[2]' or 'spark://host:7077'")),
    Option("listen", opt.address()),
    Option("compute", opt.flag(), True),
)
LINK = (
    Option("from", opt.site_name(), required=True),
    Option("to", opt.site_name(), required=True),
    Option("bandwidth", opt.bandwidth()),
    Option("latency", opt.duration(), 0),
    Option("outbox_max", opt.size(), 10**9),
)
SPARK = (
    Option("master", opt.text("a Spark master such as 'local[*]'"), "local[*]"),
    Option("memory", opt.matching(r"[0-9]+[kmgKMG]", "an amount of memory such as '2g' or '512m'"), "1g"),
    Option("ui", opt.flag(), False),
    Option("settings", opt.OptionKind("a table of Spark settings", dict), MappingProxyType({})),
)
SECURITY = tuple(Option(name, opt.text("the path of a file")) for name in ("tls_cert", "tls_key", "tls_ca", "tokens"))
DEFAULTS = (
    Option("trigger", opt.duration(positive=True), SECOND_US // 2),
    Option("slack", opt.duration(), 0),
    Option("repair_horizon", opt.duration(), 3600 * SECOND_US),
    Option("repair_spread", opt.duration(), 5 * SECOND_US),
    Option("repair_after", opt.duration(), 10 * SECOND_US),
    Option("max_jump", opt.duration(positive=True), 86400 * SECOND_US),
    Option("freshness", opt.duration(none=True), 60 * SECOND_US),
    Option("relay_wait", opt.duration(), 10 * SECOND_US),
    Option("policy", opt.policy(), "spillway"),
    Option("history", opt.flag(), True),
    Option("sharing", opt.choice("none", "strict", "full", "max"), "full"),
    Option("reoptimize", opt.flag(), True),
)
TABLES = ("project", "sites", "links", "spark", "security", "defaults")


@dataclass(frozen=True)
class Site:
    """A place with a Spark runtime; `listen` is where its inbox waits, (host, port).

    One that does not `compute` only has streams: plans put no operator there.
    """

    name: str
    spark_master: str | None = None
    listen: tuple[str, int] | None = None
    compute: bool = True


@dataclass(frozen=True)
class Link:
    """A directed pair of sites; no bandwidth means that nothing shapes it."""

    origin: str
    destination: str
    bandwidth_bytes_per_s: float | None = None
    latency_us: int = 0
    outbox_max_bytes: int = 10**9

    def __post_init__(self) -> None:
        if self.origin == self.destination:
            raise ConfigError(f"a link joins two sites, but this one goes from {self.origin!r} to itself")


@dataclass(frozen=True)
class SparkConfig:
    """What every Spark session of the project is started with."""

    master: str = "local[*]"
    memory: str = "1g"
    ui: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Security:
    """Files of certificates and tokens; absent ones leave that protection off."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tokens: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("[security] has only one of tls_cert and tls_key", hint="TLS needs both files")


@dataclass(frozen=True)
class Defaults:
    """What holds for a stream or a view that does not say otherwise."""

    trigger_us: int = SECOND_US // 2
    slack_us: int = 0
    repair_horizon_us: int = 3600 * SECOND_US
    repair_spread_us: int = 5 * SECOND_US
    repair_after_us: int = 10 * SECOND_US
    max_jump_us: int = 86400 * SECOND_US
    freshness_us: int | None = 60 * SECOND_US
    relay_wait_us: int = 10 * SECOND_US
    policy: str = "spillway"
    history: bool = True
    sharing: str = "full"
    reoptimize: bool = True


@dataclass(frozen=True)
class Project:
    """A project folder that was read and found right."""

    name: str
    folder: Path
    center: str
    sites: Mapping[str, Site]
    links: Mapping[tuple[str, str], Link]
    state: str = "state"
    spark: SparkConfig = field(default_factory=SparkConfig)
    security: Security = field(default_factory=Security)
    defaults: Defaults = field(default_factory=Defaults)

    def __post_init__(self) -> None:
        if self.center not in self.sites:
            raise ConfigError(
                f"the center {self.center!r} is not a declared site",
                hint=f"add [sites.{self.center}]; {did_you_mean(self.center, self.sites)}",
            )

    @classmethod
    def load(cls, folder: str | Path) -> Project:
        """Read the project in a folder."""
        root = Path(folder)
        path = root / PROJECT_FILE
        if not path.is_file():
            raise ConfigError(
                f"there is no {PROJECT_FILE} in {root}",
                hint="give a project folder, or make one with: catchment init FOLDER",
            )
        return _Reader(TomlFile.load(path)).project(root)

    @cached_property
    def state_folder(self) -> Path:
        """Where everything durable lies."""
        return self.folder / self.state

    @property
    def query_files(self) -> tuple[Path, ...]:
        """The SQL files of the project, in order of name."""
        return tuple(sorted((self.folder / QUERIES_FOLDER).glob("*.sql")))

    @cached_property
    def edge_sites(self) -> tuple[str, ...]:
        """Every site but the center; the center itself where there is no other."""
        return tuple(s for s in self.sites if s != self.center) or (self.center,)

    def link(self, origin: str, destination: str) -> Link:
        """Return the declared link between two sites."""
        if (origin, destination) not in self.links:
            raise ConfigError(
                f"there is no link from site {origin!r} to site {destination!r}",
                where=str(self.folder / PROJECT_FILE),
                hint=f'add [[links]] with from = "{origin}" and to = "{destination}"',
            )
        return self.links[origin, destination]


def template() -> str:
    """Return the text of a commented `catchment.toml` with every setting in it."""
    return resources.files("catchment.project").joinpath("template.toml").read_text(encoding="utf-8")


@dataclass(frozen=True)
class _Reader:
    """Turns one TOML file into a project."""

    file: TomlFile

    def project(self, root: Path) -> Project:
        for name in self.file.tables:
            if name not in TABLES:
                raise ConfigError(
                    f"there is no table [{name}]",
                    where=self.file.at(None, name),
                    hint=did_you_mean(name, TABLES),
                )
        head = self.table("project", PROJECT, required=True)
        sites = self.sites()
        links = self.links(sites)
        try:
            return Project(
                head["name"],
                root,
                head["center"],
                sites,
                links,
                head["state"],
                self.spark(),
                self.security(root),
                self.defaults(),
            )
        except ConfigError as cause:
            if cause.where:
                raise
            raise ConfigError(cause.message, where=self.file.at("project", "center"), hint=cause.hint) from cause

    def table(self, name: str, known: tuple[Option, ...], required: bool = False) -> dict[str, Any]:
        given = self.file.tables.get(name, {})
        if required and name not in self.file.tables:
            raise ConfigError(f"the table [{name}] is missing", where=f"{self.file.path}:1", hint=f"add [{name}]")
        return self.checked(given, known, f"[{name}]", lambda key: self.file.at(name, key))

    def checked(
        self, given: Any, known: tuple[Option, ...], what: str, where: Callable[[str | None], str]
    ) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise ConfigError(f"{what} is {given!r}", where=where(None), hint=f"write it as a table: {what}")
        return read_options(given, known, what=what, where=where)

    def sites(self) -> Mapping[str, Site]:
        given = self.file.tables.get("sites", {})
        if not isinstance(given, dict) or not given:
            raise ConfigError("no site is declared", where=f"{self.file.path}:1", hint="add [sites.NAME] for each site")
        return MappingProxyType({name: self.site(name, values) for name, values in given.items()})

    def site(self, name: str, values: Any) -> Site:
        header = f"sites.{name}"
        try:
            opt.site_name().read(name)
        except ValueError as cause:
            raise ConfigError(
                f"{name!r} cannot be the name of a site",
                where=self.file.at(header, None),
                hint=f"it must be {opt.site_name().expected}",
            ) from cause
        return Site(name, **self.checked(values, SITE, f"[{header}]", lambda key: self.file.at(header, key)))

    def links(self, sites: Mapping[str, Site]) -> Mapping[tuple[str, str], Link]:
        given = self.file.tables.get("links", [])
        if not isinstance(given, list):
            raise ConfigError(
                "links is not a list of tables", where=self.file.at("links", None), hint="write [[links]]"
            )
        links: dict[tuple[str, str], Link] = {}
        for place, values in enumerate(given):
            link = self.link(values, place, sites)
            if (link.origin, link.destination) in links:
                raise ConfigError(
                    f"two links go from {link.origin!r} to {link.destination!r}",
                    where=self.file.at("links", "from", place),
                    hint="keep one of them",
                )
            links[link.origin, link.destination] = link
        return MappingProxyType(links)

    def link(self, values: Any, place: int, sites: Mapping[str, Site]) -> Link:
        def where(key: str | None) -> str:
            return self.file.at("links", key, place)

        read = self.checked(values, LINK, "[[links]]", where)
        for end in ("from", "to"):
            if read[end] not in sites:
                raise ConfigError(
                    f"a link names the undeclared site {read[end]!r}",
                    where=where(end),
                    hint=did_you_mean(read[end], sites),
                )
        try:
            return Link(read["from"], read["to"], read["bandwidth"], read["latency"], read["outbox_max"])
        except ConfigError as cause:
            raise ConfigError(cause.message, where=where("to"), hint="name two different sites") from cause

    def spark(self) -> SparkConfig:
        read = self.table("spark", SPARK)
        for name, value in read["settings"].items():
            if isinstance(value, dict | list):
                raise ConfigError(
                    f"the Spark setting {name!r} is not a single value",
                    where=self.file.at("spark.settings", name),
                    hint='quote the whole name: "spark.sql.shuffle.partitions" = 2',
                )
        settings = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in read["settings"].items()}
        return SparkConfig(read["master"], read["memory"], read["ui"], MappingProxyType(settings))

    def security(self, root: Path) -> Security:
        read = self.table("security", SECURITY)
        for name, value in read.items():
            if value is not None and not (root / value).is_file():
                raise ConfigError(
                    f"[security]: {name} = {value!r} is not a file",
                    where=self.file.at("security", name),
                    hint="paths are relative to the project folder",
                )
        try:
            return Security(**{name: root / value if value else None for name, value in read.items()})
        except ConfigError as cause:
            raise ConfigError(cause.message, where=self.file.at("security", None), hint=cause.hint) from cause

    def defaults(self) -> Defaults:
        read = self.table("defaults", DEFAULTS)
        in_us = (
            "trigger",
            "slack",
            "repair_horizon",
            "repair_spread",
            "repair_after",
            "max_jump",
            "freshness",
            "relay_wait",
        )
        return Defaults(**{f"{name}_us" if name in in_us else name: value for name, value in read.items()})
