"""The project folder: `catchment.toml` as frozen, checked dataclasses.

A project that exists is valid: names are safe as folder names, links join declared sites, the center is one of them.
Every mistake is a ConfigError that names the file, the line, what was found and what is possible. Each setting is
declared once, as a field of the class that holds it; `catchment.project.template` makes the commented file of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from catchment.errors import ConfigError
from catchment.project import option_kinds as kinds
from catchment.project.joined_site import SITE_FILE, JoinedSite
from catchment.project.options import Option, OptionKind, did_you_mean, option, options_of, read_options, required
from catchment.project.toml_file import TomlFile
from catchment.units import SECOND_US

PROJECT_FILE = "catchment.toml"
QUERIES_FOLDER = "queries"
FUNCTIONS_FILE = "functions.py"
TABLES = ("project", "sites", "links", "spark", "security", "limits", "traces", "defaults")
OUTBOX_MAX_BYTES = 10**9  # default bound of what waits for a link
_SITE_FILE = kinds.path_of_site()

# Spark's own settings have any names: they are read as one table.
_SPARK_SETTINGS = Option(
    "settings", OptionKind("a table of Spark settings", dict), MappingProxyType({}), doc="passed to Spark unchanged"
)


@dataclass(frozen=True)
class Site:
    """A place with a Spark runtime; `listen` is where its inbox listens and `address` where others find it."""

    name: str
    spark_master: str | None = option(
        kinds.text("a Spark master such as 'local[2]' or 'spark://host:7077'"),
        None,
        doc="where this site's Spark runs",
        absent="the master in [spark]",
        example="local[2]",
    )
    listen: tuple[str, int] | None = option(
        kinds.address(),
        None,
        doc="where its inbox listens, if this is the center or others send through this site; 0.0.0.0: everywhere",
        absent="any free port, for runs in one process",
        example=("127.0.0.1", 9410),
    )
    http: tuple[str, int] | None = option(
        kinds.address(),
        None,
        doc="where it receives the records of streams with connector 'http'",
        absent="it receives none",
        example=("127.0.0.1", 8420),
    )
    address: tuple[str, int] | None = option(
        kinds.address(),
        None,
        doc="where other sites find its inbox, if that is not where it listens: behind a port that is forwarded",
        absent="where it listens",
        example=("center.example.org", 9410),
    )
    compute: bool = option(
        kinds.flag(), True, doc="false: streams are born here, but `catchment plan` puts no operator here"
    )


@dataclass(frozen=True)
class Link:
    """A directed pair of sites; without a bandwidth nothing shapes what it carries."""

    origin: str = field(metadata=required(kinds.site_name(), name="from", doc="the site that sends", example="edge"))
    destination: str = field(
        metadata=required(kinds.site_name(), name="to", doc="the site that receives", example="center")
    )
    bandwidth_bytes_per_s: float | None = option(
        kinds.bandwidth(),
        None,
        doc="the most that may be sent; also in kbit/s, Mbit/s, KB/s, bytes/s",
        absent="not limited",
        example=2e6,
    )
    latency_us: int = option(kinds.duration(), 0, doc="added to every message, one way")
    outbox_max_bytes: int = option(
        kinds.size(),
        OUTBOX_MAX_BYTES,
        name="outbox_max",
        doc="how much may wait on disk while the link is down; beyond it, waiting updates are merged",
    )
    backfill_bandwidth_bytes_per_s: float | None = option(
        kinds.bandwidth(),
        None,
        doc="the most that views which begin in the past may send of what they read from history",
        absent="half of the bandwidth; not limited where there is none",
        example=1e6,
    )

    def __post_init__(self) -> None:
        if self.origin == self.destination:
            raise ConfigError(f"a link joins two sites, but this one goes from {self.origin!r} to itself")


@dataclass(frozen=True)
class SparkConfig:
    """What every Spark session of the project is started with."""

    master: str = option(
        kinds.text("a Spark master such as 'local[*]'"), "local[*]", doc="of every session whose site names no other"
    )
    memory: str = option(
        kinds.matching(r"[0-9]+[kmgKMG]", "an amount of memory such as '2g' or '512m'"), "1g", doc="of the driver"
    )
    ui: bool = option(kinds.flag(), False, doc="whether Spark serves its own web page")
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class SecurityFiles:
    """The files of one site: its own certificate, key and token, and what it needs to check the others."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token: Path | None = None
    tokens: Path | None = None

    @property
    def uses_tls(self) -> bool:
        """Return whether links are encrypted."""
        return self.tls_cert is not None or self.tls_ca is not None


