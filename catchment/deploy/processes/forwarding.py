"""The forwarding of a process: servers of sites that only forward, and what its sites have forwarded for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from catchment.deploy.processes.connections import Connections, reached_at
from catchment.deploy.reports.role_files import write_status
from catchment.storage.files import make_folder


@dataclass
class ForwardServers:
    """Starts and ends the servers of sites that have no inbox and lie on the way of others."""

    connections: Connections
    running: list[str] = field(default_factory=list, init=False)  # sites that have a server for it alone
    _closing: ExitStack = field(default_factory=ExitStack, init=False)

    def start(self, sites: Iterable[str]) -> None:
        """Start those of the sites that lie on the way of others."""
        for site in sites:
            server = self.connections.make_forward_server(site)
            if server is not None:
                server.start()
                self._closing.callback(server.close)
                self.connections.addresses[site] = reached_at(self.connections.project, site, server)
                self.running.append(site)

    def status(self, site: str) -> Mapping[str, Any]:
        """Return what a site has forwarded, by the site that it went to."""
        forwarder = self.connections.forwarders.get(site)
        return {} if forwarder is None else forwarder.status()

    def write_status(self, site: str, stopped: bool = False) -> None:
        """Write the status of a site that does nothing else."""
        told = {"forwarded": self.status(site), "connected": True, "finished": False}
        folder = self.connections.project.site_folder(site)
        make_folder(folder)
        write_status(folder, told, stopped)

    def close(self) -> None:
        """End the servers, and let no forwarded call wait any longer."""
        for forwarder in self.connections.forwarders.values():
            forwarder.close()
        self._closing.close()
