"""The connections of a process: servers for inboxes and senders for outboxes, secured as `[security]` says.

Each server and each sender uses the files of its own site. Where nothing is configured, processes of one user on one
machine find a common secret in the state folder.

Segments go over forwarders only where an end can prove to the other who it is whoever hands it on: by certificates that
the project's authority signs, or by that common secret. With tokens alone there is one way, the direct link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from catchment.errors import ConfigError
from catchment.keys.tls import TlsFiles, find_expiry_us
from catchment.keys.tokens import LoopbackTokens, TokenCheck, TokenFile, read_token
from catchment.progress.window_observer import WindowObserver
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.option_kinds import join_address
from catchment.project.routes import LinkName
from catchment.project.sections import Link, SecurityFiles
from catchment.project.ways import Way, Ways
from catchment.timeline import Clock
from catchment.wire.frames.limits import DEFAULT_LIMITS, RECORD_LIMITS
from catchment.wire.receiving.grpc_server import CallService, InboxServer, Receiver, is_loopback
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.dispatch import BACKLOG_SHARE
from catchment.wire.sending.grpc_uplink import GrpcUplink
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender
from catchment.wire.sending.shaper import LinkBucket, Shaper
from catchment.wire.sending.tables_there import TablesThere
from catchment.wire.sending.uplink import Uplink
from catchment.wire.ways.envelope import AroundUplink
from catchment.wire.ways.forwarder import Forwarder, Hop, NoInbox
from catchment.wire.ways.way_chooser import WayRules
from catchment.wire.ways.way_switch import Line

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Connections:
    """Makes the servers and senders of one project."""

    project: Project
    clock: Clock
    wrap_uplink: Callable[[Uplink], Uplink] = lambda uplink: uplink
    observer: WindowObserver | None = None
    functions: str = ""  # of the project, with the digits of their code: both ends of a link compare them
    services: Sequence[CallService] = ()  # beside the inbox of the center
    record_inboxes: Mapping[str, Inbox] = field(default_factory=dict)  # of light sites that are evaluated here
    way_rules: WayRules = field(default_factory=WayRules)  # when senders leave a way for another
    addresses: dict[str, str] = field(default_factory=dict)  # where servers of this process listen, by site
    forwarders: dict[str, Forwarder] = field(default_factory=dict, init=False)  # of the servers that were made
    sink_inboxes: dict[str, dict[str, Inbox]] = field(default_factory=dict, init=False)  # by site, then by sink
    _buckets: dict[LinkName, LinkBucket] = field(default_factory=dict, init=False)
    _tables_there: dict[LinkName, TablesThere] = field(default_factory=dict, init=False)

    def make_server(self, site: str, inbox: Inbox) -> InboxServer:
        """Return a server at a site that lets other sites send to an inbox."""
        inbox.functions = self.functions
        return self._make_server(site, inbox)

    def serve_relay(self, site: str, inbox: Inbox) -> InboxServer | None:
        """Return a server at a relay; None where the site has one already, which then serves both."""
        if site not in self.addresses:
            return self.make_server(site, inbox)
        self.take_for_sink(site, "", inbox)
        return None

    def make_forward_server(self, site: str) -> InboxServer | None:
        """Return a server at a site that only forwards for others; None if it lies on no way of others."""
        forwards = site in self.ways.forwarders and self._can_seal(self._files(site))
        return self._make_server(site, NoInbox(site)) if forwards else None

    def take_for_sink(self, site: str, sink: str, inbox: Inbox) -> None:
        """Let the server of a site give to an inbox what goes to a sink; to the center, if none is named."""
        inbox.functions = self.functions
        self.sink_inboxes.setdefault(site, {})[sink] = inbox

    def make_sink_server(self, site: str) -> InboxServer:
        """Return a server at a site where something lands for other sinks than the center only."""
        return self._make_server(site, NoInbox(site))

    def _make_server(self, site: str, receiver: Receiver) -> InboxServer:
        files = self._files(site)
        return InboxServer(
            receiver,
            *listen_address(self.project, site),
            _tls(files),
            self._token_check(files),
            client_certificates=files.uses_tls and self.project.security.asks_for_certificates,
            services=self.services if site == self.project.center else (),
            forwarder=self._make_forwarder(site),
            record_inboxes=self.record_inboxes,
            sink_inboxes=self.sink_inboxes.setdefault(site, {}),
        )

    def make_sender(
        self, link: Link, site: str, address: str, outbox: Outbox, *, carries_records: bool = False, sink: str = ""
    ) -> Sender:
        """Return the sender of a site's outbox to an address, with the declared bandwidth and latency of the link.

        What is for another sink than the center goes over the direct link only.

        Records go in the order in which they were read: after an outage the oldest first, unlike partials.
        """
        files = self._files(site)
        _check_encrypted(files, site, address)
        tls = _tls(files)
        self._read_token(files, site)

        def open_uplink() -> Uplink:  # the files are read for every connection: they may have been replaced
            token = self._read_token(files, site)
            return self.wrap_uplink(GrpcUplink(address, token, tls, carries_records=carries_records, sink=sink))

        on_acked = None if self.observer is None else partial(self.observer.note_acked, site)
        return Sender(
            outbox,
            open_uplink,
            self._shape(link),
            self.clock,
            backlog_share=1.0 if carries_records else BACKLOG_SHARE,
            limits=RECORD_LIMITS if carries_records else DEFAULT_LIMITS,
            on_acked=on_acked,
            functions=self.functions,
            around=[] if carries_records or sink else self._lines_around(site, outbox.destination),
            rules=self.way_rules,
            tables_there=self._tables_at(site, outbox.destination) if not carries_records else None,
        )

    def _tables_at(self, site: str, neighbour: str) -> TablesThere:
        """Return what a neighbour has taken from a site lately, for all that send to it from here."""
        return self._tables_there.setdefault((site, neighbour), TablesThere())

    # ---- ways over forwarders

    @cached_property
    def ways(self) -> Ways:
        """The ways of the project."""
        return Ways.of(self.project)

    def _lines_around(self, site: str, end: str) -> list[Line]:
        """Return the lines from a site around its direct link to the next end."""
        if self.ways.next_end(site) != end or not self._can_seal(self._files(site)):
            return []
        return [self._line(way) for way in self.ways.from_end(site)[1:]]

    def _line(self, way: Way) -> Line:
        from catchment.keys.seals import SiteSealCheck, SiteSealer  # large, and a light site forwards nothing

        site, first = way[:2]
        files = self._files(site)
        tls = _tls(files)

        def open_uplink() -> Uplink:
            token = self._read_token(files, site)
            uplink = self._open_hop(site, first)
            check = SiteSealCheck(tls, None if files.uses_tls else self._loopback)
            return self.wrap_uplink(AroundUplink(way, uplink, SiteSealer(tls, token), check))

        return Line(way, open_uplink, self._shape(self.project.link(site, first)), self.ways.time_us(way))

    def _make_forwarder(self, site: str) -> Forwarder | None:
        """Return what answers envelopes at a site; None where no way of the project leads over forwarders."""
        files = self._files(site)
        if not self.ways.forwarders or not self._can_seal(files):
            return None

        def make_hop(to: str) -> Hop:
            return Hop(partial(self._open_hop, site, to), self._shape(self.project.link(site, to)))

        from catchment.keys.seals import SiteSealCheck, SiteSealer

        tls = _tls(files)
        sealer = SiteSealer(tls, None if files.uses_tls else self._loopback.token_of(site))
        tokens = TokenFile(files.tokens) if files.tokens is not None else None
        seals = SiteSealCheck(tls, tokens if files.uses_tls else self._loopback)
        made = Forwarder(site, self.ways.check, make_hop, sealer, seals)
        self.forwarders[site] = made
        return made

    def _open_hop(self, site: str, to: str) -> GrpcUplink:
        files = self._files(site)
        address = self.addresses.get(to) or inbox_address(self.project, to)
        _check_encrypted(files, site, address)
        return GrpcUplink(address, self._read_token(files, site), _tls(files))

    def _can_seal(self, files: SecurityFiles) -> bool:
        """Return whether a site can prove who it is over forwarders."""
        if files.uses_tls:
            return None not in (files.tls_cert, files.tls_key, files.tls_ca)
        return files.token is None

    def _shape(self, link: Link) -> Shaper:
        """Return a shaper of a link; all of one link share its bandwidth."""
        bandwidth = link.bandwidth_bytes_per_s
        if bandwidth is None:
            return Shaper(latency_s=link.latency_us / 1e6)
        bucket = self._buckets.setdefault((link.origin, link.destination), LinkBucket(bandwidth))
        return Shaper(bandwidth, link.latency_us / 1e6, bucket=bucket)

    def certificate_expiry_us(self, site: str) -> int | None:
        """Return when the certificate of a site ends to be valid; None if it has none."""
        certificate = self._files(site).tls_cert
        try:
            return None if certificate is None else find_expiry_us(certificate.read_bytes())
        except (OSError, ValueError):  # it is being replaced
            return None

    def _files(self, site: str) -> SecurityFiles:
        return self.project.security.files_of(site, self.project.folder)

    def _token_check(self, files: SecurityFiles) -> TokenCheck | None:
        if files.tokens is not None:
            return TokenFile(files.tokens)
        return None if files.uses_tls else self._loopback

    def _read_token(self, files: SecurityFiles, site: str) -> str | None:
        if files.token is not None:
            return read_token(files.token)
        return None if files.uses_tls else self._loopback.token_of(site)

    @cached_property
    def _loopback(self) -> LoopbackTokens:
        return LoopbackTokens(self.project.state_folder)


def listen_address(project: Project, site: str) -> tuple[str, int]:
    """Return the host and the port where a site listens; on loopback at a free port where none is declared."""
    return project.sites[site].listen or (LOOPBACK, 0)


def inbox_address(project: Project, site: str) -> str:
    """Return the host:port where other processes find the inbox of the center or of a relay."""
    declared = project.sites[site]
    found_at = declared.address or declared.listen
    if found_at is None or found_at[1] == 0:
        role = "center" if site == project.center else "site"
        raise ConfigError(
            f"other processes cannot find the {role} {site!r}: it has no fixed address",
            where=str(project.folder / PROJECT_FILE),
            hint=f'set listen = "host:port" in [sites.{site}], or run all in one process: catchment run',
        )
    return join_address(*found_at)


def reached_at(project: Project, site: str, server: InboxServer) -> str:
    """Return host:port of a server of this process."""
    host, _ = listen_address(project, site)
    return join_address(host, server.port)


def _tls(files: SecurityFiles) -> TlsFiles | None:
    return TlsFiles(files.tls_cert, files.tls_key, files.tls_ca) if files.uses_tls else None


def _check_encrypted(files: SecurityFiles, site: str, address: str) -> None:
    """Refuse to send to another machine in plain text."""
    host = address.rpartition(":")[0].strip("[]")
    if not files.uses_tls and not is_loopback(host):
        raise ConfigError(
            f"site {site!r} would send to {address} without TLS",
            hint="make keys with `catchment keys init` and set keys in [security]",
        )
