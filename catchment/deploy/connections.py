"""The connections of a process: servers for inboxes and senders for outboxes, secured as `[security]` says."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from catchment.errors import ConfigError
from catchment.project.config import Link, Project
from catchment.timeline import Clock
from catchment.wire.flight import FlightUplink, InboxServer, Tls
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

    def make_server(self, inbox: Inbox, host: str, port: int) -> InboxServer:
        """Return a server that lets sites send to an inbox."""
        return InboxServer(inbox, host, port, _tls(self.project), _tokens(self.project))

    def make_sender(self, link: Link, site: str, address: str, outbox: Outbox) -> Sender:
        """Return the sender of a site's outbox to an address, with the declared bandwidth and latency of the link."""
        tls = _tls(self.project)
        token = (_tokens(self.project) or {}).get(site)
        shaper = Shaper(link.bandwidth_bytes_per_s, link.latency_us / 1e6)
        return Sender(outbox, lambda: self.wrap_uplink(FlightUplink(address, token, tls)), shaper, self.clock)


def listen_address(project: Project, site: str) -> tuple[str, int]:
    """Return the host and the port where a site listens; on loopback at a free port where none is declared."""
    return project.sites[site].listen or (LOOPBACK, 0)


def _tls(project: Project) -> Tls | None:
    files = project.security
    if files.tls_cert is None and files.tls_ca is None:
        return None
    return Tls.from_files(files.tls_cert, files.tls_key, files.tls_ca)


def _tokens(project: Project) -> Mapping[str, str] | None:
    """Return one token per site, from a TOML file of site = "token" lines."""
    path = project.security.tokens
    if path is None:
        return None
    tokens = tomllib.loads(path.read_text())
    wrong = [s for s, t in tokens.items() if s not in project.sites or not isinstance(t, str)]
    if wrong:
        raise ConfigError(f"these are not tokens of declared sites: {wrong}", where=str(path))
    return tokens
