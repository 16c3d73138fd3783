"""The connections of a process: servers for inboxes and senders for outboxes, secured as `[security]` says.

Each server and each sender uses the files of its own site. Where nothing is configured, processes of one user on one
machine find a common secret in the state folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from catchment.errors import ConfigError
from catchment.keys.tls import TlsFiles, find_expiry_us
from catchment.keys.tokens import LoopbackTokens, TokenCheck, TokenFile, read_token
from catchment.progress.window_observer import WindowObserver
from catchment.project.config import Project
from catchment.project.option_kinds import join_address
from catchment.project.sections import Link, SecurityFiles
from catchment.timeline import Clock
from catchment.wire.grpc_server import CallService, InboxServer, is_loopback
from catchment.wire.grpc_uplink import GrpcUplink
from catchment.wire.inbox import Inbox
from catchment.wire.outbox import Outbox
from catchment.wire.sender import Sender
from catchment.wire.shaper import Shaper
from catchment.wire.uplink import Uplink

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

    def make_server(self, site: str, inbox: Inbox) -> InboxServer:
        """Return a server at a site that lets other sites send to an inbox."""
        inbox.functions = self.functions
        files = self._files(site)
        return InboxServer(
            inbox,
            *listen_address(self.project, site),
            _tls(files),
            self._token_check(files),
            client_certificates=files.uses_tls and self.project.security.asks_for_certificates,
            services=self.services if site == self.project.center else (),
        )

    def make_sender(self, link: Link, site: str, address: str, outbox: Outbox) -> Sender:
        """Return the sender of a site's outbox to an address, with the declared bandwidth and latency of the link."""
        files = self._files(site)
        _check_encrypted(files, site, address)
        tls = _tls(files)
        self._read_token(files, site)

        def open_uplink() -> Uplink:  # the files are read for every connection: they may have been replaced
            return self.wrap_uplink(GrpcUplink(address, self._read_token(files, site), tls))

        shaper = Shaper(link.bandwidth_bytes_per_s, link.latency_us / 1e6)
        on_acked = None if self.observer is None else partial(self.observer.note_acked, site)
        return Sender(outbox, open_uplink, shaper, self.clock, on_acked=on_acked, functions=self.functions)

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
