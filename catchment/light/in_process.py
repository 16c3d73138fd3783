"""The light sites of a process: the sources that it reads, and the arrivals of those whose records it evaluates.

Where all of a project runs in one process, it has both; their records go over a socket all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from catchment.deploy.deployment import Deployment
from catchment.deploy.reports.role_files import write_status
from catchment.light.arrivals import RecordArrivals
from catchment.light.source import LightSource
from catchment.light.streams import light_streams
from catchment.project.config import Project
from catchment.timeline import Clock
from catchment.wire.receiving.inbox import Inbox
from catchment.wire.sending.outbox import Outbox
from catchment.wire.sending.sender import Sender

RUNS_PER_TICK = 4  # of one light site, that land before others have their turn


class LightSites:
    """Starts, follows and ends what a process does for light sites."""

    def __init__(self, project: Project, clock: Clock) -> None:
        self._project = project
        self._clock = clock
        self.arrivals: dict[str, RecordArrivals] = {}
        self.inboxes: dict[str, Inbox] = {}  # of the arrivals: what servers of this process give to them
        self.sources: dict[str, LightSource] = {}

    def follow_arrivals(self, deployment: Deployment, sites: Iterable[str]) -> None:
        """Take the records of these light sites, of the streams that are read now."""
        for site in sites:
            streams = light_streams(site, deployment.declared_at(site))
            if site not in self.arrivals:
                self.arrivals[site] = RecordArrivals(self._project, site, self._clock)
            self.arrivals[site].follow(streams)
            self.inboxes[site] = self.arrivals[site].inbox

    def start_sources(
        self,
        deployment: Deployment,
        sites: Iterable[str],
        make_sender: Callable[[str, Outbox], Sender],
        *,
        once: bool,
    ) -> None:
        """Read what is read now at these light sites, each in a thread of its own."""
        for site in sites:
            streams = light_streams(site, deployment.declared_at(site))
            if site in self.sources:
                self.sources[site].follow(streams)
                continue
            source = LightSource(self._project, site, streams, partial(make_sender, site), self._clock)
            self.sources[site] = source
            source.start_thread(once=once)

    def tick(self) -> None:
        """Let what has come land."""
        for source in self.sources.values():
            source.raise_failure()
        for arrivals in self.arrivals.values():
            for _ in range(RUNS_PER_TICK):
                if not arrivals.take():
                    break

    def is_arriving(self, site: str) -> bool:
        """Return whether more of what is read once at a light site is on its way to where it is evaluated."""
        if site not in self.arrivals:
            return False
        source = self.sources.get(site)
        if source is not None and not source.finished:
            return True
        return not self.arrivals[site].is_drained

    def status(self) -> dict[str, Mapping[str, Any]]:
        """Return the state of every source, as plain JSON."""
        return {site: source.status() for site, source in self.sources.items()}

    def write_status(self, stopped: bool = False) -> None:
        """Write the status of every source into its folder."""
        for source in self.sources.values():
            write_status(source.folder, source.status(), stopped)

    def stop(self) -> None:
        """Stop the sources; what they have not sent waits in their outboxes."""
        for source in self.sources.values():
            source.stop()
