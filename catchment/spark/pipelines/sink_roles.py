"""What a process runs for other sinks than the center: what answers there, and the relays on the routes to it.

To its part of the deployment a sink is the center: it has an inbox, a core and result tables of its own
(`catchment.spark.pipelines.center_role`), in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from catchment.deploy.deployment import Deployment
from catchment.deploy.processes.sink_relays import SinkRelays
from catchment.deploy.rebalance import Rebalancer
from catchment.deploy.reports.role_files import write_status
from catchment.deploy.store import write_all_names
from catchment.deploy.watcher import DeploymentWatcher
from catchment.spark.pipelines.center_role import CenterRole


@dataclass
class SinkRoles(SinkRelays):
    """Starts, follows and ends what runs in this process for other sinks than the center."""

    spark: SparkSession = field(kw_only=True)
    watcher: DeploymentWatcher = field(kw_only=True)
    centers: dict[str, CenterRole] = field(default_factory=dict, init=False)
    _rebalancers: dict[str, Rebalancer] = field(default_factory=dict, init=False)

    def _answer_at(self, sink: str, part: Deployment) -> None:
        write_all_names(part.project.state_folder, part.deployed)
        if sink in self.centers:
            self.centers[sink].follow(part)
            return
        role = CenterRole(part, self.spark, self.clock, self.connections, lambda segment: None)
        self.take(sink, sink, role.inbox)
        role.start(self._closing)
        self.centers[sink] = role
        self._rebalancers[sink] = Rebalancer(self.watcher, sink)

    def tick(self) -> None:
        """Let time pass; queries that are answered here may move."""
        super().tick()
        for sink, role in self.centers.items():
            self._rebalancers[sink].step(role.pipeline.core, self.clock.now_us())
            role.tick()

    def is_finished(self, once: bool) -> bool:
        """Return whether nothing more will be sent on or answered; with `once`, whether all that is here now was."""
        are_sent = super().is_finished(once)
        are_answered = [role.is_finished(once) for role in self.centers.values()]
        return are_sent and all(are_answered)

    def status(self) -> dict[str, Mapping[str, Any]]:
        """Return the state of what runs here for each sink, as plain JSON."""
        relayed = super().status()
        answered = {sink: role.status() for sink, role in self.centers.items()}
        nothing: Mapping[str, Any] = {"center": None, "relays": {}}
        names = dict.fromkeys((*answered, *relayed))
        return {sink: {**relayed.get(sink, nothing), "center": answered.get(sink)} for sink in names}

    def write_status(self, stopped: bool = False) -> None:
        """Write the status of each role into its folder."""
        super().write_status(stopped)
        for role in self.centers.values():
            write_status(role.pipeline.folder, role.status(), stopped)
