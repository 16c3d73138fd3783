"""The project folder: `catchment.toml` as frozen, checked dataclasses.

A project that exists is valid: names are safe as folder names, links join declared sites, the center is one of them.
Every mistake is a ConfigError that names the file, the line, what was found and what is possible. Each setting is
declared once, as a field of a class in `catchment.project.sections`; `catchment.project.template` makes the commented
file of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from catchment.errors import ConfigError
from catchment.project import option_kinds as kinds
from catchment.project.joined_site import SITE_FILE, JoinedSite
from catchment.project.options import Option, OptionKind, did_you_mean, option, options_of, read_options, required
from catchment.project.sections import Defaults, Link, Security, SecurityFiles, Site, SparkConfig, StorageLimits, Traces
from catchment.project.toml_file import TomlFile

PROJECT_FILE = "catchment.toml"
QUERIES_FOLDER = "queries"
FUNCTIONS_FILE = "functions.py"
SINKS_FOLDER = "sinks"  # in the state folder: a folder for each site beside the center at which views are answered
TABLES = ("project", "sites", "links", "spark", "security", "limits", "traces", "defaults")

# Spark's own settings have any names: they are read as one table.
_SPARK_SETTINGS = Option(
    "settings", OptionKind("a table of Spark settings", dict), MappingProxyType({}), doc="passed to Spark unchanged"
)


@dataclass(frozen=True)
class Project:
    """A valid project folder, as read from its `catchment.toml`."""

    name: str = field(metadata=required(kinds.site_name(), doc="the name of the project", example="my-project"))
    folder: Path
    center: str = field(metadata=required(kinds.site_name(), doc="the site where results are wanted", example="center"))
    sites: Mapping[str, Site]
    links: Mapping[tuple[str, str], Link]
    state: str = option(
        kinds.text("a folder, relative to the project's or absolute"),
        "state",
        doc="folder for everything durable: checkpoints, outboxes, history, results",
    )
    functions: str = option(
        kinds.text("a Python file or a folder of them, relative to the project's"),
        FUNCTIONS_FILE,
        doc="Python code with the project's own functions and aggregates; every site has the same",
    )
    spark: SparkConfig = field(default_factory=SparkConfig)
    security: Security = field(default_factory=Security)
    limits: StorageLimits = field(default_factory=StorageLimits)
    traces: Traces = field(default_factory=Traces)
    defaults: Defaults = field(default_factory=Defaults)
    joined: JoinedSite | None = None  # of a site whose folder has site.toml
    statements: tuple[str, ...] = ()  # what the center of such a site has declared, in SQL
    sink: str = ""  # the site whose part of the project this is (`at_sink`); empty: the center's
    moved_hops: Mapping[str, str] = field(default_factory=dict)  # sites that were moved while running -> their next one

    def __post_init__(self) -> None:
        if self.center not in self.sites:
            raise ConfigError(
                f"the center {self.center!r} is not a declared site",
                hint=f"add [sites.{self.center}]; {did_you_mean(self.center, self.sites)}",
            )
        if not self.sites[self.center].compute:
            raise ConfigError(
                f"the center {self.center!r} has compute = false, but it merges and answers",
                hint="leave compute out there; a site that only has sources is a light site",
            )

    @classmethod
    def load(cls, folder: str | Path) -> Project:
        """Read the project in a folder."""
        root = Path(folder)
        path = root / PROJECT_FILE
        if not path.is_file() and (root / SITE_FILE).is_file():
            return cls.of_joined_site(JoinedSite.load(root))
        if not path.is_file():
            raise ConfigError(
                f"there is no {PROJECT_FILE} in {root}",
                hint="give a project folder, or make one with: catchment init FOLDER",
            )
        return _Reader(TomlFile.load(path)).project(root)

    @classmethod
    def of_joined_site(cls, joined: JoinedSite, declared: Mapping[str, Any] | None = None) -> Project:
        """Return the project that a site has joined, as its center tells it now or has last told it."""
        told = joined.read_declared() if declared is None else declared
        project = _Reader(joined.merge_tables(told["tables"])).project(joined.folder)
        return replace(project, joined=joined, statements=tuple(told["statements"]))

    def to_tables(self) -> dict[str, Any]:
        """Return what all sites of a project agree on, as tables of its `catchment.toml`."""
        return {
            "project": {"name": self.name, "center": self.center, "functions": self.functions},
            "sites": {name: _write_table(site) for name, site in self.sites.items()},
            "links": [_write_table(link) for link in self.links.values()],
            "limits": _write_table(self.limits),
            "defaults": _write_table(self.defaults),
        }

    @cached_property
    def state_folder(self) -> Path:
        """Where everything durable is kept."""
        return self.folder / self.state

    def at_sink(self, sink: str, evaluated_at: Mapping[str, str]) -> Project:
        """Return the project as it is to a site beside the center at which views are answered: its center is there.

        What it merges and publishes has a folder of its own. The records of light sites are evaluated where they are in
        the whole project, which `evaluated_at` says.
        """
        if sink == self.center:
            return self
        sites = {
            name: replace(site, evaluate_at=evaluated_at.get(name, site.evaluate_at)) if not site.compute else site
            for name, site in self.sites.items()
        }
        state = f"{self.state}/{SINKS_FOLDER}/{sink}"
        return replace(self, center=sink, sink=sink, sites=sites, state=state, moved_hops={})

    def answering_at(self, sink: str | None) -> Project:
        """Return the project as it is to a site whose answers are read; to the center, if none is named."""
        if sink is None:
            return self
        if sink not in self.sites:
            raise ConfigError(
                f"there is no site {sink!r}",
                where=str(self.folder / PROJECT_FILE),
                hint=did_you_mean(sink, self.sites),
            )
        return self.at_sink(sink, {})

    def site_folder(self, site: str) -> Path:
        """Return the folder of a site's durable state, which is one whichever sinks it sends to."""
        whole = self.state.removesuffix(f"/{SINKS_FOLDER}/{self.sink}") if self.sink else self.state
        return self.folder / whole / "sites" / site

    def landing_folder(self, site: str, stream: str) -> Path:
        """Return the folder in which a site keeps the records of a stream that are sent to it, until it reads them."""
        return self.site_folder(site) / "landing" / stream

    def relay_folder(self, site: str) -> Path:
        """Return the folder of the durable state of the relay at a site."""
        return self.state_folder / "relays" / site

    def source_folder(self, site: str) -> Path:
        """Return the folder of the durable state of a light site: what it has read, and what it has not sent yet."""
        return self.state_folder / "sources" / site

    def arrivals_folder(self, site: str) -> Path:
        """Return the folder in which the records of a light site arrive, at the site that evaluates them."""
        return self.site_folder(site) / "arrivals"

    def arrived_folder(self, site: str, stream: str) -> Path:
        """Return the folder of the files from which the arrived records of a stream of a light site are read."""
        return self.arrivals_folder(site) / "streams" / stream

    def is_light(self, site: str) -> bool:
        """Return whether a site only sends its records, and another one evaluates them."""
        return not self.sites[site].compute

    @cached_property
    def running_links(self) -> tuple[Link, ...]:
        """The links that a run may use: nothing goes through a light site, and its records go where it says."""
        return tuple(
            link
            for link in self.links.values()
            if not self.is_light(link.destination) and self.sites[link.origin].evaluate_at in (None, link.destination)
        )

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


