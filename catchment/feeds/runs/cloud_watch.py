"""What the process of a feed cloud does beside serving: sample the traffic and log it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from catchment.feeds.cloud.cloud import PlacingCloud
from catchment.feeds.protocol.channel import ChannelReceiver, LinkTraffic
from catchment.feeds.protocol.messages import Upward
from catchment.feeds.runs.board import Board
from catchment.feeds.runs.traffic import message_sizes
from catchment.feeds.runs.workload import Workload

USAGE_EVERY = 5  # samples between two readings of processor time and memory

Usage = Callable[[], Mapping[str, float | int]]  # processor time and memory of the process


class WatchedLinks(Protocol):
    """The links of a cloud as those see them who watch it."""

    @property
    def boot(self) -> int:
        """The number of the first message to a device, about."""

    @property
    def receivers(self) -> Mapping[str, ChannelReceiver[Upward]]: ...

    def traffic(self) -> Mapping[str, LinkTraffic]: ...


class CloudWatch:
    """Samples a cloud once per second, writes a log line by line, and reports at the end."""

    def __init__(
        self,
        workload: Workload,
        cloud: PlacingCloud,
        links: WatchedLinks,
        strategy: str,
        *,
        usage: Usage,
        log: TextIO | None = None,
    ) -> None:
        self.workload = workload
        self.cloud = cloud
        self.links = links
        self.usage = usage
        self.log = log
        self.began_s = time.monotonic()
        self.hosts: dict[str, str] = {}
        self.active: dict[str, int] = {}
        sizes = message_sizes(cloud.graph, workload, time.time_ns() // 1000, links.boot)
        self.board = Board(strategy, cloud.controller, links.traffic, workload.costs, sizes)

    @property
    def second(self) -> int:
        """How long the cloud has been watched."""
        return int(time.monotonic() - self.began_s)

    def sample(self) -> dict[str, Any]:
        """Sample the traffic and log it; return the state of the cloud as plain data."""
        self.board.sample(time.time_ns() // 1000, self.cloud.redeployed)
        if self.log is not None:
            self._write_log(self.log)
        return self.board.snapshot()

    def report(self) -> dict[str, Any]:
        """Return the final report."""
        controller = self.cloud.controller
        if self.log is not None:
            _write_line(self.log, ["active", time.time_ns() // 1000, dict(controller.active_since_us)])
        snapshot = {k: v for k, v in self.board.snapshot().items() if k not in ("history", "top")}
        receivers = self.links.receivers.values()
        return {
            "data": self.workload.source,
            "views": len(self.cloud.graph.views),
            **snapshot,
            "refused": controller.counters.refused + sum(r.refused for r in receivers),
            "missing": sum(r.missing for r in receivers),
            "forgotten": self.cloud.forgotten,
            "duplicates": sum(r.duplicates for r in receivers),
            "usage": dict(self.usage()),
        }

    def _write_log(self, log: TextIO) -> None:
        controller = self.cloud.controller
        now = self.board.totals[-1]
        totals = [now.at_us, now.messages_up, now.messages_down, now.bytes_up, now.bytes_down]
        _write_line(log, ["traffic", *totals, len(controller.moving), self.cloud.redeployed])
        if self.board.samples % USAGE_EVERY == 0:
            _write_line(log, ["usage", now.at_us, *self.usage().values()])
        hosts = controller.current_hosts()
        if hosts != self.hosts:
            self.hosts = hosts
            _write_line(log, ["hosts", now.at_us, hosts])
        active = dict(controller.active_since_us)
        if active != self.active:
            self.active = active
            _write_line(log, ["active", now.at_us, active])


def _write_line(log: TextIO, fields: list[Any]) -> None:
    log.write(json.dumps(fields, separators=(",", ":")) + "\n")
