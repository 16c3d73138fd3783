"""The tables of `catchment.toml`, each as a class whose fields are its settings.

How they are read, and how they belong together, is in `catchment.project.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

from catchment.errors import ConfigError
from catchment.project import option_kinds as kinds
from catchment.project.options import option, required
from catchment.units import SECOND_US

OUTBOX_MAX_BYTES = 10**9  # default bound of what waits for a link
_SITE_FILE = kinds.path_of_site()


@dataclass(frozen=True)
class Site:
    """A place where streams are born, are evaluated, or both.

    `listen` is where its inbox listens and `address` where others find it. A site that does not compute is a light
    site: it needs no Spark, and the next site on its route evaluates its records.
    """

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
        kinds.flag(),
        True,
        doc="false: a light site, which needs no Spark: it sends its records, and another site evaluates them",
    )
    evaluate_at: str | None = option(
        kinds.site_name(),
        None,
        doc="with compute = false, the site that evaluates its records; there must be a link to it",
        absent="the next site on its route to the center",
        example="center",
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
    center_shards: int = option(
        kinds.integer(0, 1024),
        0,
        doc="into how many shards the rows of open windows are divided, which tasks merge and publish; 0: the process "
        "of the center holds them",
    )
    environment: str | None = option(
        kinds.text("the path of an archive"),
        None,
        doc="an archive of `catchment pack` that Spark ships to the workers of a cluster, which then need no packages",
        absent="workers have catchment installed",
        example="environment.tar.gz",
    )
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
    history_store: str | None = option(
        kinds.matching(r"s3://[a-z0-9][a-z0-9.-]+(/\S*)?", "an address such as 's3://lake/history'"),
        None,
        doc="where sites move raw records once they are compacted, below SITE/STREAM; newer ones stay on their disks",
        absent="all history is on the disks of the sites",
        example="s3://lake/history",
    )
    history_store_config: str | None = option(
        kinds.text("the path of a file of name = value lines"),
        None,
        doc="how that store is reached, one setting per line: endpoint, region, access_key_id, secret_access_key, "
        "session_token; relative to the project folder",
        absent="what the environment says (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, ...)",
        example="s3.properties",
    )
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
    reroute: bool = option(
        kinds.flag(), True, doc="move sites to other routes when links as measured make that twice as fast"
    )

    def keeps_history(self, declared: bool | str | None) -> bool:
        """Return whether the records of a stream can be read again, by what it declares: from a copy, or its files."""
        return bool(self.history if declared is None else declared)

    def copies_history(self, declared: bool | str | None) -> bool:
        """Return whether the records of a stream are copied, so that they can be read again."""
        return self.keeps_history(declared) and declared != kinds.REFERENCE

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