@dataclass(frozen=True)
class Security:
    """Files of certificates and tokens; absent ones leave that protection off.

    Every site has files of its own: `{site}` in a path is its name, and `keys` is a folder with one folder per site. A
    machine needs the files of the sites that run on it, and no others.
    """

    keys: str | None = option(
        kinds.text("the path of a folder"),
        None,
        doc="folder made by `catchment keys init`: the next five settings name its files where they are absent",
        example="keys",
    )
    tls_cert: str | None = option(_SITE_FILE, None, doc="certificate of a site", example="tls/{site}.pem")
    tls_key: str | None = option(_SITE_FILE, None, doc="its private key", example="tls/{site}.key")
    tls_ca: str | None = option(_SITE_FILE, None, doc="who signs the certificates of the others", example="tls/ca.pem")
    token: str | None = option(_SITE_FILE, None, doc="the token that a site shows", example="tls/{site}.token")
    tokens: str | None = option(
        _SITE_FILE, None, doc="the tokens that inboxes know, one per site, or hashes of them", example="tokens.toml"
    )
    client_certificates: bool | None = option(
        kinds.flag(),
        None,
        doc="whether inboxes ask callers for a certificate that names their site",
        absent="with `keys`, or with tls_ca and without tokens",
        example=True,
    )

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("[security] has only one of tls_cert and tls_key", hint="TLS needs both files")
        if (self.token is None) != (self.tokens is None):
            hint = "sites show their own token, inboxes know the tokens of all: set both"
            raise ConfigError("[security] has only one of token and tokens", hint=hint)

    @property
    def asks_for_certificates(self) -> bool:
        """Return whether inboxes ask callers for a certificate."""
        if self.client_certificates is not None:
            return self.client_certificates
        return self.keys is not None or (self.tls_ca is not None and self.tokens is None)

    def files_of(self, site: str, root: Path) -> SecurityFiles:
        """Return the files of a site of the project in a folder."""
        made = SecurityFiles() if self.keys is None else key_files(root / self.keys, site)
        named = {file.name: getattr(self, file.name) for file in fields(SecurityFiles)}
        return replace(made, **{n: root / path.replace("{site}", site) for n, path in named.items() if path})


def key_files(keys: Path, site: str) -> SecurityFiles:
    """Return where the files of a site are in a folder of keys."""
    folder = keys / site
    return SecurityFiles(
        folder / "cert.pem", folder / "key.pem", folder / "ca.pem", folder / "token", folder / "tokens.toml"
    )


def security_of(joined: JoinedSite) -> SecurityFiles:
    """Return the files of a site that has joined a deployment, which its own machine names."""
    return _Reader(joined.file).security(joined.folder).files_of(joined.name, joined.folder)


LONGEST_DEFAULT_JUMP_US = 86400 * SECOND_US  # of `max_jump`, however long the repair horizon is


VECTORISED = "vectorised"  # the evaluator of fragments that is used where it can be


