"""The watcher follows what is deployed: it finds at the next tick what `submit` and `drop` have written.

A deployment that cannot be planned, because it was written for other streams, links or rates than are declared here, is
refused by its version, and what runs goes on as it is until there is a newer one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore
from catchment.errors import CatchmentError
from catchment.optimizer.sharing.deployed import Deployed

_log = logging.getLogger(__name__)


@dataclass
class DeploymentWatcher:
    """Watches the record of one deployment for newer versions, and writes down which one the center has reached."""

    deployment: Deployment
    stamp: tuple[int, int, int] = field(default=(0, 0, 0), init=False)
    followed: int = field(default=0, init=False)  # the version that the sites of this process have reached
    refused: str | None = field(default=None, init=False)  # why the newest version is not followed, if it is not

    def __post_init__(self) -> None:
        self.store = DeploymentStore(self.deployment.project.state_folder)

    def begin(self) -> None:
        """Write down what is deployed at the start of a run."""
        self.store.keep(self.deployment.deployed)
        self.stamp = (0, 0, 0)
        self.followed = self.version

    @property
    def version(self) -> int:
        return self.deployment.deployed.version

    def poll(self) -> Deployment | None:
        """Return a newer deployment, if there is one that can be planned."""
        stamp = self.store.stamp
        if stamp == self.stamp:
            return None
        self.stamp = stamp
        found = self.store.read()
        if found is None or found.version <= self.version:
            return None
        try:
            self.deployment = self._plan(found)
        except CatchmentError as error:
            self.refused = f"version {found.version} of what is deployed is not followed: {error}"
            _log.error("%s; version %d runs on", self.refused, self.version)
            return None
        self.refused = None
        return self.deployment

    def _plan(self, found: Deployed) -> Deployment:
        orders_changed = found.orders.version != self.deployment.deployed.orders.version
        if orders_changed or self.deployment.project.joined is not None:
            # A site that was added is declared in catchment.toml; and a center tells all that is declared every time.
            return self.deployment.read_again(found)
        return self.deployment.at(found)

    def acknowledge(self) -> None:
        """Write down that the center of this process has reached the newest version."""
        if self.store.center_version != self.version:
            self.store.acknowledge(self.version)

    def sites_may_follow(self) -> bool:
        """Return once per version whether the sites of this process may follow it: the center must have reached it."""
        if self.followed == self.version:
            return False
        center = self.store.center_version
        if center is not None and center < self.version:
            return False
        self.followed = self.version
        return True
