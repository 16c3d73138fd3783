"""What a fault is: something that is done to a part of the deployment, and that ends."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from tests.campaign.living import Living
from tests.campaign.machines import Machine
from tests.worlds.waiting import wait_until

TOLD_PATIENCE_S = 300.0  # within which the operator must be told


class NotPossibleError(Exception):
    """This machine lacks what the fault needs; the reason is reported."""


class Fault(ABC):
    """One fault at one target; `target` is a role, or the sender of a link."""

    kind: ClassVar[str]
    targets: ClassVar[Sequence[str]]

    heals_last: ClassVar[bool] = False  # it goes on while what others have ended starts again
    needs_own_deployment: ClassVar[bool] = False  # it ends the deployment, or needs other settings
    horizon: ClassVar[str] = "1 h"  # the repair horizon of its own deployment

    def __init__(self, living: Living, target: str, chance: random.Random) -> None:
        self.living = living
        self.target = target
        self.chance = chance
        self.told = ""  # what the operator saw of it
        self.has_struck = True  # whether anything was harmed: a link that carries nothing cannot be

    @classmethod
    def parts(cls, target: str) -> frozenset[str]:
        """Parts that no other fault of the same round may touch."""
        return frozenset({target})

    @abstractmethod
    def inject(self) -> None:
        """Begin."""

    def observe(self) -> None:
        """Check that the operator is told, where the fault asks for that; `self.told` says of what."""
        return

    @abstractmethod
    def heal(self) -> None:
        """End the fault, as an operator or time would."""

    @property
    def machine(self) -> Machine:
        return self.living.machines[self.target]

    def wait_told(self, what: str, find: Callable[[], object]) -> None:
        """Wait until the operator can see something, and keep it."""
        seen: list[object] = []

        def look() -> bool:
            found = find()
            if found:
                seen.append(found)
            return bool(found)

        wait_until(look, f"{self.kind} at {self.target}: the operator to be told: {what}", TOLD_PATIENCE_S, pause_s=0.3)
        self.told = f"{what}: {seen[0]!s:.200}"

    def feed_windows(self, windows: int) -> None:
        """Write the records of the next windows of every site."""
        self.living.feed.write_windows(self.living.live_sites, windows)

    def pause(self, low_s: float, high_s: float) -> None:
        """Let a drawn time pass, so that what follows strikes at any point of the work."""
        time.sleep(self.chance.uniform(low_s, high_s))
