"""Following what is deployed while it runs: what `submit` and `drop` write is found at the next tick."""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.deploy.deployment import Deployment
from catchment.deploy.store import DeploymentStore


@dataclass
class DeploymentWatcher:
    """Watches the record of one deployment for newer versions, and says which version the center has come to."""

    deployment: Deployment
    stamp: int = field(default=0, init=False)
    followed: int = field(default=0, init=False)  # the version that the sites of this process have come to

    def __post_init__(self) -> None:
        self.store = DeploymentStore(self.deployment.project.state_folder)

    def begin(self) -> None:
        """Write down what is deployed at the start of a run."""
        self.store.keep(self.deployment.deployed)
        self.stamp = 0
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
        self.deployment = self.deployment.at(found)
        return self.deployment

    def acknowledge(self) -> None:
        """Write down that the center of this process has come to the newest version."""
        if self.store.center_version != self.version:
            self.store.acknowledge(self.version)

    def sites_may_follow(self) -> bool:
        """Whether the sites of this process have yet to come to the newest version, and may: the center knows it."""
        if self.followed == self.version:
            return False
        center = self.store.center_version
        if center is not None and center < self.version:
            return False
        self.followed = self.version
        return True