def security_of(joined: JoinedSite) -> SecurityFiles:
    """Return the files of a site that has joined a deployment, which its own machine names."""
    return _Reader(joined.file).security(joined.folder).files_of(joined.name, joined.folder)


def _write_table(holder: Any) -> dict[str, Any]:
    """Return the options of one table that differ from their defaults, also where they were set to none."""
    known = [(known, getattr(holder, known.key)) for known in options_of(type(holder))]
    return {
        o.name: "none" if value is None else o.kind.write(value)
        for o, value in known
        if o.required or value != o.default
    }


@dataclass(frozen=True)
class _Reader:
    """Turn one TOML file into a project."""

    file: TomlFile

    def project(self, root: Path) -> Project:
        for name in self.file.tables:
            if name not in TABLES:
                raise ConfigError(
                    f"there is no table [{name}]",
                    where=self.file.at(None, name),
                    hint=did_you_mean(name, TABLES),
                )
        head = self.table("project", options_of(Project), required=True)
        sites = self.sites()
        links = self.links(sites)
        self.check_light_sites(sites, links)
        spark = self.spark()
        security = self.security(root)
        limits = StorageLimits(**self.table("limits", options_of(StorageLimits)))
        traces = Traces(**self.table("traces", options_of(Traces)))
        defaults = Defaults(**self.table("defaults", options_of(Defaults)))
        try:
            return Project(
                folder=root,
                sites=sites,
                links=links,
                spark=spark,
                security=security,
                limits=limits,
                traces=traces,
                defaults=defaults,
                **head,
            )
        except ConfigError as cause:
            if cause.where:
                raise
            raise ConfigError(cause.message, where=self.file.at("project", "center"), hint=cause.hint) from cause

    def table(self, name: str, known: tuple[Option, ...], required: bool = False) -> dict[str, Any]:
        given = self.file.tables.get(name, {})
        if required and name not in self.file.tables:
            raise ConfigError(f"the table [{name}] is missing", where=f"{self.file.path}:1", hint=f"add [{name}]")
        return self.check(given, known, f"[{name}]", lambda key: self.file.at(name, key))

    def check(
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
            kinds.site_name().read(name)
        except ValueError as cause:
            raise ConfigError(
                f"{name!r} cannot be the name of a site",
                where=self.file.at(header, None),
                hint=f"it must be {kinds.site_name().expected}",
            ) from cause
        return Site(name, **self.check(values, options_of(Site), f"[{header}]", lambda key: self.file.at(header, key)))

    def check_light_sites(self, sites: Mapping[str, Site], links: Mapping[tuple[str, str], Link]) -> None:
        for site in sites.values():
            named = site.evaluate_at
            if named is None or site.compute:
                continue
            where = self.file.at(f"sites.{site.name}", "evaluate_at")
            if named not in sites:
                raise ConfigError(
                    f"the records of {site.name!r} are to be evaluated at the undeclared site {named!r}",
                    where=where,
                    hint=did_you_mean(named, sites),
                )
            if not sites[named].compute:
                raise ConfigError(
                    f"the records of {site.name!r} are to be evaluated at {named!r}, which does not compute either",
                    where=where,
                    hint="name a site without compute = false",
                )
            if (site.name, named) not in links:
                raise ConfigError(
                    f"the records of {site.name!r} are to be evaluated at {named!r}, and no link goes there",
                    where=where,
                    hint=f'add [[links]] with from = "{site.name}" and to = "{named}"',
                )

    def links(self, sites: Mapping[str, Site]) -> Mapping[tuple[str, str], Link]:
        given = self.file.tables.get("links", [])
        if not isinstance(given, list):
            raise ConfigError(
                "links is not a list of tables", where=self.file.at("links", None), hint="write [[links]]"
            )
        links: dict[tuple[str, str], Link] = {}
        for index, values in enumerate(given):
            link = self.link(values, index, sites)
            if (link.origin, link.destination) in links:
                raise ConfigError(
                    f"two links go from {link.origin!r} to {link.destination!r}",
                    where=self.file.at("links", "from", index),
                    hint="keep one of them",
                )
            links[link.origin, link.destination] = link
        return MappingProxyType(links)

    def link(self, values: Any, index: int, sites: Mapping[str, Site]) -> Link:
        def where(key: str | None) -> str:
            return self.file.at("links", key, index)

        read = self.check(values, options_of(Link), "[[links]]", where)
        for end, site in (("from", read["origin"]), ("to", read["destination"])):
            if site not in sites:
                raise ConfigError(
                    f"a link names the undeclared site {site!r}",
                    where=where(end),
                    hint=did_you_mean(site, sites),
                )
        try:
            return Link(**read)
        except ConfigError as cause:
            raise ConfigError(cause.message, where=where("to"), hint="name two different sites") from cause

    def spark(self) -> SparkConfig:
        read = self.table("spark", (*options_of(SparkConfig), _SPARK_SETTINGS))
        for name, value in read["settings"].items():
            if isinstance(value, dict | list):
                raise ConfigError(
                    f"the Spark setting {name!r} is not a single value",
                    where=self.file.at("spark.settings", name),
                    hint='quote the whole name: "spark.sql.shuffle.partitions" = 2',
                )
        settings = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in read["settings"].items()}
        return SparkConfig(**{**read, "settings": MappingProxyType(settings)})

    def security(self, root: Path) -> Security:
        read = self.table("security", options_of(Security))
        for name in ("tls_cert", "tls_key", "tls_ca"):
            value = read[name]
            if value is not None and "{site}" not in value and not (root / value).is_file():
                raise ConfigError(
                    f"[security]: {name} = {value!r} is not a file",
                    where=self.file.at("security", name),
                    hint="paths are relative to the project folder",
                )
        try:
            return Security(**read)
        except ConfigError as cause:
            raise ConfigError(cause.message, where=self.file.at("security", None), hint=cause.hint) from cause
