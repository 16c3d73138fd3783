"""The watcher follows what is deployed: it finds at the next tick what `submit` and `drop` have written."""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore


@dataclass
class DeploymentWatcher:
    """Watches the record of one deployment for newer versions, and writes down which one the center has reached."""

    deployment: Deployment
    stamp: tuple[int, int, int] = field(default=(0, 0, 0), init=False)
    followed: int = field(default=0, init=False)  # the version that the sites of this process have reached

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
        """Return a newer deployment, if there is one."""
        stamp = self.store.stamp
        if stamp == self.stamp:
            return None
        self.stamp = stamp
        found = self.store.read()
        if found is None or found.version <= self.version:
            return None
        if found.orders.version != self.deployment.deployed.orders.version:
            self.deployment = self.deployment.read_again(found)  # a site that was added is declared in catchment.toml
        else:
            self.deployment = self.deployment.at(found)
        return self.deployment

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
