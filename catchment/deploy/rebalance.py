"""Moving queries to other fragments while they run: the center measures, decides, and writes what is wanted.

Slices under way are finished where they began: `catchment.center.fragment_sources` says where the new fragment takes
over, sites hear until where the old one is wanted, and it ends when the windows that it feeds are final.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from catchment.center.core import CenterCore
from catchment.deploy.deployment import Deployment
from catchment.deploy.status import STATUS_FILE
from catchment.deploy.watcher import DeploymentWatcher
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.link_traffic import bytes_over_links
from catchment.optimizer.sharing.measured_statistics import apply_measurements
from catchment.optimizer.sharing.reoptimize import SharingReoptimizer
from catchment.optimizer.sharing.statistics import Statistics, fill_with_guesses, load_statistics
from catchment.timeline import SECOND_US

CHECK_EVERY_US = 10 * SECOND_US
FIRST_CHECK_US = 60 * SECOND_US  # rates of the first minute are those of starting up


@dataclass
class Rebalancer:
    """Checks every `CHECK_EVERY_US` whether another sharing would send less, from what the sites have measured."""

    watcher: DeploymentWatcher
    reoptimizer: SharingReoptimizer = field(default_factory=SharingReoptimizer)
    next_us: int | None = None

    def step(self, core: CenterCore, now_us: int) -> None:
        """End the fragments that queries have left; move queries, if that has come to pay."""
        deployed = self.watcher.deployment.deployed
        if deployed.leaving:
            self._finish(core)
        if self.next_us is None:
            self.next_us = now_us + FIRST_CHECK_US
        if now_us < self.next_us or not self.watcher.deployment.project.defaults.reoptimize:
            return
        self.next_us = now_us + CHECK_EVERY_US
        stream_us = newest_event_us(self.watcher.deployment)
        if stream_us is None:
            return
        deployment = self.watcher.deployment
        bytes_of = bytes_over_links(deployment.routes, known_statistics(deployment))
        target = self.reoptimizer.choose_move(deployed, bytes_of, stream_us)
        if target is not None:
            self._change(lambda now: now.move(target) if now.version == deployed.version else now)

    def _finish(self, core: CenterCore) -> None:
        ends, needed = core.fragment_ends(), core.fragments
        self._change(lambda now: now.bound(ends).retire(needed))

    def _change(self, make: Callable[[Deployed], Deployed]) -> None:
        deployed = self.watcher.deployment.deployed
        if make(deployed) is not deployed:
            self.watcher.store.change(lambda now: make(now or deployed))


def known_statistics(deployment: Deployment) -> Statistics:
    """What is declared, with what the sites of the project's state folder have measured of late."""
    return apply_measurements(
        fill_with_guesses(load_statistics(deployment.project, deployment.catalog), deployment.catalog),
        deployment.deployed.sharing.fragments,
        site_statistics(deployment),
    )


def site_statistics(deployment: Deployment) -> Mapping[str, Mapping[str, Any]]:
    """What each site last wrote down of its streams."""
    return {site: status["statistics"] for site, status in _statuses(deployment).items() if "statistics" in status}


def newest_event_us(deployment: Deployment) -> int | None:
    """How far the streams are, in their own time: rates are by its seconds, and so is what a choice loses."""
    return max((s["newest_event_us"] for s in _statuses(deployment).values() if s["newest_event_us"]), default=None)


def _statuses(deployment: Deployment) -> Mapping[str, Mapping[str, Any]]:
    files = {s: deployment.project.site_folder(s) / STATUS_FILE for s in deployment.sites}
    return {site: json.loads(path.read_text()) for site, path in files.items() if path.is_file()}
