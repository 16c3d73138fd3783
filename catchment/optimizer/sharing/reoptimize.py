"""Re-optimisation at run time: move queries to other fragments when what is lost by not doing so has paid for it.

The rule of Chandramouli et al. (RACE, VLDB'13, section 4.5), with the patience that
`catchment.feeds.cloud.reoptimize` found it to need: keep the accumulated loss of not re-optimising, act when it
exceeds twice the cost of redeployment. Between two plans that is 3-competitive against knowing the future; between
more, no rule is. Hysteresis: a plan that is better by less than `LEAST_GAIN` counts as no better, and a loss that
ends is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.share import BytesOf, SharingState, Strength, share
from catchment.timeline import SECOND_US

LEAST_GAIN = 0.1
PATIENCE = 2.0  # how many times the cost of a move is lost before it is made


@dataclass
class Reoptimizer:
    """The loss of one deployment, added up since its last move."""

    loss_bytes: float = 0.0
    looked_us: int | None = None

    def look(self, deployed: Deployed, bytes_of: BytesOf, now_us: int) -> SharingState | None:
        """The sharing to move to, if it is time; call it now and then, with what is measured and the streams' time."""
        elapsed_s = 0.0 if self.looked_us is None else max(0, now_us - self.looked_us) / SECOND_US
        self.looked_us = now_us
        if deployed.leaving or deployed.strength in (Strength.NONE, Strength.STRICT):
            return None  # one move at a time; and weaker sharing leaves nothing to choose
        target = share(deployed.sharing.queries.values(), deployed.strength, bytes_of)
        now, then = _rate(deployed.sharing, bytes_of), _rate(target, bytes_of)
        if now - then <= LEAST_GAIN * now:
            self.loss_bytes = 0.0
            return None
        self.loss_bytes += (now - then) * elapsed_s
        if self.loss_bytes <= PATIENCE * redeployment_bytes(deployed, target, bytes_of):
            return None
        self.loss_bytes = 0.0
        return target


def redeployment_bytes(deployed: Deployed, target: SharingState, bytes_of: BytesOf) -> float:
    """What a move costs: old and new fragments both send until the longest slice that is under way has passed."""
    new = {f: d for f, d in target.fragments.items() if d not in deployed.sharing.fragments.values()}
    windows = [w.size_us for d in deployed.sharing.fragments.values() for w in d.windows]
    return sum(map(bytes_of, new.values())) * max(windows, default=0) / SECOND_US


def _rate(sharing: SharingState, bytes_of: BytesOf) -> float:
    return sum(map(bytes_of, sharing.fragments.values()))
