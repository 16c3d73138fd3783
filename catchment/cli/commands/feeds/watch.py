"""What the process of a feed cloud does beside serving: sample, show, log, and follow the reference data."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchment.cli.commands.feeds.options import StrategyChoice
from catchment.cli.commands.feeds.tables import following
from catchment.cli.output import notes
from catchment.cli.process_usage import usage
from catchment.errors import FeedError
from catchment.feeds.cloud.router import Deliver
from catchment.feeds.project import World, table_files
from catchment.feeds.runs.board import Board
from catchment.feeds.runs.traffic import message_sizes
from catchment.serve.feeds_page import FeedsPage

if TYPE_CHECKING:
    from catchment.feeds.cloud.cloud import Cloud
    from catchment.feeds.protocol.mqtt import MqttCloud
    from catchment.spark.feeds.cloud import SparkCloud

USAGE_EVERY = 5  # seconds between two looks at processor time and memory


class CloudWatch:
    """What the cloud's process does once a second: sample, show, log, and follow the reference data."""

    def __init__(
        self,
        folder: Path,
        world: World,
        cloud: Cloud | SparkCloud,
        links: MqttCloud,
        strategy: StrategyChoice,
        stack: ExitStack,
        page: int | None,
        log: Path | None,
        quiet: bool,
    ) -> None:
        self.folder, self.world, self.cloud, self.links = folder, world, cloud, links
        self.began_s = time.monotonic()
        self.written = table_files(folder, world.program)
        sizes = message_sizes(cloud.graph, world, time.time_ns() // 1000, links.boot)
        self.board = Board(strategy.value, cloud.controller, links.traffic, world.costs, sizes)
        self.show = stack.enter_context(following(quiet))
        self.log = None if log is None else stack.enter_context(log.open("a", buffering=1, encoding="utf-8"))
        self.hosts: dict[str, str] = {}
        self.page: FeedsPage | None = None
        if page is not None:
            self.page = stack.enter_context(FeedsPage(page))
            notes.print(f"live page: {self.page.url}", highlight=False)

    def second(self) -> list[Deliver]:
        self.board.sample(time.time_ns() // 1000, self.cloud.redeployed)
        self._write_log()
        snapshot = self.board.snapshot()
        self.show([snapshot], int(time.monotonic() - self.began_s), None)
        if self.page is not None:
            self.page.show(self._page_data(snapshot))
        return self._follow()

    def _follow(self) -> list[Deliver]:
        """Bring the views to what the reference tables say now; a mistake in them changes nothing."""
        now = table_files(self.folder, self.world.program)
        if now == self.written:
            return []
        self.written = now
        try:
            newer = self.cloud.views_of(self.world.read_reference())
        except FeedError as error:
            notes.print(f"the reference data is not followed: {error}", highlight=False, markup=False)
            return []
        delta = self.cloud.graph.delta_to(newer)
        notes.print(f"reference data: {len(delta.added)} views come, {len(delta.removed)} go", highlight=False)
        return self.cloud.update(newer)

    def _write_log(self) -> None:
        if self.log is None:
            return
        controller, now = self.cloud.controller, self.board.totals[-1]
        totals = [now.at_us, now.messages_up, now.messages_down, now.bytes_up, now.bytes_down]
        self._line(["traffic", *totals, len(controller.moving), self.cloud.redeployed])
        if self.board.samples % USAGE_EVERY == 0:
            self._line(["usage", now.at_us, *usage().values()])
        hosts = controller.settled()
        if hosts != self.hosts:
            self.hosts = hosts
            self._line(["hosts", now.at_us, hosts])

    def _line(self, fields: list[Any]) -> None:
        assert self.log is not None
        self.log.write(json.dumps(fields, separators=(",", ":")) + "\n")

    def _page_data(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "title": str(self.folder), "data": self.world.source, "devices": len(self.world.rates),
            "views": len(self.cloud.graph.views), "transport": f"MQTT through {self.links.config.host}",
            "cloud": type(self.cloud).__name__, "runs": [snapshot], "recent": [],
        }  # fmt: skip

    def report(self) -> dict[str, Any]:
        """What is said at the end."""
        controller = self.cloud.controller
        if self.log is not None:
            self._line(["active", time.time_ns() // 1000, dict(controller.active_since_us)])
        snapshot = {k: v for k, v in self.board.snapshot().items() if k not in ("history", "top")}
        receivers = self.links.receivers.values()
        return {
            "data": self.world.source,
            "views": len(self.cloud.graph.views),
            **snapshot,
            "refused": controller.counters.refused + sum(r.refused for r in receivers),
            "missing": sum(r.missing for r in receivers),
            "duplicates": sum(r.duplicates for r in receivers),
            "usage": usage(),
        }
