"""What is known of an assignment, whichever engine found it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

AT_CLOUD = -1  # in place of a device's number: at the cloud


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """Cost and proof. `optimal`: no viable assignment costs less; otherwise `gap` bounds what one could save."""

    cost: float
    all_upload_cost: float  # the baseline: every view at the cloud
    conflicts: int = 0  # views that two devices, each for itself, would compute
    residual_components: int = 0
    optimal: bool = True
    gap: float = 0.0  # the share of the cost that a better assignment could at most save
    seconds: float = 0.0

    @property
    def improvement(self) -> float:
        """How many times cheaper than uploading everything; 1 where nothing costs anything."""
        if self.cost > 0:
            return self.all_upload_cost / self.cost
        return math.inf if self.all_upload_cost > 0 else 1.0

    def summary(self) -> dict[str, Any]:
        """Return the same as a JSON document; `gap` is in it only where the optimum is not proved."""
        told = {
            "cost": self.cost,
            "all_upload_cost": self.all_upload_cost,
            "improvement": self.improvement if math.isfinite(self.improvement) else None,
            "conflicts": self.conflicts,
            "residual_components": self.residual_components,
            "optimal": self.optimal,
            "seconds": round(self.seconds, 6),
        }
        return told if self.optimal else {**told, "gap": self.gap}