@dataclass(frozen=True)
class Defaults:
    """What holds for a stream or a view that does not say otherwise."""

    trigger_us: int = option(kinds.duration(positive=True), SECOND_US // 2, doc="how often a site reads its sources")
    slack_us: int = option(
        kinds.duration(), 0, doc="how far behind the newest event time windows without a contract close"
    )
    repair_horizon_us: int = option(
        kinds.duration(), 3600 * SECOND_US, doc="how long late records are still merged; after it a window is final"
    )
    repair_spread_us: int = option(
        kinds.duration(), 5 * SECOND_US, doc="late records are merged once their event times span more than this ..."
    )
    repair_after_us: int = option(kinds.duration(), 10 * SECOND_US, doc="... or the first of them has waited this long")
    max_jump_us: int | None = option(
        kinds.duration(positive=True),
        None,
        doc="how far one record may move event time; further only where a tenth of the records, two at least, agree",
        absent="the repair horizon, 1 day at most",
        example=3600 * SECOND_US,
    )
    freshness_us: int | None = option(
        kinds.duration(none=True),
        60 * SECOND_US,
        doc="how long a window waits for a missing site once another has passed its end; none: forever",
    )
    relay_wait_us: int = option(
        kinds.duration(),
        10 * SECOND_US,
        doc="how long a site that others send through waits for the slower ones, to merge; 0 s: forwards at once",
    )
    policy: str = option(
        kinds.policy(),
        "spillway",
        doc="when partial aggregates leave a site: spillway, batching, streaming, hybrid:0.25, ...",
    )
    history: bool = option(kinds.flag(), True, doc="keep raw records at their site, so that answers can be repaired")
    sharing: str = option(
        kinds.choice("none", "strict", "full", "max"),
        "full",
        doc="none, strict (equal parts once), full (what can be derived is not sent again), max",
    )
    evaluator: str = option(
        kinds.choice(VECTORISED, "native"),
        VECTORISED,
        doc="vectorised (Arrow where files are read, for what is proven equal; the rest in Spark SQL), or all native",
    )
    reoptimize: bool = option(
        kinds.flag(), True, doc="move queries to other shared fragments when measured rates make it pay"
    )

    def resolve_jump_us(self, declared_us: int | None) -> int:
        """Return `max_jump` of a stream: what it declares, else what holds for all, else the repair horizon.

        Within the repair horizon, no record that one stray record made late is late for good.
        """
        chosen_us = self.max_jump_us if declared_us is None else declared_us
        if chosen_us is not None:
            return chosen_us
        return min(max(self.repair_horizon_us, SECOND_US), LONGEST_DEFAULT_JUMP_US)


@dataclass(frozen=True)
class StorageLimits:
    """How much a process keeps on disk, per site and stream where nothing else is said; None is no limit."""

    history_keep_us: int | None = option(
        kinds.duration(none=True, positive=True),
        7 * 86400 * SECOND_US,
        doc="raw records older than this are removed, unless a repair still needs them; none: never",
    )
    history_max_bytes: int | None = option(
        kinds.size(none=True), 50 * 10**9, doc="beyond it the oldest raw records are removed; none: no limit"
    )
    quarantine_max_bytes: int | None = option(
        kinds.size(none=True), 10**9, doc="beyond it the oldest bad records are removed; none: no limit"
    )
    replaced_files_keep_us: int = option(
        kinds.duration(),
        86400 * SECOND_US,
        doc="how long files that result tables have replaced by fewer ones stay for readers that have begun",
    )
    free_disk_bytes: int = option(
        kinds.size(),
        200 * 10**6,
        doc="with less free disk than this, sites stop reading and inboxes take nothing until there is more",
    )
    open_state_bytes: int | None = option(
        kinds.size(none=True),
        2 * 10**9,
        doc="partials of open windows that the center holds; beyond it, it takes only what closes the oldest window, "
        "and the others keep theirs in their outboxes; none: no limit",
    )


@dataclass(frozen=True)
class Traces:
    """Where the lives of windows are sent as OpenTelemetry traces; nowhere without an endpoint."""

    endpoint: str | None = option(
        kinds.matching(r"https?://[^/\s]+", "the address of a collector such as 'http://127.0.0.1:4317'"),
        None,
        doc="the OTLP/gRPC address of a collector; needs catchment[traces]",
        absent="no traces, and no cost",
        example="http://127.0.0.1:4317",
    )
    sample: float = option(
        kinds.number(0, 1), 1.0, doc="the share of windows that are traced, the same ones at every site"
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

    def site_folder(self, site: str) -> Path:
        """Return the folder of a site's durable state."""
        return self.state_folder / "sites" / site

    def landing_folder(self, site: str, stream: str) -> Path:
        """Return the folder in which a site keeps the records of a stream that are sent to it, until it reads them."""
        return self.site_folder(site) / "landing" / stream

    def relay_folder(self, site: str) -> Path:
        """Return the folder of the durable state of the relay at a site."""
        return self.state_folder / "relays" / site

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
